"""Declare the command `stateline adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateline.cli.target import AsJson, ConfigFile, Settings, Target, loaded


def adopt(
    target: Target,
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="DIR",
            help="state.dir of the Kafka Streams application, or a copy of it; repeatable, for several instances.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be copied.")] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Copy the stores of a stopped Kafka Streams application.

    It reads the local stores of Kafka Streams 3.6 to 4.4 and changes nothing there. The worker then reads each
    changelog from the adopted offset on, instead of from the beginning. Before, stop the workers and servers of this
    machine. A store that cannot be adopted is listed with the reason, and the exit code is 1. The worker restores it
    from its changelog.

    Example: stateline adopt word_count:app --from /var/lib/kafka-streams
    """
    from stateline.cli.adopt import adoption

    app, config = loaded(target, config_file, settings, to_write=not dry_run)
    report = adoption.adopt(app, config, sources, dry_run=dry_run)
    typer.echo(report.as_text(as_json=as_json))
    for line in report.notes:
        typer.echo(line, err=True)
    return 0 if report.is_complete else 1
