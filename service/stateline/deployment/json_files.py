"""Write and read the files that processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from stateline_store import DamagedDataError
from stateline_store.files.durable_files import refused, replace_file

T = TypeVar("T")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def publish(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    folder_mode: int = 0o750,
    sync: bool = False,
    only_writer: bool = False,
) -> None:
    """Replace a file's content atomically. With `sync` this also holds after a power cut. Use it for content that no
    restart writes again. `folder_mode` is for a new folder. `mode` and `only_writer` are those of
    `durable_files.replace_file`.

    Raises `RetryLaterError` if the file cannot be written.
    """
    try:
        path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, "written", error) from error
    replace_file(path, content, mode=mode, sync=sync, only_writer=only_writer)


def decoded(kind: type[T], content: bytes) -> T:
    """Read a dataclass from JSON. Ignores unknown members.

    Raises `DamagedDataError` if a member is missing or has another type.
    """
    adapter = _ADAPTERS.get(kind) or _ADAPTERS.setdefault(kind, TypeAdapter(kind))
    try:
        found: T = adapter.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedDataError(f"not a {kind.__name__}: {f'{where}: ' if where else ''}{first['msg']}") from error
    return found
