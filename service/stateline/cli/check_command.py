"""The command that checks a start."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.target import AsJson, ConfigFile, Settings, Target, loaded
from stateline_store.errors import InvalidArgumentError


def check(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print only the topology, for Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print only the topology, for Mermaid.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check a start of the application without starting it.

    It draws the topology. It lists missing topics, topics with other settings or partitions, changed stores, and the
    restores that a start needs. It only reads, and may run beside workers. Exit code 1: the start would fail, or the
    log does not answer.

    Example: stateline check flights:app --mermaid
    """
    if dot + mermaid + as_json > 1:
        raise InvalidArgumentError("--dot, --mermaid and --json exclude each other. Give one of them.")
    app, config = loaded(target, config_file, settings)
    if dot or mermaid:
        from stateline.cli.check.drawings import as_dot, as_mermaid
        from stateline.model.graph import graph_of

        parts = graph_of(app.topology())
        typer.echo(as_dot(app.application_id, parts) if dot else as_mermaid(parts))
        return 0
    from stateline.cli.check.report import report_as_json, report_as_text
    from stateline.cli.check.run import check as checked

    report = checked(app, config)
    typer.echo(report_as_json(report) if as_json else report_as_text(report))
    return 0 if report.would_start else 1
