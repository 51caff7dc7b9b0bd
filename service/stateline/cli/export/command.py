"""Declare `stateline export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from stateline.cli.progress import Progress
from stateline.cli.target import AsJson, CaFile, ServerUrl, TokenFile, word_of
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from stateline.cli.export.rows import StoreRows
    from stateline.cli.table import Row

Format = Literal["parquet", "delta"]
_FORMATS: tuple[Format, ...] = ("parquet", "delta")


def export(
    names: Annotated[list[str], typer.Argument(metavar="STORE", help="The stores.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="LOCATION", help="A directory, or s3://, gs:// or az://.")],
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet or delta.")] = "parquet",
    changes: Annotated[
        bool, typer.Option("--changes", help="A Delta table of all changes, with _deleted, instead of current rows.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Write the whole Delta table again, also with other columns.")
    ] = False,
    backup: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="Export a backup of this location, without a server.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="ID", help="This backup, or the newest up to this time (ISO 8601).")
    ] = None,
    application_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The application, if the location has backups of several.")
    ] = None,
    url: ServerUrl = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Export stores as Parquet files or Delta tables.

    All stores are of one moment, and each has a folder of its name. A Parquet export is a new file. A Delta table is
    written whole once, and gets only what has changed after that.

    Example: stateline export orders --to s3://lake/states --format delta
    """
    from stateline.cli.table import as_text
    from stateline.config.extras import need_extra

    chosen = word_of("--format", form, _FORMATS)
    if (changes or full) and (chosen == "parquet" or (changes and full)):
        raise InvalidArgumentError("--changes and --full are for --format delta, one of them at a time.")
    if backup is not None and url is not None:
        raise InvalidArgumentError("--backup reads no server: leave out --url or --backup.")
    if backup is None and (as_of or application_id):
        raise InvalidArgumentError("--as-of and --application-id are for --backup: name its location.")
    need_extra("delta" if chosen == "delta" else "backup", "Exports")

    from stateline.cli.export.rows import of_backup, of_server
    from stateline.cli.state.snapshot import server_at

    stores = tuple(dict.fromkeys(names))
    with ExitStack() as open_:
        progress = open_.enter_context(closing(Progress(sys.stderr, "Exporting", unit="rows")))
        if backup is not None:
            found = of_backup(backup, as_of, application_id, stores, progress)
        else:
            found = open_.enter_context(of_server(server_at(url, token_file, ca_file), stores, progress))
        done = _exported(found, to, chosen, is_log=changes, is_whole=full)
    typer.echo(as_text(done, as_json=as_json))


def _exported(found: Sequence[StoreRows], to: str, form: Format, *, is_log: bool, is_whole: bool) -> list[Row]:
    from stateline.backup.object_stores import object_store

    base = to.rstrip("/") if urlsplit(to).scheme else str(Path(to).absolute())
    done: list[Row] = []
    for rows in found:
        folder = f"{base}/{rows.store}"
        place = object_store(folder, "--to")
        if form == "parquet":
            from stateline.cli.export import parquet

            exported = parquet.export(rows, folder, place)
        else:
            from stateline.cli.export import delta

            exported = delta.export(rows, folder, place, is_log=is_log, is_whole=is_whole)
        done.append({"store": rows.store, "moment": rows.moment, **exported._asdict(), "at": f"{folder}{exported.at}"})
    return done
