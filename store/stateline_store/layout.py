"""Layout and StoreTypes: the form of a store's rows and the meaning of their bytes, kept in the database beside them.

The name of a store's directory gives its value format (`directory.py`). Everything else that bytes cannot tell is here.
On disk, in the row ``layout`` of the column family `offsets` (never change): UTF-8 JSON, for example ``{"kind":
"window", "retain_duplicates": false, "segment_interval_ms": 60000, "timestamped": true}``. Likewise the row ``types``:
``{"key": "string", "session_gap_ms": null, "value": "int64", "window_size_ms": 60000}``. A database that was opened
without types takes those of the next opening with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from stateline_store.errors import DamagedDataError, NewerFormatError, TopologyError

StoreKind: TypeAlias = Literal["key_value", "window", "session", "versioned"]  # on disk: never change
"""What rows are; whether each has a timestamp besides stands apart (`Layout.timestamped`)."""
TIMESTAMPED = "timestamped_"  # begins the declared kinds whose values have timestamps; over HTTP: never change
STORE_KINDS: tuple[StoreKind, ...] = get_args(StoreKind)


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of rows. `segment_interval_ms` is None for a kind without segments. `headers`: each value has the
    headers of its record (`rows/headers.py`). Thread-safe: it never changes."""

    kind: StoreKind
    timestamped: bool = False
    segment_interval_ms: int | None = None
    retain_duplicates: bool = False
    headers: bool = False
    headers_up_to: str | None = None
    """The key in hexadecimal, with its segment, up to which rows have headers while a store gets them. None: all."""

    def encode(self) -> bytes:
        """Return the row's bytes. The members of headers are there only when they say something, so that
        older versions read all other stores."""
        members = {name: value for name, value in asdict(self).items() if value or not name.startswith("headers")}
        return json.dumps(members, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, where: object = "A store") -> Layout:
        """Read the row's bytes at `where`. Raises `NewerFormatError` for a newer version, else `DamagedDataError`."""
        layout = _decoded(cls, data, where)
        if not isinstance(layout.kind, str):
            raise DamagedDataError(f"{data!r:.200} names no kind of store; {', '.join(STORE_KINDS)} are known.")
        if layout.kind not in STORE_KINDS:
            raise NewerFormatError.of(where, f"a store of kind {layout.kind!r:.200}", ", ".join(STORE_KINDS))
        return layout

    def check(self, stored: Layout, directory: Path) -> None:
        """Refuse rows of another layout than this one, which the application declares.

        Raises `TopologyError`, because only the user knows which layout is meant. Other segments are no other layout: a
        database keeps its interval until its rows move to a much longer one (`segment_lengths.py`). Rows without
        headers get them at the opening (`added_headers.py`).
        """
        if stored.kind != self.kind or stored.timestamped != self.timestamped:
            raise TopologyError(
                f"{directory} holds a {stored.declared_kind} store, but the application declares a "
                f"{self.declared_kind} store of that name. Declare it as it was, or give the store another name or the "
                "application another application.id. Nothing was changed. Under another name it starts empty."
            )
        if stored.headers and not self.headers:
            raise TopologyError(
                f"{directory} keeps the headers of records, but the store is declared without: declare it with "
                "headers=True, or give it another name."
            )
        if stored.retain_duplicates != self.retain_duplicates:
            raise TopologyError(
                f"{directory} was written with retain_duplicates={stored.retain_duplicates}, but the store is declared "
                f"with {self.retain_duplicates}: declare it as it was, or give it another name."
            )

    @property
    def form(self) -> str:
        """The kind in declarations, and whether values have headers: equal where values have the same form."""
        return f"{self.declared_kind}{' with headers' if self.headers else ''}"

    @property
    def declared_kind(self) -> str:
        """The kind in declarations, such as ``timestamped_key_value``."""
        return f"{TIMESTAMPED}{self.kind}" if self.timestamped else self.kind


KEY_VALUE = Layout("key_value")


def plain_kind(declared: str) -> str:
    """Return a declared kind without its timestamps."""
    return declared.removeprefix(TIMESTAMPED)


def is_timestamped(declared: str) -> bool:
    """Return whether a declared kind has timestamps that queries show."""
    return declared.startswith(TIMESTAMPED)


@dataclass(frozen=True, slots=True)
class StoreTypes:
    """The types of a store's keys and values, by names that the application gives them. In milliseconds, the length of
    a window store's windows, and the gap that ends a session. Both are None for other stores, and where they are
    unknown.

    Thread-safe: it never changes.
    """

    key: str
    value: str
    window_size_ms: int | None = None
    session_gap_ms: int | None = None

    def encode(self) -> bytes:
        """Return the row's bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, where: object = "A store") -> StoreTypes:
        """Read the row's bytes. Raises as `Layout.decode`."""
        return _decoded(cls, data, where)

    def check(self, stored: StoreTypes, where: object) -> None:
        """Refuse rows of other types than these, which the application declares. `where` is a directory or a changelog.
        Raises `TopologyError`, because the same bytes would be read as something else."""
        changed = [name for name in _IN_WORDS if getattr(self, name) != getattr(stored, name)]
        if changed:
            raise TopologyError(
                f"{where} holds {stored._in_words(changed)}, and is declared with {self._in_words(changed)}: "
                "declare it as it was, or give the store another name or the application another application.id. "
                "Nothing was changed. Under another name it starts empty."
            )

    def __str__(self) -> str:
        return self._in_words(name for name in _IN_WORDS if getattr(self, name) is not None)

    def _in_words(self, names: Iterable[str]) -> str:
        values = {name: getattr(self, name) for name in names}
        return " and ".join(
            _IN_WORDS[name].format("an unknown number of" if value is None else value) for name, value in values.items()
        )


_IN_WORDS = {
    "key": "keys of {}",
    "value": "values of {}",
    "window_size_ms": "windows of {} ms",
    "session_gap_ms": "a session gap of {} ms",
}
_Row = TypeVar("_Row", Layout, StoreTypes)


def _decoded(cls: type[_Row], data: bytes, where: object) -> _Row:
    try:
        members: dict[str, Any] = json.loads(data)
        known = [field.name for field in fields(cls)]
        if more := members.keys() - known:
            raise NewerFormatError.of(where, f"a layout with {sorted(more)!r:.200}", ", ".join(known))
        return cls(**members)
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedDataError(f"{data!r:.200} is no layout of a store: {error}.") from error
