"""The part of a store that a statement reads, as keys and queries of the store library. Pure.

A read only has to hold the rows that the statement needs: DuckDB filters again. So a bound that the store cannot follow
is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stateline.model.store_definition import StoreDefinition
from stateline.query.kinds import BY_WORD, query_of
from stateline.query.values import ScanQuery
from stateline.serde.plain import IntegerSerde, Serde
from stateline.sql.plan import TableRead
from stateline_store import InvalidArgumentError, MultiVersionedKeyQuery
from stateline_store.scan import KeyRange

_MOST_KEYS_OF_WINDOWS = 100
"""More keys of a window store are read as one range."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows to read: `keys` alone, ascending, or those of a range. Times bound starts and ends of windows, both
    included. `lower` and `upper` are bytes of keys, both included."""

    keys: tuple[bytes, ...] | None
    lower: bytes | None
    upper: bytes | None
    from_ms: int | None
    to_ms: int | None

    @property
    def range(self) -> KeyRange:
        return KeyRange(self.lower or b"", None if self.upper is None else self.upper + b"\0")

    @property
    def is_nothing(self) -> bool:
        backwards = self.from_ms is not None and self.to_ms is not None and self.from_ms > self.to_ms
        return self.keys == () or backwards or self.range.is_empty


def selection_of(read: TableRead, definition: StoreDefinition) -> Selection:
    """Return the rows of this store that the read needs."""
    keys = None if read.keys is None else _keys(definition.key, read.keys)
    lower, upper = _bounds(definition.key, read.lower, read.upper)
    if definition.plain_kind == "session":  # sessions that end from `from` on, and start up to `to`
        from_ms, to_ms = _latest(read.end_from, read.start_from), _earliest(read.start_to, read.end_to)
    else:
        from_ms, to_ms = read.start_from, read.start_to
    return Selection(keys, lower, upper, from_ms, to_ms)


def scans_of(
    selection: Selection, definition: StoreDefinition, *, all_versions: bool, as_of: int | None
) -> list[ScanQuery]:
    """Return the scans that have the wanted rows. `as_of` is for versioned stores, milliseconds."""
    name, kind = definition.name, definition.kind
    if all_versions:
        return [MultiVersionedKeyQuery(key) for key in selection.keys or ()]
    times = {"from": selection.from_ms, "to": selection.to_ms}
    if definition.plain_kind in ("window", "session"):
        word = "windows" if definition.plain_kind == "window" else "sessions"
        if selection.keys is None or len(selection.keys) > _MOST_KEYS_OF_WINDOWS:
            return [query_of(BY_WORD[word], name, kind, times)]
        return [query_of(BY_WORD[word], name, kind, {"key": key, **times}) for key in selection.keys]
    return [
        query_of(BY_WORD["range"], name, kind, {"lower": selection.lower, "upper": selection.upper, "as_of": as_of})
    ]


def _keys(serde: Serde, values: Sequence[Any]) -> tuple[bytes, ...] | None:
    found: set[bytes] = set()
    for value in values:
        spellings = (str(value), str(value).upper()) if isinstance(value, UUID) else (value,)
        for spelling in spellings:
            try:
                found.add(serde.serialize(spelling))
            except InvalidArgumentError:  # no key of this type equals it
                continue
    return tuple(sorted(found))


def _bounds(serde: Serde, lower: Any, upper: Any) -> tuple[bytes | None, bytes | None]:
    if isinstance(serde, IntegerSerde):
        if lower is None or lower < 0:
            return None, None  # negative numbers come last in the order of bytes
        lower_bytes = _serialized(serde, lower)
        return lower_bytes, None if lower_bytes is None or upper is None else _serialized(serde, upper)
    if isinstance(lower if lower is not None else upper, str | bytes):
        return _serialized(serde, lower), _serialized(serde, upper)
    return None, None


def _serialized(serde: Serde, value: Any) -> bytes | None:
    try:
        return None if value is None else serde.serialize(value)
    except InvalidArgumentError:
        return None


def _latest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


def _earliest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)
