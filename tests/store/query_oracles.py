"""Every kind of store, random data for it, and what each query must answer: in the plainest way, from dicts."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeAlias

from stateline_store import (
    KeyQuery,
    KeysQuery,
    KeyValueStore,
    MultiVersionedKeyQuery,
    Order,
    PrefixQuery,
    Query,
    RangeQuery,
    Scan,
    SessionKeyQuery,
    SessionRangeQuery,
    SessionStore,
    TimestampedKeyQuery,
    TimestampedKeyValueStore,
    TimestampedRangeQuery,
    TimestampedSessionStore,
    TimestampedWindowStore,
    TransactionalStore,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    VersionedRecord,
    VersionedStore,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    WindowStore,
)
from stateline_store.rocksdb.options import Tuning

RETENTION, SIZE = 100_000, 10_000  # ms: segments of a minute in window and session stores, of 20 s in versioned ones
END_OF_TIME = 2**63 - 1
# Keys that are prefixes of others, and one that a window's suffix can make of another.
KEYS = [b"", b"\x00", b"a", b"a\x00", b"a" + bytes(12), b"a" + bytes(16), b"ab", b"b", b"\xff", b"\xff\xff"]
SMALL = Tuning(write_buffer_bytes=1024 * 1024, level_base_bytes=2 * 1024 * 1024)


class Put(NamedTuple):
    """One write. `time` is a window's start, a session's end, a version's timestamp; `span` the session's length."""

    key: bytes
    value: bytes | None
    time: int
    span: int
    timestamp: int


Make: TypeAlias = Callable[[bool], TransactionalStore]
KINDS: dict[str, Make] = {
    "key_value": lambda persistent: KeyValueStore("s", persistent=persistent, tuning=SMALL),
    "timestamped_key_value": lambda persistent: TimestampedKeyValueStore("s", persistent=persistent, tuning=SMALL),
    "window": lambda persistent: _window(WindowStore, persistent),
    "timestamped_window": lambda persistent: _window(TimestampedWindowStore, persistent),
    "window_with_duplicates": lambda persistent: _window(WindowStore, persistent, retain_duplicates=True),
    "session": lambda persistent: _session(SessionStore, persistent),
    "timestamped_session": lambda persistent: _session(TimestampedSessionStore, persistent),
    "versioned": lambda persistent: VersionedStore(
        "s", history_retention_ms=RETENTION, persistent=persistent, tuning=SMALL
    ),
}


def _window(kind: type[WindowStore], persistent: bool, *, retain_duplicates: bool = False) -> WindowStore:
    return kind(
        "s",
        retention_ms=RETENTION,
        window_size_ms=SIZE,
        retain_duplicates=retain_duplicates,
        persistent=persistent,
        tuning=SMALL,
    )


def _session(kind: type[SessionStore], persistent: bool) -> SessionStore:
    return kind("s", retention_ms=RETENTION, persistent=persistent, tuning=SMALL)


def write(store: TransactionalStore, put: Put) -> None:
    """Stage it, in the way of this kind of store."""
    key, value, time, span, timestamp = put
    match store:
        case TimestampedKeyValueStore():
            store.put_with_timestamp(key, value, timestamp)
        case KeyValueStore():
            store.put(key, value)
        case TimestampedWindowStore():
            store.put_with_timestamp(key, value, timestamp, time)
        case WindowStore():
            store.put(key, value, time)
        case TimestampedSessionStore():
            store.put_with_timestamp(Windowed(key, max(0, time - span), time), value, timestamp)
        case SessionStore():
            store.put(Windowed(key, max(0, time - span), time), value)
        case VersionedStore():
            store.put(key, value, time)


def random_puts(rnd: Random, count: int, *, first_ms: int, last_ms: int) -> Iterator[Put]:
    """Writes whose times go from the first to the last; some come late, some too late."""
    for n in range(count):
        behind = rnd.choice([0, 0, 0, 1, 59_999, 60_000, 99_999, 100_000, 100_001, 170_000, 250_000])
        yield Put(
            key=rnd.choice(KEYS),
            value=rnd.choice([None, b"", b"1", rnd.randbytes(20)]),
            time=max(0, first_ms + (last_ms - first_ms) * n // count - behind),
            span=rnd.choice([0, 1, 30_000]),
            timestamp=rnd.choice([-1, 0, n, END_OF_TIME]),
        )


def materialized(result: Any) -> Any:
    """A scan's rows, or the result as it is."""
    return list(result) if isinstance(result, Scan) else result


# -- oracles --------------------------------------------------------------------------------------------


