"""The command line of the flights example: `python -m flights`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flights.run import DEFAULT_STATE_DIR, run_demo
from stateline.processes.logging import say_error, set_up_logging
from stateline_store import StatelineError


def main(
    once: Annotated[bool, typer.Option("--once", help="Replay, ask, print the answers, and stop.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server. 0 takes a free one.")] = 8000,
    state_dir: Annotated[
        Path, typer.Option(help="Directory of the demo's data. The demo empties it at each start.")
    ] = DEFAULT_STATE_DIR,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=2, max=9, help="Run this many nodes on a real broker, over one month. One is killed, one joins."
        ),
    ] = None,
) -> None:
    """Replay a year of New York's departures through Spark pipelines and stores, ask about them, and check the answers.

    Needs Java and no broker. With --nodes it also needs Maven, which fetches a broker.
    """
    set_up_logging(0)
    try:
        if nodes is None:
            code = run_demo(once=once, port=port, state_dir=state_dir)
        else:
            from flights.nodes.run import run_nodes_demo  # imports the broker of `tests/support`

            code = run_nodes_demo(nodes, once=once, port=port, state_dir=state_dir)
    except StatelineError as error:
        say_error(str(error))
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    typer.run(main)
