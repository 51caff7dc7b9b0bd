"""The command that checks a start."""

from __future__ import annotations

import typer

from stateline.cli.target import AsJson, ConfigFile, Settings, Target, loaded


def check(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> int:
    """Check a start of the application without starting it.

    It shows the topology. It lists missing topics, topics with other settings or partitions, changed stores, and the
    restores that a start needs. It only reads, and may run beside workers. Exit code 1: the start would fail, or the
    log does not answer.

    Example: stateline check flights:app
    """
    from stateline.cli.check.report import report_as_json, report_as_text
    from stateline.cli.check.run import check as checked

    app, config = loaded(target, config_file, settings)
    report = checked(app, config)
    typer.echo(report_as_json(report) if as_json else report_as_text(report))
    return 0 if report.would_start else 1
