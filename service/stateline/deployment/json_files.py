"""How processes leave each other files: each in one step, and read only as what it is said to be."""

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
    """Put this content in place of what the file holds, so that readers see the old or the new, never a half. With
    `sync` so does whoever looks after a power cut: for what nobody else could tell; without it, for what whoever starts
    anew tells again. A folder that is not there is made with `folder_mode`, as far as the umask allows; `mode` and
    `only_writer` are `durable_files.replace_file`'s.

    Raises `RetryLaterError` where nothing can be written.
    """
    try:
        path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, "written", error) from error
    replace_file(path, content, mode=mode, sync=sync, only_writer=only_writer)


def decoded(kind: type[T], content: bytes) -> T:
    """The value of a dataclass in this JSON. Members that it does not know are ignored.

    Raises `DamagedDataError` for what is no JSON of it: a member is missing, or of another type.
    """
    adapter = _ADAPTERS.get(kind) or _ADAPTERS.setdefault(kind, TypeAdapter(kind))
    try:
        found: T = adapter.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedDataError(f"not a {kind.__name__}: {f'{where}: ' if where else ''}{first['msg']}") from error
    return found
