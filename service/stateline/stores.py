"""Stores as an application declares them, and the typed views that its processors get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from stateline.serde import Serde, shown
from stateline.topology import StoreDefinition, checked_name
from stateline_store import (
    InvalidArgumentError,
    KeyValueStore,
    TimestampedKeyValueStore,
    TopologyError,
    ValueAndTimestamp,
)


def key_value(name: str, *, key: Serde, value: Serde, persistent: bool = True, logged: bool = True) -> StoreDefinition:
    """A key-value store; `persistent` keeps it in RocksDB, `logged` gives it a changelog topic."""
    return StoreDefinition(checked_name("store", name), "key_value", key, value, persistent, logged)


def timestamped_key_value(
    name: str, *, key: Serde, value: Serde, persistent: bool = True, logged: bool = True
) -> StoreDefinition:
    """A key-value store that keeps with each value the timestamp of the record that wrote it (KIP-258)."""
    return StoreDefinition(checked_name("store", name), "timestamped_key_value", key, value, persistent, logged)


HEADROOM_BYTES = 16_384  # what headers (the Position) and framing may take of a record
MAX_RECORD_BYTES = 1_000_000 - HEADROOM_BYTES  # librdkafka's default `message.max.bytes`


def refuse_too_large(key: bytes | None, value: bytes | None, max_record_bytes: int) -> None:
    """Raise `InvalidArgumentError` for a record that the log would refuse, while it can still be told whose it is."""
    size = len(key or b"") + len(value or b"")
    if size > max_record_bytes:
        raise InvalidArgumentError(
            f"Key {shown(key)} and its value have {size} bytes, but a record of the log takes {max_record_bytes}: make "
            "it smaller, or raise producer.message.max.bytes and the topic's max.message.bytes."
        )


class Timestamped(NamedTuple):
    """A value and its timestamp, in milliseconds since the epoch."""

    value: Any
    timestamp: int


class StoreView:
    """A store's records as typed values, for the processors of one task, on the worker's thread only.

    Reads see what this task has written, committed or not. A key or value that the store's serdes cannot write
    raises `InvalidArgumentError`. The store of a table is read-only: its topic alone writes it.
    """

    def __init__(
        self, definition: StoreDefinition, store: KeyValueStore, *, max_record_bytes: int = MAX_RECORD_BYTES
    ) -> None:
        """`max_record_bytes` is the most that key and value may have together in a store with a changelog."""
        self._max_record_bytes = max_record_bytes
        self._definition = definition
        self._store = store
        self._key, self._value = definition.key, definition.value
        self._record_timestamp_ms = -1
        self._undo: list[tuple[bytes, ValueAndTimestamp | None]] | None = None

    @property
    def name(self) -> str:
        """The store's name."""
        return self._definition.name

    def record_starts(self, timestamp_ms: int, *, undo: bool = False) -> None:
        """The runtime calls this before each record: what `put` stamps its values with, and whether to
        remember what it overwrites (one more read per write) so that `undo` can take the record's writes back."""
        self._record_timestamp_ms = timestamp_ms
        self._undo = [] if undo else None

    def undo(self) -> None:
        """Take back every write since `record_starts`, if it asked for that."""
        for key, before in reversed(self._undo or []):
            self._write(key, before)
        self._undo = None

    def get(self, key: Any) -> Any:
        """The value, or None when the key is absent."""
        data = self._store.get(self._key.serialize(key))
        return None if data is None else self._value.deserialize(data)

    def get_with_timestamp(self, key: Any) -> Timestamped | None:
        """Value and timestamp, or None when the key is absent. Only for a timestamped store."""
        found = self._timestamped().get_with_timestamp(self._key.serialize(key))
        return None if found is None else Timestamped(self._value.deserialize(found.value), found.timestamp)

    def put(self, key: Any, value: Any, *, timestamp_ms: int | None = None) -> None:
        """Stage a value (None deletes), stamped with the record's timestamp unless another is given."""
        self._refuse_write_to_table()
        data = None if value is None else self._value.serialize(value)
        raw_key = self._key.serialize(key)
        if self._definition.logged:
            refuse_too_large(raw_key, data, self._max_record_bytes)
        if self._undo is not None:
            self._undo.append((raw_key, self._read(raw_key)))
        stamp = self._record_timestamp_ms if timestamp_ms is None else timestamp_ms
        self._write(raw_key, None if data is None else ValueAndTimestamp(data, stamp))

    def delete(self, key: Any) -> None:
        """Stage the removal of a key; an absent key is fine."""
        self.put(key, None)

    def range(self, lower: Any = None, upper: Any = None, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """(key, value) from `lower` to `upper`, both inclusive, None open, in the order of serialized keys."""
        low = None if lower is None else self._key.serialize(lower)
        high = None if upper is None else self._key.serialize(upper)
        with closing(self._store.range(low, high, reverse=reverse)) as entries:
            for key, data in entries:
                yield self._key.deserialize(key), self._value.deserialize(data)

    def _read(self, key: bytes) -> ValueAndTimestamp | None:
        if isinstance(self._store, TimestampedKeyValueStore):
            return self._store.get_with_timestamp(key)
        data = self._store.get(key)
        return None if data is None else ValueAndTimestamp(data, -1)

    def _write(self, key: bytes, entry: ValueAndTimestamp | None) -> None:
        if isinstance(self._store, TimestampedKeyValueStore):
            value, stamp = (None, -1) if entry is None else entry
            self._store.put_with_timestamp(key, value, stamp)
        else:
            self._store.put(key, None if entry is None else entry.value)

    def _timestamped(self) -> TimestampedKeyValueStore:
        if not isinstance(self._store, TimestampedKeyValueStore):
            raise TopologyError(
                f"Store {self.name!r} keeps no timestamps: declare it with stores.timestamped_key_value."
            )
        return self._store

    def _refuse_write_to_table(self) -> None:
        if self._definition.source is not None:
            raise TopologyError(
                f"Store {self.name!r} is the table of topic {self._definition.source.name!r} and read-only here: "
                "write to the topic, or declare a store of the processor's own."
            )