@dataclass
class KeyValueOracle:
    """Values by key."""

    timestamped: bool
    rows: dict[bytes, ValueAndTimestamp] = field(default_factory=dict)

    def put(self, put: Put) -> None:
        if put.value is None:
            self.rows.pop(put.key, None)
        else:
            self.rows[put.key] = ValueAndTimestamp(put.value, put.timestamp)

    def answer(self, query: Query[Any]) -> Any:
        match query:
            case KeyQuery(key):
                return self.rows[key].value if key in self.rows else None
            case TimestampedKeyQuery(key):
                return self.rows.get(key)
            case RangeQuery(lower, upper, order):
                return [(key, stored.value) for key, stored in self.between(lower, upper, order)]
            case TimestampedRangeQuery(lower, upper, order):
                return self.between(lower, upper, order)
            case KeysQuery(keys):
                return [(key, self.shown(self.rows[key])) for key in keys if key in self.rows]
            case PrefixQuery(prefix, order):
                inside = self.between(prefix, None, order)
                return [(key, self.shown(stored)) for key, stored in inside if key.startswith(prefix)]
        raise AssertionError(query)

    def shown(self, stored: ValueAndTimestamp) -> bytes | ValueAndTimestamp:
        return stored if self.timestamped else stored.value

    def between(self, lower: bytes | None, upper: bytes | None, order: Order) -> list[tuple[bytes, ValueAndTimestamp]]:
        inside = (
            item
            for item in self.rows.items()
            if (lower is None or item[0] >= lower) and (upper is None or item[0] <= upper)
        )
        return sorted(inside, reverse=order is Order.DESCENDING)


