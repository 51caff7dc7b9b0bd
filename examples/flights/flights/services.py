"""The demo's processes (pipelines, worker, server) and their output, which goes to a file.

When one of them ends although nobody stopped it, its last lines are shown.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.processes.application import ALL_PIPELINES, application_children
from stateline.processes.supervisor import SAYS, Supervisor

TARGET = "flights.application:app"
_TAIL_LINES = 12


def demo_settings(state_dir: Path, host: str, port: int) -> dict[str, str]:
    """What the demo needs, whatever else is configured on this machine."""
    return {
        "bootstrap.servers": "embedded",
        "state.dir": str(state_dir),
        "server.host": host,
        "server.port": str(port),
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": "1000",
        "num.workers": "1",
        "pipeline.drivers": "one",  # a JVM for all three
        # After each micro-batch Spark would run an empty one to drop old state; the demo's is small.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # C1 alone: in two minutes of work C2's compiling costs more than its better code saves (31 s to 23 s of
        # processor time for the year's departures).
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }


class OutputFile:
    """Takes the lines of all processes, from any thread."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._path = path
        self._say = say
        self._tails: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_TAIL_LINES))
        self._writing = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        with self._writing:
            self._write(name, line)

    def _write(self, name: str, line: str) -> None:
        self._file.write(f"{name:<10} | {line}\n")
        if name != SAYS:
            self._tails[name].append(line)
        elif " ended (" in line:
            self._say(f"{line} Its last lines (all are in {self._path}):")
            for last in self._tails[line.split(" ended (")[0]]:
                self._say(f"  {last}")

    def close(self) -> None:
        """After the supervisor has stopped."""
        self._file.close()


class Services:
    """The application's processes. One thread owns them."""

    def __init__(self, pipelines: Supervisor, others: Supervisor) -> None:
        self._pipelines = pipelines
        self._others = others

    def poll(self) -> None:
        """See that all of them run; as `Supervisor.poll`."""
        self._others.poll()
        self._pipelines.poll()

    @contextmanager
    def without_pipelines(self) -> Iterator[None]:
        """Their driver is stopped while the block runs, its memory free; then it goes on where it was. Do not `poll`
        meanwhile."""
        self._pipelines.stop()
        yield
        self._pipelines.start()


def written_settings(app: App, settings: Mapping[str, str]) -> tuple[Config, list[str]]:
    """The application's settings, and the arguments that give them to its processes.

    They also stand in ``<state.dir>/stateline.toml``, which is given to them instead of one that may lie in the working
    directory, and which other commands can be given (``--config``).
    """
    overrides = [f"{name}={value}" for name, value in settings.items()]
    config = load_config(app.application_id, defaults=app.config, overrides=overrides)
    toml = config.state_dir / "stateline.toml"
    toml.write_text("".join(f'"{name}" = "{value}"\n' for name, value in settings.items()), encoding="utf-8")
    passed_on = ["--config", str(toml)]
    for override in overrides:  # flags as well, because variables of the environment win over a file
        passed_on += ["--set", override]
    return config, passed_on


@contextmanager
def running_services(app: App, settings: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Services]:
    """The application's processes, started; stopped in order at the end of the block.

    Their settings are written down as by `written_settings`.
    """
    config, passed_on = written_settings(app, settings)
    output = OutputFile(config.state_dir / "output.log", say)
    try:
        children = application_children(app, config, TARGET, passed_on)
        pipelines = [child for child in children if child.name == ALL_PIPELINES]
        others = [child for child in children if child not in pipelines]
        with Supervisor(others, emit=output) as rest, Supervisor(pipelines, emit=output) as driver:
            yield Services(driver, rest)
    finally:
        output.close()
