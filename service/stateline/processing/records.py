"""A processor's input record, and the topics that it may write to."""

from __future__ import annotations

from typing import Any, NamedTuple

from stateline.log.interface import Headers, Record
from stateline.log.timestamps import checked_timestamp
from stateline.model.record_size import MAX_RECORD_BYTES, refuse_too_large
from stateline.model.topic import Topic
from stateline.serde.plain import shown
from stateline.serde.windowed import partition_key
from stateline_store import InvalidArgumentError


class InputRecord(NamedTuple):
    """A record read by its topic's serdes. `value` None is a tombstone; `timestamp_ms` since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers = ()


class HeldRecord(Record):
    """An input record, as a store of rows that wait knows it: its place and headers, and the row's key, value and
    timestamp. A step before may have changed the value."""

    __slots__ = ()


class OutputRecord(NamedTuple):
    """A record that a processor forwarded, as bytes. It goes to `partition`, or else to that of
    `partition_key`, or else of the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()
    partition_key: bytes | None = None
    partition: int | None = None


def check_headers(given: Any) -> None:
    """Raise `InvalidArgumentError` unless these are pairs of a text and bytes or None."""
    if not isinstance(given, list | tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], bytes | None)
        for pair in given
    ):
        raise InvalidArgumentError(f"{shown(given)} are no headers: give a list of (text, bytes or None).")


class Output:
    """A topic that a processor writes to. Records are sent when the function has returned without an error."""

    def __init__(self, topic: Topic, *, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self._topic = topic
        self._max_record_bytes = max_record_bytes
        self._pending: list[OutputRecord] = []
        self._record_timestamp_ms = 0
        self._record_headers: Headers = ()

    def record_starts(self, timestamp_ms: int, headers: Headers = ()) -> None:
        """Set the timestamp and headers for `forward`. The runtime calls this before each record."""
        self._record_timestamp_ms, self._record_headers = timestamp_ms, headers
        self._pending.clear()

    def forward(self, key: Any, value: Any, *, timestamp_ms: int | None = None, headers: Headers | None = None) -> None:
        """Write a record with the input's timestamp and headers unless others are given. A key of None goes to any
        partition, a window's or a session's to that of the inner key. Raises `InvalidArgumentError` for a key or value
        that the topic's serdes cannot write, or that is too large, for a timestamp that is no whole number of
        milliseconds, and for headers other than (text, bytes or None)."""
        raw_key = None if key is None else self._topic.key.serialize(key)
        raw_value = None if value is None else self._topic.value.serialize(value)
        stamp = self._record_timestamp_ms if timestamp_ms is None else checked_timestamp(timestamp_ms)
        if headers is None:
            headers = self._record_headers
        elif headers:
            check_headers(headers)
        # Headers do not count: a record that they make too large is production.exception.handler's.
        refuse_too_large(raw_key, raw_value, self._max_record_bytes)
        where = partition_key(self._topic.key, raw_key)
        self._pending.append(OutputRecord(self._topic.name, raw_key, raw_value, stamp, headers, where))

    def take(self) -> list[OutputRecord]:
        """Return the records since `record_starts`. The runtime calls this after the function."""
        taken, self._pending = self._pending, []
        return taken
