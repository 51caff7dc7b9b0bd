"""Declare the commands `stateline backup now`, `list`, `verify`, `prune` and `restore`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from stateline.cli.target import FLAGS, AsJson, ConfigFile, PlainHelp, Settings, Target, loaded
from stateline_store.errors import InvalidArgumentError

commands = typer.Typer(
    name="backup",
    help="Make, check and restore backups of stores.\n\nExample: stateline backup now orders:app",
    epilog=FLAGS,
    rich_markup_mode=None,
)
MaybeTarget = Annotated[
    str | None, typer.Argument(metavar="MODULE:APP", help="The App, unless --backup is given.", show_default=False)
]
Location = Annotated[
    str | None, typer.Option("--backup", metavar="LOCATION", help="The backups of this location, without an App.")
]
ApplicationId = Annotated[
    str | None, typer.Option(metavar="ID", help="With --backup: the application, if the location has several.")
]
Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="This backup instead of the newest.")]


@commands.command(cls=PlainHelp, epilog=FLAGS)
def now(
    target: Target,
    full: Annotated[
        bool, typer.Option("--full", help="Write every file again, also those that the location has.")
    ] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Back up the stores of this node now.

    Workers go on while it is written. Only files that the location lacks are written. Each node writes its own
    stores: run it on each node, or wait for backup.interval.ms, which all nodes follow. Tasks that cannot be backed up
    now are named as lacks, and the exit code is 1. If `stateline backup verify` finds damaged files, --full replaces
    them with those of this node.

    Example: stateline backup now orders:app --set backup.location=s3://bucket/stateline
    """
    from stateline.cli.backup.making import make_now
    from stateline.cli.table import as_text

    made = make_now(*loaded(target, config_file, settings), full=full)
    typer.echo(as_text([made], as_json=as_json))
    return 1 if made["lacks"] else 0


@commands.command("list", cls=PlainHelp, epilog=FLAGS)
def list_(
    target: MaybeTarget = None,
    backup: Location = None,
    application_id: ApplicationId = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="A line for each node's part, as --json has them.")] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the backups of an application, newest first.

    The column state names the tasks that no node has in this backup. The size is that of the stores: backups share
    files.

    Example: stateline backup list --backup s3://bucket/stateline
    """
    from stateline.cli.backup.listing import parts, summaries
    from stateline.cli.backup.places import backups_of
    from stateline.cli.table import as_text

    location = backups_of(target, backup, application_id, config_file, settings).location
    rows = parts(location) if nodes or as_json else summaries(location)
    typer.echo(as_text(rows, as_json=as_json))


@commands.command(cls=PlainHelp, epilog=FLAGS)
def verify(
    target: MaybeTarget = None,
    backup: Location = None,
    application_id: ApplicationId = None,
    id_: Id = None,
    every: Annotated[bool, typer.Option("--all", help="Every backup, not only the newest.")] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Read a backup whole, and open each of its stores in a temporary directory.

    It compares the digest of each file, and the commit and Position of each store. If a task is damaged, or the
    application declares its stores otherwise now, it prints the task, and its exit code is 1. Tasks that no node has in
    this backup are named as missing. Stores that the application does not declare any more are left out. With --backup,
    no store is compared with its declaration.

    Example: stateline backup verify orders:app --all
    """
    from stateline.cli.backup.places import backups_of
    from stateline.cli.backup.reading import verified
    from stateline.cli.table import as_text

    if every and id_ is not None:
        raise InvalidArgumentError("--all verifies every backup: leave out --id or --all.")
    found = backups_of(target, backup, application_id, config_file, settings)
    rows, faults = verified(found, id_, every=every)
    typer.echo(as_text(rows, as_json=as_json))
    return 1 if faults else 0


@commands.command(cls=PlainHelp, epilog=FLAGS)
def prune(
    target: MaybeTarget = None,
    backup: Location = None,
    application_id: ApplicationId = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete old backups, as servers do each hour, and files that no backup names.

    backup.retention.ms and backup.keep say which backups stay. With --backup, give both. A file is deleted three days
    after it was written.

    Example: stateline backup prune orders:app --set backup.keep=1 --dry-run
    """
    from stateline.cli.backup.places import backups_of
    from stateline.cli.backup.reading import pruned, to_prune
    from stateline.cli.table import as_text

    found = backups_of(target, backup, application_id, config_file, settings)
    if not dry_run:
        typer.echo(as_text([pruned(found)], as_json=as_json))
        return
    ended, totals = to_prune(found)
    if as_json:
        typer.echo(as_text([{**totals, "backups": ended}], as_json=True))
    else:
        typer.echo("\n\n".join(as_text(each, as_json=False) for each in (ended, [totals]) if each))


@commands.command(cls=PlainHelp, epilog=FLAGS)
def restore(
    target: Target,
    id_: Id = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only the tasks that this node had backed up.")
    ] = None,
    changelogs_lost: Annotated[
        bool, typer.Option("--changelogs-lost", help="Write the changelogs again, and set the group's offsets.")
    ] = False,
    subtopologies: Annotated[
        list[int] | None,
        typer.Option("--subtopology", metavar="N", help="With --changelogs-lost: only this one. Repeatable."),
    ] = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Put stores of a backup into state.dir, before the workers start.

    Each task gets its newest backup. A damaged one is reported, and the next older one is taken. A worker then reads
    each changelog from the offset of its store on, instead of from the beginning. Stores that are there stay as they
    are. Stores that the application does not declare any more are left out. If a task cannot be restored, the exit code
    is 1, and its worker reads the changelogs.

    With --changelogs-lost, the whole application goes back to its backups: it writes the rows into new changelogs, and
    the input continues where it was then. The application must be stopped everywhere. If it is interrupted, run the
    same command again: no worker starts before.

    Example: stateline backup restore orders:app
    """
    from stateline.cli.backup.lost_changelogs import restored_without_changelogs
    from stateline.cli.backup.restoring import restored
    from stateline.cli.table import as_text

    app, config = loaded(target, config_file, settings, to_write=True)
    if changelogs_lost:
        if node is not None:
            raise InvalidArgumentError("--changelogs-lost restores the tasks of all nodes: leave out --node.")
        say = partial(typer.echo, err=True)
        rows = restored_without_changelogs(app, config, id_, subtopologies or (), say)
    elif subtopologies:
        raise InvalidArgumentError("--subtopology is for a restore with --changelogs-lost.")
    else:
        rows = restored(app, config, id_, node)
    typer.echo(as_text(rows, as_json=as_json))
    return 1 if any(row["outcome"] == "not restored" for row in rows) else 0
