"""Stores as a processor gets them: typed values, for one task, on the worker's thread.

Reads see what this task has written, committed or not. A key or value that the store's serdes cannot write raises
`InvalidArgumentError`. A table's store is read-only. Times are milliseconds since the epoch. An iterator is a snapshot
made at the call. It can be closed (`with`), and shows a window or session until its retention is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from stateline.log.interface import Headers
from stateline.model.record_size import MAX_RECORD_BYTES, refuse_too_large
from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import keeps_headers, origin
from stateline.processing.records import check_headers
from stateline.stores import MILLISECOND, milliseconds
from stateline_store import (
    InvalidArgumentError,
    KeyValueStore,
    Scan,
    SessionStore,
    StateStore,
    TimestampedKeyValueStore,
    TimestampedSessionStore,
    TimestampedWindowStore,
    TopologyError,
    ValueAndTimestamp,
    VersionedRecord,
    VersionedStore,
    Windowed,
    WindowStore,
)
from stateline_store.rows.expiry import with_expiry
from stateline_store.rows.headers import join_headers, split_headers, without_headers
from stateline_store.rows.windowed_keys import session_key, window_key

_Store = TypeVar("_Store", bound=StateStore)
_Stored = TypeVar("_Stored")
_Typed = TypeVar("_Typed")


class Timestamped(NamedTuple):
    """A value and its timestamp, in milliseconds since the epoch."""

    value: Any
    timestamp: int


class WithHeaders(NamedTuple):
    """A value, its timestamp, and the headers of its record."""

    value: Any
    timestamp: int
    headers: Headers


class Version(NamedTuple):
    """A value that was valid from `timestamp` (included) to `valid_to` (excluded; None: until now)."""

    value: Any
    timestamp: int
    valid_to: int | None


class Window(NamedTuple):
    """A key, a window of it, and the value. A session ends at its last record's timestamp."""

    key: Any
    start_ms: int
    end_ms: int
    value: Any