@dataclass
class SegmentedOracle:
    """Windows by (key, start, sequence) or sessions by (key, end, start), and the largest time put so far."""

    sessions: bool
    timestamped: bool
    duplicates: bool
    rows: dict[tuple[bytes, int, int], ValueAndTimestamp] = field(default_factory=dict)
    stream_time: int = -1
    sequence: int = 0

    def put(self, put: Put) -> None:
        if self.duplicates and put.value is None:
            return
        self.sequence += self.duplicates
        if put.time // 60_000 < (self.stream_time - RETENTION) // 60_000:
            return  # the whole segment has expired
        self.stream_time = max(self.stream_time, put.time)
        row = (put.key, put.time, max(0, put.time - put.span) if self.sessions else self.sequence)
        if put.value is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = ValueAndTimestamp(put.value, put.timestamp)

    @property
    def hidden(self) -> int:
        """How many rows the retention hides."""
        return sum(time <= self.stream_time - RETENTION for _, time, _ in self.rows)

    def forget(self) -> None:
        """Drop what is hidden for good."""
        self.rows = {row: stored for row, stored in self.rows.items() if row[1] > self.stream_time - RETENTION}

    def answer(self, query: Query[Any]) -> Any:
        match query:
            case WindowKeyQuery(key, first, last, order):
                return [(row[1], value) for row, value in self.seen(first, last, order) if row[0] == key]
            case WindowRangeQuery(key, _, _, order) if self.sessions:
                return [
                    (Windowed(row[0], row[2], row[1]), value)
                    for row, value in self.seen(None, None, order)
                    if row[0] == key
                ]
            case SessionKeyQuery(key, first, last, order):
                return [
                    (Windowed(row[0], row[2], row[1]), value)
                    for row, value in self.seen(first, None, order)
                    if row[0] == key and (last is None or row[2] <= last)
                ]
            case SessionRangeQuery(first, last, order):
                inside = sorted(self.seen(first, last, order), reverse=order is Order.DESCENDING)
                return [(Windowed(row[0], row[2], row[1]), value) for row, value in inside]
            case WindowRangeQuery(None, first, last, order):
                return [
                    (Windowed(row[0], row[1], min(row[1] + SIZE, END_OF_TIME)), value)
                    for row, value in self.seen(first, last, order)
                ]
        raise AssertionError(query)

    def seen(
        self, first: int | None, last: int | None, order: Order
    ) -> list[tuple[tuple[bytes, int, int], bytes | ValueAndTimestamp]]:
        """Segment by segment of a minute; within one by the row key's bytes."""
        inside = [
            (row, stored if self.timestamped else stored.value)
            for row, stored in self.rows.items()
            if row[1] > self.stream_time - RETENTION
            and (first is None or row[1] >= first)
            and (last is None or row[1] <= last)
        ]
        suffix = struct.Struct(">qq" if self.sessions else ">qi")
        return sorted(
            inside,
            key=lambda item: (item[0][1] // 60_000, item[0][0] + suffix.pack(*item[0][1:])),
            reverse=order is Order.DESCENDING,
        )


@dataclass
class VersionOracle:
    """Values by key and time; a version ends where the next one begins."""

    values: dict[bytes, dict[int, bytes | None]] = field(default_factory=dict)
    stream_time: int = -1

    def put(self, put: Put) -> None:
        if put.time < self.floor:
            return
        self.stream_time = max(self.stream_time, put.time)
        self.values.setdefault(put.key, {})[put.time] = put.value

    @property
    def floor(self) -> int:
        return self.stream_time - RETENTION

    @property
    def hidden(self) -> int:
        """How many versions have ended before the history retention."""
        return sum(len(times) - len(self.kept(key)) for key, times in self.values.items())

    def forget(self) -> None:
        """Drop what is hidden for good."""
        self.values = {key: {time: self.values[key][time] for time, _ in self.kept(key)} for key in self.values}

    def answer(self, query: Query[Any]) -> Any:
        match query:
            case VersionedKeyQuery(key, as_of):
                return self.version(key, as_of)
            case VersionedKeysQuery(keys, as_of):
                return [(key, version) for key in keys if (version := self.version(key, as_of)) is not None]
            case VersionedRangeQuery(lower, upper, as_of, order):
                return [
                    (key, version)
                    for key, version in self.of_all_keys(as_of, order)
                    if (lower is None or key >= lower) and (upper is None or key <= upper)
                ]
            case VersionedPrefixQuery(prefix, as_of, order):
                return [(key, version) for key, version in self.of_all_keys(as_of, order) if key.startswith(prefix)]
            case MultiVersionedKeyQuery(key, first, last, order):
                found = [version for version in self.versions(key) if self.overlaps(version, first, last)]
                return found if order is Order.ASCENDING else found[::-1]
        raise AssertionError(query)

    def of_all_keys(self, as_of: int | None, order: Order) -> list[tuple[bytes, VersionedRecord]]:
        found = {key: version for key in self.values if (version := self.version(key, as_of)) is not None}
        return sorted(found.items(), reverse=order is Order.DESCENDING)

    def version(self, key: bytes, as_of: int | None) -> VersionedRecord | None:
        return next((version for version in self.versions(key) if self.is_valid(version, as_of)), None)

    def is_valid(self, version: VersionedRecord, as_of: int | None) -> bool:
        """Of history no time before the retention is answered; the latest version is, however old."""
        if as_of is None:
            return version.valid_to is None
        if version.valid_to is None:
            return version.timestamp <= as_of
        return max(version.timestamp, self.floor) <= as_of < version.valid_to

    def overlaps(self, version: VersionedRecord, first: int | None, last: int | None) -> bool:
        if first is not None and last is not None and first > last:
            return False
        until = 2**64 if last is None else last
        if version.valid_to is None:
            return version.timestamp <= until
        since = self.floor if first is None else max(first, self.floor)
        return since <= until and version.timestamp <= until and version.valid_to > since

    def versions(self, key: bytes) -> list[VersionedRecord]:
        """The versions that the retention still shows, the oldest first."""
        values = self.values.get(key, {})
        return [
            VersionedRecord(value, start, end) for start, end in self.kept(key) if (value := values[start]) is not None
        ]

    def kept(self, key: bytes) -> list[tuple[int, int | None]]:
        """Where versions and tombstones that the retention still shows begin and end."""
        times = sorted(self.values.get(key, ()))
        ends: list[int | None] = [*times[1:], None]
        return [(start, end) for start, end in zip(times, ends, strict=False) if end is None or end > self.floor]


Oracle: TypeAlias = KeyValueOracle | SegmentedOracle | VersionOracle


def oracle_of(store: TransactionalStore) -> Oracle:
    """An empty oracle for this kind of store."""
    match store:
        case WindowStore() | SessionStore():
            return SegmentedOracle(isinstance(store, SessionStore), store.timestamped, store.layout.retain_duplicates)
        case VersionedStore():
            return VersionOracle()
    return KeyValueOracle(store.timestamped)


# -- queries --------------------------------------------------------------------------------------------


def random_query(rnd: Random, kind: type[Any], times: list[int], *, sessions: bool = False) -> Query[Any]:
    """A query of this class that is about the data: its keys or a neighbour, `times` or beside."""
    key = rnd.choice([*KEYS, b"a\x01", b"\x00\x00"])
    lower, upper = (rnd.choice([None, *KEYS, b"a\x01", bytes(40), b"\xff" * 3]) for _ in range(2))
    first, last, as_of = (_time(rnd, times) for _ in range(3))
    order = rnd.choice(list(Order))
    arguments: tuple[object, ...]
    if kind in (KeyQuery, TimestampedKeyQuery):
        arguments = (key,)
    elif kind in (RangeQuery, TimestampedRangeQuery):
        arguments = (lower, upper, order)
    elif kind in (KeysQuery, VersionedKeysQuery):
        keys = tuple(rnd.sample([*KEYS, b"absent"], rnd.choice([1, 5])))
        arguments = (keys,) if kind is KeysQuery else (keys, as_of)
    elif kind in (PrefixQuery, VersionedPrefixQuery):
        prefix = rnd.choice([key, key[:1], b"c", b"a\x01"])
        arguments = (prefix, order) if kind is PrefixQuery else (prefix, as_of, order)
    elif kind is VersionedKeyQuery:
        arguments = (key, as_of)
    elif kind is VersionedRangeQuery:
        arguments = (lower, upper, as_of, order)
    elif kind is SessionRangeQuery:
        arguments = (first, last, order)
    elif kind is WindowRangeQuery:
        arguments = (key, None, None, order) if sessions else (None, first, last, order)
    else:
        arguments = (key, first, last, order)
    query: Query[Any] = kind(*arguments)
    return query


def _time(rnd: Random, times: list[int]) -> int | None:
    near = rnd.choice(times) + rnd.choice([-1, 0, 1, -RETENTION, 60_000]) if times else 0
    return rnd.choice([None, -1, 0, -(2**63), END_OF_TIME, 2**64, near, near, near, near, near])
