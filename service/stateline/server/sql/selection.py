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
from stateline.serde.plain import IntegerSerde, JsonSerde, Serde, StringSerde
from stateline.serde.scalars import DatetimeSerde
from stateline.server.state.served_stores import ServedStore
from stateline.sql.plan import TableRead
from stateline_store import InvalidArgumentError, MultiVersionedKeyQuery
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS
from stateline_store.scan import KeyRange

_TEXT = StringSerde()

_MOST_LOOKUPS = 1_000
"""Keys of windows times partitions. Beyond this, the windows of all keys are read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows to read: `keys` alone, ascending, or those of a range. `lower` and `upper` are bytes of keys, both
    included. Windows start from `from_ms` to `to_ms`. Sessions end from `from_ms` to `end_to_ms` and start up to
    `to_ms`. All are included, and None bounds nothing."""

    keys: tuple[bytes, ...] | None = None
    lower: bytes | None = None
    upper: bytes | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    end_to_ms: int | None = None

    @property
    def range(self) -> KeyRange:
        return KeyRange(self.lower or b"", None if self.upper is None else self.upper + b"\0")

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    @property
    def is_nothing(self) -> bool:
        return self.keys == () or self.range.is_empty


def selection_of(read: TableRead, definition: StoreDefinition) -> Selection:
    """Return the rows of this store that the read needs."""
    keys = None if read.keys is None else _keys(definition.key, read.keys)
    lower, upper = _bounds(definition.key, read.lower, read.upper)
    if definition.plain_kind == "session":  # a session starts before it ends
        from_ms, to_ms = _latest(read.end_from, read.start_from), _earliest(read.start_to, read.end_to)
        return Selection(keys, lower, upper, from_ms, to_ms, read.end_to)
    if definition.plain_kind != "window":
        return Selection(keys, lower, upper)
    size_ms = definition.window_size_ms
    from_ms = _latest(read.start_from, None if read.end_from is None else read.end_from - size_ms)
    to_ms = read.start_to
    if read.end_to is not None and read.end_to < MAX_TIMESTAMP_MS:  # windows that end there are shorter
        to_ms = _earliest(to_ms, read.end_to - size_ms)
    return Selection(keys, lower, upper, from_ms, to_ms)


def scans_of(selection: Selection, store: ServedStore, *, all_versions: bool, as_of: int | None) -> list[ScanQuery]:
    """Return the scans that have the wanted rows. `as_of` is for versioned stores, milliseconds."""
    name, kind, plain = store.name, store.definition.kind, store.definition.plain_kind
    if all_versions:
        return [MultiVersionedKeyQuery(key) for key in selection.keys or ()]
    if plain not in ("window", "session"):
        given = {"lower": selection.lower, "upper": selection.upper, "as_of": as_of}
        return [query_of(BY_WORD["range"], name, kind, given)]
    word, first = BY_WORD[f"{plain}s"], {"from": selection.from_ms}
    if selection.keys is None or len(selection.keys) * len(store.partitions) > _MOST_LOOKUPS:
        # Sessions of all keys are bounded by their ends alone.
        last = selection.to_ms if plain == "window" else selection.end_to_ms
        return [query_of(word, name, kind, {**first, "to": last})]
    return [query_of(word, name, kind, {"key": key, **first, "to": selection.to_ms}) for key in selection.keys]


def _keys(serde: Serde, values: Sequence[Any]) -> tuple[bytes, ...] | None:
    """Return the keys of these values, ascending. None if the type does not say which bytes they have."""
    found: set[bytes] = set()
    for value in values:
        if (keys := _key(serde, value)) is None:
            return None
        found.update(keys)
    return tuple(sorted(found))


def _key(serde: Serde, value: Any) -> tuple[bytes, ...] | None:
    """Return the keys that SQL shows as this value. There is none for a value beyond the type."""
    try:
        if isinstance(value, bytes):  # a BLOB is what is stored
            return (value,)
        if isinstance(value, UUID):
            return str(value).encode(), str(value).upper().encode()
        if isinstance(value, str):
            return (_TEXT.serialize(value),) if type(serde) in (StringSerde, JsonSerde) else None
        return (serde.serialize(value),)
    except InvalidArgumentError:
        return ()


def _bounds(serde: Serde, lower: Any, upper: Any) -> tuple[bytes | None, bytes | None]:
    """Return the range of bytes that has the keys between these values."""
    if type(serde) not in (StringSerde, JsonSerde, IntegerSerde, DatetimeSerde):
        is_stored = isinstance(lower, bytes) or isinstance(upper, bytes)
        return (lower, upper) if is_stored else (None, None)
    first, last = (next(iter(() if value is None else _key(serde, value) or ()), None) for value in (lower, upper))
    if type(serde) in (IntegerSerde, DatetimeSerde) and (first is None or first[0] > 127):
        return None, None  # negative numbers come last in the order of bytes
    return first, last


def _latest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


def _earliest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)
