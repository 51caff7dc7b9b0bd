"""Declare the command `stateline reset`."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.target import ConfigFile, Settings, Target, confirmed, loaded
from stateline_store.errors import InvalidArgumentError


def reset(
    target: Target,
    subtopologies: Annotated[
        list[int] | None, typer.Option("--subtopology", metavar="N", help="Only this subtopology. Repeatable.")
    ] = None,
    stores: Annotated[
        list[str] | None, typer.Option("--store", metavar="NAME", help="Only this store. Repeatable.")
    ] = None,
    pipelines: Annotated[
        list[str] | None, typer.Option("--pipeline", metavar="NAME", help="Only this pipeline. Repeatable.")
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Read from the first record: the default.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Read only new records.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="N", help="Read from this offset of each partition.")
    ] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="Read from this time: ISO 8601, or ms.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="PT1H", help="Read from so long ago: an ISO 8601 duration.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move the offsets by N. A negative N moves them back.")
    ] = None,
    internal_topics: Annotated[
        list[str] | None, typer.Option("--internal-topics", metavar="TOPIC", help="Delete this topic too. Repeatable.")
    ] = None,
    delete_results: Annotated[
        bool, typer.Option("--delete-results", help="Delete the topics that the pipelines write too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Complete an interrupted reset.")] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
) -> int:
    """Start over: read topics again, into empty stores.

    It resets the whole application, or the named parts: changelogs, internal topics, offsets, state and checkpoints.
    It prints the plan, and asks. It is refused while any process of the application runs. Other machines delete their
    state at their next start. Your own topics stay.

    Example: stateline reset flights:app --by-duration P1D --dry-run
    """
    from stateline.cli.reset import execution
    from stateline.cli.reset.scope import Asked
    from stateline.cli.reset.where_to import where_to
    from stateline_store.clock import now_ms

    def warn(text: str) -> None:
        typer.echo(text, err=True)

    to = where_to(
        to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset, to_datetime=to_datetime,
        by_duration=by_duration, shift_by=shift_by, now_ms=now_ms(),
    )  # fmt: skip
    asked = Asked(
        to, tuple(subtopologies or ()), tuple(stores or ()), tuple(pipelines or ()), tuple(internal_topics or ()),
        delete_results,
    )  # fmt: skip
    app, config = loaded(target, config_file, settings)
    if resume:
        if asked != Asked() or dry_run:
            raise InvalidArgumentError("--resume completes what was begun, as it was asked for then: give it alone.")
        execution.resume(app, config, say=typer.echo, warn=warn)
        return 0

    def agreed() -> bool:
        return confirmed("Do this?", yes=yes, before=", after a look at what --dry-run says")

    is_done = execution.reset(app, config, asked, dry_run=dry_run, agreed=agreed, say=typer.echo, warn=warn)
    if is_done:
        warn("Done. Start the application again.")
    return 0 if is_done or dry_run else 1
