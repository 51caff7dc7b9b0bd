"""Declare `stateline sql`."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateline.cli.target import CaFile, ConfigFile, ServerUrl, Settings, TokenFile, read, word_of
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from stateline.client import Client


def sql(
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="The App whose server is asked, unless --url names one.")
    ] = None,
    url: ServerUrl = None,
    statements: Annotated[
        str | None, typer.Option("--command", "-c", metavar="SQL", help="Run these statements, and end.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, csv or json.")] = "table",
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
) -> None:
    """Query stores with SQL.

    In a terminal it opens a shell, with completion by Tab and a history. A statement ends with a semicolon. Its
    commands begin with a backslash, and \\? lists them. With --command, or statements on standard input, it prints
    their rows and ends. The first error ends it with code 1 or 2.

    The server knows the types of its stores. So a server elsewhere needs --url alone, and no code of its application.

    Example: stateline sql flights:app -c 'select count(*) from flights' --format csv
    """
    from stateline.cli.sql.printing import FORMATS
    from stateline.cli.sql.session import SqlSession, parts_of
    from stateline.cli.state.snapshot import url_of
    from stateline.sql.statement import EMPTY

    chosen = word_of("--format", form, FORMATS)
    if target is not None and url is None:
        url = url_of(read(target, config_file, settings)[1])
    with connected(url or "http://127.0.0.1:8000", token_file, ca_file) as client:
        session = SqlSession(client, chosen)
        if statements is None and sys.stdin is not None and sys.stdin.isatty():
            from stateline.cli.sql.prompt import ask_on

            ask_on(session)
            return
        parts = list(parts_of(sys.stdin.read() if statements is None else statements))
        if statements is not None and not parts:
            raise InvalidArgumentError(EMPTY)
        for part in parts:
            if (text := session.run(part)) is None:
                return
            if text:
                typer.echo(text)


def connected(url: str, token_file: Path | None, ca_file: Path | None) -> Client:
    """Return a client of this server. Raises `InvalidArgumentError` for an invalid URL, and for files that cannot be
    read."""
    import httpx

    from stateline.client import Client, Retries

    token = os.environ.get("STATELINE_TOKEN") or None
    http = None
    try:
        if token_file is not None:
            token = token_file.read_text().strip()
        if ca_file is not None:
            http = httpx.Client(verify=ssl.create_default_context(cafile=ca_file))
    except (OSError, UnicodeDecodeError) as error:
        option, path = ("--token-file", token_file) if http is None and ca_file is None else ("--ca-file", ca_file)
        raise InvalidArgumentError(f"{option} {path} cannot be read: {error}.") from error
    return Client(url, token=token, retries=Retries(deadline_s=5), http=http)