class _View(Generic[_Store]):
    """The serdes, the size limit, and the timestamp and headers of the record that is processed."""

    def __init__(self, definition: StoreDefinition, store: _Store, *, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        """`max_record_bytes` limits key and value together in a store with a changelog."""
        self._definition, self._store = definition, store
        self._max_record_bytes = max_record_bytes
        self._key, self._value = definition.key, definition.value
        self._record_timestamp_ms = -1
        self._record_headers: Headers = ()
        self._headers = keeps_headers(store)
        self._is_written_here = definition.source is None and not definition.is_operators

    @property
    def name(self) -> str:
        """The store's name."""
        return self._definition.name

    def record_starts(self, timestamp_ms: int, headers: Headers = ()) -> None:
        """Set the timestamp and headers for writes. The runtime calls this before each record."""
        self._record_timestamp_ms, self._record_headers = timestamp_ms, headers

    def _writable(self, key: Any, value: Any, headers: Headers | None = None) -> tuple[bytes, bytes | None]:
        """Return key and value as bytes, the value with these headers, the record's for None, if the store keeps them.
        Refuses writes to a table, and values too large for the changelog."""
        if not self._is_written_here:
            raise self._written_elsewhere()
        data = None if value is None else self._value.serialize(value)
        if headers is not None:
            check_headers(headers)
            self._require_headers()
        raw_key, kept = self._key.serialize(key), self._record_headers if headers is None else headers
        if not self._headers:
            kept = ()
        if self._definition.logged:
            refuse_too_large(raw_key, data, self._max_record_bytes, kept)
        return raw_key, join_headers(data, kept) if data is not None and self._headers else data

    def _written_elsewhere(self) -> TopologyError:
        if self._definition.source is not None:
            return TopologyError(
                f"Store {self.name!r} is the table of topic {self._definition.source.name!r} and read-only here: "
                "write to the topic, or declare a store of the processor's own."
            )
        return TopologyError(
            f"Store {self.name!r} is written by an operator of the application's streams and read-only here: "
            "declare a store of the processor's own."
        )

    def _keep_tombstone(self, changelog_key: bytes, timestamp_ms: int | None, headers: Headers | None) -> None:
        """Have the changelog's record of a delete carry this timestamp and these headers, as the put of a value."""
        if keeps_headers(self._store):
            headers = self._record_headers if headers is None else headers
            self._store.keep_origins({changelog_key: origin(self._stamp(timestamp_ms), headers)})

    def _stamp(self, timestamp_ms: int | None) -> int:
        return self._record_timestamp_ms if timestamp_ms is None else timestamp_ms

    def _require_headers(self) -> None:
        if not self._headers:
            raise TopologyError(f"Store {self.name!r} keeps no headers: declare it with headers=True.")

    def _deserialize(self, data: bytes) -> Any:
        return self._value.deserialize(without_headers(data) if self._headers else data)

    def _read(self, data: bytes | None) -> Any:
        return None if data is None else self._deserialize(data)

    def _read_with_headers(self, found: ValueAndTimestamp | None) -> WithHeaders | None:
        if found is None:
            return None
        value, headers = split_headers(found.value)
        return WithHeaders(self._value.deserialize(value), found.timestamp, headers)

    def _read_stamped(self, found: ValueAndTimestamp | None) -> Timestamped | None:
        return None if found is None else Timestamped(self._deserialize(found.value), found.timestamp)

    def _optional_key(self, key: Any) -> bytes | None:
        return None if key is None else self._key.serialize(key)

    def _entry(self, row: tuple[bytes, bytes]) -> tuple[Any, Any]:
        return self._key.deserialize(row[0]), self._deserialize(row[1])

    def _window(self, row: tuple[Windowed, bytes]) -> Window:
        (key, start_ms, end_ms), data = row
        return Window(self._key.deserialize(key), start_ms, end_ms, self._deserialize(data))


class StoreView(_View[KeyValueStore]):
    """A key-value store, with timestamps or without."""

    def __init__(
        self, definition: StoreDefinition, store: KeyValueStore, *, max_record_bytes: int = MAX_RECORD_BYTES
    ) -> None:
        super().__init__(definition, store, max_record_bytes=max_record_bytes)
        self._stamped = store if isinstance(store, TimestampedKeyValueStore) else None

    def get(self, key: Any) -> Any:
        """Return the value, or None if the key is absent."""
        return self._read(self._store.get(self._key.serialize(key)))

    def get_with_timestamp(self, key: Any) -> Timestamped | None:
        """Return value and timestamp, or None if the key is absent. Only for a timestamped store."""
        if self._stamped is None:
            raise _no_timestamps(self.name, "stores.timestamped_key_value")
        return self._read_stamped(self._stamped.get_with_timestamp(self._key.serialize(key)))

    def get_with_headers(self, key: Any) -> WithHeaders | None:
        """Return value, timestamp and headers, or None if the key is absent. Only for a store with headers."""
        self._require_headers()
        assert self._stamped is not None, "a store with headers has timestamps"
        return self._read_with_headers(self._stamped.get_with_timestamp(self._key.serialize(key)))

    def put(
        self,
        key: Any,
        value: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        ttl: timedelta | None = None,
    ) -> None:
        """Stage a value (None deletes), with the record's timestamp and headers unless others are given. With `ttl` the
        entry expires when stream time is that much past its timestamp. Only for a store with ``own_ttl=True``."""
        if ttl is not None and value is not None:
            headers = self._expiring(headers, self._stamp(timestamp_ms), ttl)
        raw_key, data = self._writable(key, value, headers)
        if self._stamped is not None:
            self._stamped.put_with_timestamp(raw_key, data, self._stamp(timestamp_ms))
            if data is None:
                self._keep_tombstone(raw_key, timestamp_ms, headers)
        else:
            self._store.put(raw_key, data)

    def delete(self, key: Any) -> None:
        """Stage the removal of a key. The key may be absent."""
        self.put(key, None)

    def put_if_absent(
        self,
        key: Any,
        value: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        ttl: timedelta | None = None,
    ) -> Any:
        """Stage the value if the key is absent, as `put`. Returns the value found, None if there was none."""
        found = self.get(key)
        if found is None:
            self.put(key, value, timestamp_ms=timestamp_ms, headers=headers, ttl=ttl)
        return found

    def range(self, lower: Any = None, upper: Any = None, *, reverse: bool = False) -> Scan[tuple[Any, Any]]:
        """Return (key, value) from `lower` to `upper`, both inclusive, None open, in the order of serialized keys."""
        rows = self._store.range(self._optional_key(lower), self._optional_key(upper), reverse=reverse)
        return _each(rows, self._entry)

    def _expiring(self, headers: Headers | None, timestamp_ms: int, ttl: timedelta) -> Headers:
        """Return these headers, the record's for None, with the expiry of an entry."""
        if not self._definition.own_ttl:
            raise TopologyError(f"Store {self.name!r}: ttl={ttl!r} needs a store that is declared with own_ttl=True.")
        ttl_ms = milliseconds("ttl", ttl, least=MILLISECOND)
        if timestamp_ms < 0:
            raise InvalidArgumentError(f"Store {self.name!r}: ttl={ttl!r} needs a timestamp, not {timestamp_ms}.")
        return with_expiry(self._record_headers if headers is None else headers, timestamp_ms + ttl_ms)


class WindowView(_View[WindowStore]):
    """A window store, with timestamps or without."""

    def put(
        self,
        key: Any,
        value: Any,
        window_start_ms: int,
        *,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Stage the value of a window (None deletes). If it is older than the retention, it is dropped and counted."""
        raw_key, data = self._writable(key, value, headers)
        if isinstance(self._store, TimestampedWindowStore):
            self._store.put_with_timestamp(raw_key, data, self._stamp(timestamp_ms), window_start_ms)
            if data is None:
                self._keep_tombstone(window_key(raw_key, window_start_ms), timestamp_ms, headers)
        else:
            self._store.put(raw_key, data, window_start_ms)

    def get(self, key: Any, window_start_ms: int) -> Any:
        """Return the value of one window, or None."""
        return self._read(self._store.fetch_one(self._key.serialize(key), window_start_ms))

    def get_with_timestamp(self, key: Any, window_start_ms: int) -> Timestamped | None:
        """Return value and timestamp of one window, or None. Only for a timestamped store."""
        return self._read_stamped(self._stamped().fetch_one_with_timestamp(self._key.serialize(key), window_start_ms))

    def get_with_headers(self, key: Any, window_start_ms: int) -> WithHeaders | None:
        """Return value, timestamp and headers of one window, or None. Only for a store with headers."""
        self._require_headers()
        found = self._stamped().fetch_one_with_timestamp(self._key.serialize(key), window_start_ms)
        return self._read_with_headers(found)

    def fetch(self, key: Any, time_from: int, time_to: int, *, reverse: bool = False) -> Scan[tuple[int, Any]]:
        """Return (start, value) of the key's windows that start from `time_from` to `time_to`, both inclusive, by
        time."""
        rows = self._store.fetch(self._key.serialize(key), time_from, time_to, reverse=reverse)
        return _each(rows, lambda row: (row[0], self._deserialize(row[1])))

    def fetch_with_timestamp(
        self, key: Any, time_from: int, time_to: int, *, reverse: bool = False
    ) -> Scan[tuple[int, Timestamped]]:
        """Return (start, (value, timestamp)) of the windows of `fetch`. Only for a timestamped store."""
        rows = self._stamped().fetch_with_timestamp(self._key.serialize(key), time_from, time_to, reverse=reverse)
        return _each(rows, lambda row: (row[0], Timestamped(self._deserialize(row[1].value), row[1].timestamp)))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> Scan[Window]:
        """Return every key's windows that start from `time_from` to `time_to`, both inclusive, segment by segment of
        the store: roughly by time. Within a segment they are in the order of serialized keys."""
        return _each(self._store.fetch_all(time_from, time_to, reverse=reverse), self._window)

    def all(self, *, reverse: bool = False) -> Scan[Window]:
        """Return every window of every key, in the order of `fetch_all`."""
        return _each(self._store.all(reverse=reverse), self._window)

    def _stamped(self) -> TimestampedWindowStore:
        if not isinstance(self._store, TimestampedWindowStore):
            raise _no_timestamps(self.name, "stores.window(…, timestamped=True)")
        return self._store


class SessionView(_View[SessionStore]):
    """A session store, with timestamps or without."""

    def put(
        self,
        key: Any,
        start_ms: int,
        end_ms: int,
        value: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Stage the aggregate of a session (None removes it). If it ended before the retention, it is dropped and
        counted."""
        raw_key, data = self._writable(key, value, headers)
        session = Windowed(raw_key, start_ms, end_ms)
        if isinstance(self._store, TimestampedSessionStore):
            self._store.put_with_timestamp(session, data, self._stamp(timestamp_ms))
        else:
            self._store.put(session, data)
        if data is None:
            self._keep_tombstone(session_key(*session), timestamp_ms, headers)

    def remove(self, key: Any, start_ms: int, end_ms: int) -> None:
        """Stage the removal of a session. It may be absent, and if it is too old it is not counted as dropped."""
        session = Windowed(self._writable(key, None)[0], start_ms, end_ms)
        self._store.remove(session)
        self._keep_tombstone(session_key(*session), None, None)

    def get(self, key: Any, start_ms: int, end_ms: int) -> Any:
        """Return the aggregate of one session, or None."""
        return self._read(self._store.fetch_session(self._key.serialize(key), start_ms, end_ms))

    def get_with_timestamp(self, key: Any, start_ms: int, end_ms: int) -> Timestamped | None:
        """Return aggregate and timestamp of one session, or None. Only for a timestamped store."""
        return self._read_stamped(self._with_timestamp(key, start_ms, end_ms))

    def get_with_headers(self, key: Any, start_ms: int, end_ms: int) -> WithHeaders | None:
        """Return aggregate, timestamp and headers of one session, or None. Only for a store with headers."""
        self._require_headers()
        return self._read_with_headers(self._with_timestamp(key, start_ms, end_ms))

    def _with_timestamp(self, key: Any, start_ms: int, end_ms: int) -> ValueAndTimestamp | None:
        if not isinstance(self._store, TimestampedSessionStore):
            raise _no_timestamps(self.name, "stores.session(…, timestamped=True)")
        return self._store.fetch_session_with_timestamp(self._key.serialize(key), start_ms, end_ms)

    def find_sessions(
        self, key: Any, earliest_end_ms: int, latest_start_ms: int, *, reverse: bool = False
    ) -> Scan[Window]:
        """Return the key's sessions that end at `earliest_end_ms` or later and start at `latest_start_ms` or earlier,
        by end. To find those to merge with a record, give its timestamp less and plus the gap."""
        found = self._store.find_sessions(self._key.serialize(key), earliest_end_ms, latest_start_ms, reverse=reverse)
        return _each(found, self._window)

    def fetch(self, key: Any, *, reverse: bool = False) -> Scan[Window]:
        """Return all sessions of a key, by end."""
        return _each(self._store.fetch(self._key.serialize(key), reverse=reverse), self._window)

    def all(self, *, reverse: bool = False) -> Scan[Window]:
        """Return every session of every key, segment by segment: roughly by end. Within a segment they are in the order
        of serialized keys."""
        return _each(self._store.all(reverse=reverse), self._window)


class VersionedView(_View[VersionedStore]):
    """A versioned store."""

    def put(self, key: Any, value: Any, *, timestamp_ms: int | None = None) -> None:
        """Stage a version (None: no value from then on), valid from the record's timestamp unless another is given. If
        it is older than the history, it is dropped and counted."""
        raw_key, data = self._writable(key, value)
        self._store.put(raw_key, data, self._stamp(timestamp_ms))

    def delete(self, key: Any, *, timestamp_ms: int | None = None) -> None:
        """Stage the end of a key's validity."""
        self.put(key, None, timestamp_ms=timestamp_ms)

    def get(self, key: Any, *, as_of: int | None = None) -> Version | None:
        """Return the newest version, or the one that was valid at `as_of`; None if there was no value."""
        raw_key = self._key.serialize(key)
        found = self._store.get(raw_key) if as_of is None else self._store.get_as_of(raw_key, as_of)
        return None if found is None else self._version(found)

    def versions(
        self, key: Any, time_from: int | None = None, time_to: int | None = None, *, ascending: bool = False
    ) -> Scan[Version]:
        """Return the versions that were valid at some time from `time_from` to `time_to`, by default the newest
        first."""
        found = self._store.get_versions(self._key.serialize(key), time_from, time_to, ascending=ascending)
        return _each(found, self._version)

    def _version(self, found: VersionedRecord) -> Version:
        return Version(self._deserialize(found.value), found.timestamp, found.valid_to)


AnyView: TypeAlias = StoreView | WindowView | SessionView | VersionedView


def view_of(definition: StoreDefinition, store: StateStore, max_record_bytes: int) -> AnyView | None:
    """Return the view of a store. None for an application's own store, which processors get as it is."""
    if definition.factory is not None:
        return None
    match store:
        case KeyValueStore():
            return StoreView(definition, store, max_record_bytes=max_record_bytes)
        case WindowStore():
            return WindowView(definition, store, max_record_bytes=max_record_bytes)
        case SessionStore():
            return SessionView(definition, store, max_record_bytes=max_record_bytes)
        case VersionedStore():
            return VersionedView(definition, store, max_record_bytes=max_record_bytes)
    return None


def _no_timestamps(name: str, declare: str) -> TopologyError:
    return TopologyError(f"Store {name!r} keeps no timestamps: declare it with {declare}.")


def _each(rows: Scan[_Stored], typed: Callable[[_Stored], _Typed]) -> Scan[_Typed]:
    """Return a scan of these rows, typed. Closing it closes `rows`."""

    def typed_rows() -> Generator[_Typed, None, None]:
        with rows:
            for row in rows:
                yield typed(row)

    return Scan(typed_rows())
