"""`stateline token`: add, list and remove tokens of a tokens file (`stateline.server.guard.tokens`).

A running server sees a change with its next request. The file is replaced as a whole, under a lock on its folder.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stateline.cli.target import FLAGS, AsJson, PlainHelp
from stateline.serde.iso_times import iso_time
from stateline_store.errors import ConfigurationError, DoesNotExistError, InvalidArgumentError

if TYPE_CHECKING:
    from stateline.server.guard.tokens import TokenEntry, TokensFile

SETTING, VARIABLE = "server.tokens.file", "STATELINE_SERVER_TOKENS_FILE"
SETTINGS_FILE = Path("stateline.toml")
Role = Literal["read", "admin"]

_DURATION = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

commands = typer.Typer(
    name="token",
    help="Manage the tokens of a server.\n\nA file has their hashes (server.tokens.file). A running server takes "
    "each change at once.\n\nExample: stateline token add dashboard --stores orders,totals --expires 90d",
    epilog=FLAGS,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name for listings and logs.")]
TokensPath = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        envvar=VARIABLE,
        show_envvar=False,
        help=f"The tokens file. {SETTING} of the environment or of ./{SETTINGS_FILE} by default.",
    ),
]


@commands.command(cls=PlainHelp, epilog=FLAGS)
def add(
    name: Name,
    role: Annotated[
        Role,
        typer.Option(
            metavar="ROLE", help="read, or admin: reads all stores, also new ones, and changes all snapshots."
        ),
    ] = "read",
    stores: Annotated[
        str | None, typer.Option(metavar="A,B", help="The stores that the token may read.", show_default="all")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="After 30m, 12h, 90d or 8w, or at a time such as 2027-01-31T12:00Z."),
    ] = None,
    file: TokensPath = None,
) -> None:
    """Make a token and print it once.

    The file keeps only its hash. If there is no file, the command makes it.

    Example: stateline token add dashboard --stores orders,totals --expires 90d
    """
    from stateline.server.guard.tokens import hash_of, new_token

    token = new_token()
    path = tokens_file(file)
    entry = new_entry(name, hash_of(token), role, stores, expires, datetime.now(UTC))
    with _locked(path):
        _write(path, with_entry(_read(path), entry))
    typer.echo(f"{entry.name} is in {path}. The token is shown this once:", err=True)
    typer.echo(token)


@commands.command("list", cls=PlainHelp, epilog=FLAGS)
def list_tokens(
    file: TokensPath = None,
    as_json: AsJson = False,
) -> None:
    """List the tokens and their rights.

    Example: stateline token list --json
    """
    from stateline.cli.table import as_text
    from stateline.server.guard.tokens import read_tokens_file

    known = read_tokens_file(tokens_file(file))
    now = datetime.now(UTC)
    rows = [
        {
            "name": entry.name,
            "role": entry.role,
            "stores": list(entry.stores) if as_json and entry.stores != "*" else ",".join(entry.stores),
            "expires_at": None if entry.expires_at is None else entry.expires_at.isoformat(),
            "expired": entry.expires_at is not None and entry.expires_at <= now,
        }
        for entry in known.tokens
    ]
    typer.echo(as_text(rows, as_json=as_json))


@commands.command(cls=PlainHelp, epilog=FLAGS)
def remove(name: Name, file: TokensPath = None) -> None:
    """Make a token invalid.

    The server refuses requests with it from now on, and ends its streams.

    Example: stateline token remove dashboard
    """
    path = tokens_file(file)
    with _locked(path):
        _write(path, without_entry(_read(path), name))


def tokens_file(given: Path | None) -> Path:
    """The given file, or that of ./stateline.toml. Raises `ConfigurationError` if neither names one."""
    from stateline.config.loading import from_tree, read_settings_file

    if given is None:
        tree = read_settings_file(SETTINGS_FILE) or {}
        setting = dict(from_tree(tree, str(SETTINGS_FILE))).get(SETTING)
        if setting is None:
            raise ConfigurationError(f"Which file? Name it with --file, or set {SETTING} in {SETTINGS_FILE}.")
        given = Path(str(setting.value))
    return given.resolve()  # a symbolic link is kept


def new_entry(
    name: str, digest: bytes, role: Role, stores: str | None, expires: str | None, now: datetime
) -> TokenEntry:
    """Make an entry from the command line. Raises `InvalidArgumentError` for invalid values."""
    from pydantic import ValidationError

    from stateline.server.guard.token_errors import described_error
    from stateline.server.guard.tokens import TokenEntry

    names: Literal["*"] | tuple[str, ...] = "*"
    if stores is not None:
        names = tuple(dict.fromkeys(part.strip() for part in stores.split(",")))
        if "" in names:
            raise InvalidArgumentError(f"--stores {stores!r} has an empty name: separate names with commas.")
    try:
        return TokenEntry(
            name=name,
            sha256=digest.hex(),
            role=role,
            stores=names,
            expires_at=None if expires is None else expiry(expires, now),
        )
    except ValidationError as error:
        raise InvalidArgumentError(f"The token is not valid: {described_error(error)}.") from error


def expiry(text: str, now: datetime) -> datetime:
    """The expiry of a token made now: after a duration, or at a time of ISO 8601, in UTC by default.

    Raises `InvalidArgumentError` for invalid or past times.
    """
    if found := _DURATION.fullmatch(text):
        return (now + int(found[1]) * _UNITS[found[2]]).replace(microsecond=0)
    try:
        when = iso_time(text, UTC).astimezone(UTC)
    except (InvalidArgumentError, OverflowError) as error:
        raise InvalidArgumentError(
            f"--expires {text!r} is no time: write 30m, 12h, 90d or 8w, or a time as in 2027-01-31T12:00Z."
        ) from error
    if when <= now:
        raise InvalidArgumentError(f"--expires {text!r} is over already.")
    return when


def with_entry(known: TokensFile, entry: TokenEntry) -> TokensFile:
    """Add an entry. Raises `InvalidArgumentError` if the name exists."""
    if any(other.name == entry.name for other in known.tokens):
        raise InvalidArgumentError(
            f"There is a token {entry.name!r} already: add one of another name, hand it out, then remove the old one."
        )
    return known.model_copy(update={"tokens": (*known.tokens, entry)})


def without_entry(known: TokensFile, name: str) -> TokensFile:
    """Remove an entry. Raises `DoesNotExistError` if the name does not exist."""
    rest = tuple(entry for entry in known.tokens if entry.name != name)
    if len(rest) == len(known.tokens):
        names = ", ".join(entry.name for entry in rest) or "none"
        raise DoesNotExistError(f"There is no token {name!r}; there are: {names}.")
    return known.model_copy(update={"tokens": rest})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time. It locks the folder, because the file itself is replaced."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{path.parent} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read(path: Path) -> TokensFile:
    from stateline.server.guard.tokens import TokensFile, read_tokens_file

    return read_tokens_file(path) if path.exists() else TokensFile(tokens=())


def _write(path: Path, known: TokensFile) -> None:
    from stateline_store.files.durable_files import replace_file

    owner = path.stat() if path.exists() else None
    replace_file(path, known.model_dump_json(indent=2).encode() + b"\n")
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)  # else a server of another user could no longer read it
