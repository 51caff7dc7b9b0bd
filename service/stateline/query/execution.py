"""How a query is executed on one partition's Reader, and how the entries of several partitions become one answer.

Synchronous and pure: a query never writes, and the reader must not move while it is executed. A scan that has more than
it may give is left open; whoever asks for its rest gets the state that the first entries came from. The same code
answers in the server (secondaries), in the worker (uncommitted state, stores in memory) and wherever else a Reader is
at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from operator import itemgetter
from typing import Any

from stateline.query.values import (
    MAX_RESULT_BYTES,
    Answer,
    CopyStatus,
    CountQuery,
    Entry,
    Failure,
    KeyQuery,
    KeysQuery,
    Outcome,
    PositionQuery,
    Query,
    RangeQuery,
    Rows,
    ScanQuery,
    SessionsQuery,
    Terms,
    VersionsQuery,
    WindowsQuery,
)
from stateline_store import (
    InvalidArgumentError,
    NotActiveError,
    NotUpToBoundError,
    Reader,
    Scan,
    SessionReads,
    StoreSchema,
    UnknownQueryTypeError,
    VersionedReads,
    VersionedRecord,
    Windowed,
    WindowIterator,
    WindowReads,
    window_end_ms,
)
from stateline_store.scan import LARGEST_CHUNK, LARGEST_CHUNK_BYTES
from stateline_store.segments import Segments
from stateline_store.windowed_keys import MAX_TIMESTAMP_MS, window_key

# Which queries a kind of store answers, in words for who asked for another.
ANSWERED: dict[str, tuple[type[Query], ...]] = {
    "key_value": (KeyQuery, KeysQuery, RangeQuery),
    "window": (WindowsQuery,),
    "session": (SessionsQuery,),
    "versioned": (KeyQuery, KeysQuery, VersionsQuery),
}
ANSWERED |= {f"timestamped_{kind}": ANSWERED[kind] for kind in ("key_value", "window", "session")}
_OF_EVERY_KIND = (CountQuery, PositionQuery)
_WORDS: dict[type[Query], str] = {
    KeyQuery: "key",
    KeysQuery: "keys",
    RangeQuery: "range",
    WindowsQuery: "windows",
    SessionsQuery: "sessions",
    VersionsQuery: "versions",
}

_NAME, _VALUE = itemgetter(0), itemgetter(1)

# Chunks that are read at a time, of which few or no rows may be asked for: a few milliseconds, after which others have
# their turn.
MAX_CHUNKS = 8


class OpenScan:
    """A scan that was begun: the `Rest` of itself. For the thread of its reader, whose refreshes do not move it."""

    def __init__(self, scan: Scan[Entry]) -> None:
        self._scan = scan
        self._chunks = scan.chunks()
        self._ahead: list[Entry] = []
        self._at = 0  # in what was read ahead

    @property
    def held_bytes(self) -> int:
        """About how many bytes were read ahead."""
        return size_of(self._ahead[self._at :])

    def rows(self, limit: int) -> Rows:
        """The next entries: `limit` of them at most, not many more bytes than `MAX_RESULT_BYTES`, and fewer, or none,
        when many rows were looked at. Without a rest there are none after them, and the scan is closed.
        """
        entries: list[Entry] = []
        size = 0
        for _ in range(MAX_CHUNKS):
            if self._at >= len(self._ahead):
                chunk = next(self._chunks, None)
                if chunk is None:
                    self.close()
                    return Rows(entries)
                self._ahead, self._at = chunk, 0
            if self._at < len(self._ahead) and (len(entries) >= limit or size >= MAX_RESULT_BYTES):
                break
            wanted = self._ahead[self._at : self._at + limit - len(entries)]
            taken, taken_bytes = up_to_bytes(wanted, MAX_RESULT_BYTES - size)
            self._at += len(taken)
            entries += taken
            size += taken_bytes
        return Rows(entries, rest=self)

    async def more(self, limit: int) -> Rows:
        """As `rows`."""
        return self.rows(limit)

    def close(self) -> None:
        """Let go of the state. It has no more entries then."""
        self._ahead, self._at = [], 0
        self._scan.close()


def check_kind(query: Query, store: str, kind: str) -> None:
    """Raise `UnknownQueryTypeError`, which names the kind as it is given, when a store of this kind cannot answer."""
    check_type(type(query), store, kind)
    if isinstance(query, KeyQuery | KeysQuery) and query.as_of is not None and kind != "versioned":
        raise _unable(store, kind, "as_of")


def check_type(asked: type[Query], store: str, kind: str) -> None:
    """As `check_kind`, of queries of this type."""
    if asked not in ANSWERED[kind] and asked not in _OF_EVERY_KIND:
        raise _unable(store, kind, repr(_WORDS[asked]))


def _unable(store: str, kind: str, asked: str) -> UnknownQueryTypeError:
    words = ", ".join(_WORDS[each] for each in ANSWERED[kind])
    return UnknownQueryTypeError(
        f"The store {store!r} is of kind {kind} and cannot answer {asked}: ask for {words} or count."
    )


def execute(
    query: Query, reader: Reader, schema: StoreSchema, partition: int, terms: Terms, copy: CopyStatus
) -> Outcome:
    """Answer a query from one partition, or say why not. Synchronous: the reader must not move meanwhile.

    The bound is checked against the reader's own position: what it has committed, or, when it reads
    uncommitted records, that merged with what is pending. A scan that has more to give is the asker's, as an
    `OpenScan` in the rows' `rest`. Errors of the store itself pass through.
    """
    check_kind(query, terms.store, schema.kind)
    if terms.require_active and copy.served_by != "active":
        return Failure(_not_active(terms.store, partition, copy), reader.position)
    position = reader.position
    if not terms.bound.is_met(position, partition):
        return Failure(_behind(terms.store, partition), position)
    return Answer(_read(query, reader, schema), position, copy)


def _read(query: Query, reader: Reader, schema: StoreSchema) -> Rows:
    match query:
        case KeyQuery(key, as_of):
            value = _value(reader, schema, key, as_of)
            return Rows() if value is None else Rows(((key, value),))
        case KeysQuery(keys, as_of):
            return Rows(_values(reader, schema, keys, as_of))
        case CountQuery():
            return Rows(count=reader.approximate_num_entries())
        case PositionQuery():
            return Rows()
        case _:
            return _first_rows(query, reader, schema)


def _value(reader: Reader, schema: StoreSchema, key: bytes, as_of: int | None) -> bytes | VersionedRecord | None:
    if schema.kind != "versioned":
        return reader.get(key)
    reads = VersionedReads(reader, _segments(schema))
    return reads.get(key) if as_of is None else reads.get_as_of(key, as_of)


def _values(reader: Reader, schema: StoreSchema, keys: tuple[bytes, ...], as_of: int | None) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    for key in keys:
        value = _value(reader, schema, key, as_of)
        if value is not None:
            found.append((key, value))
            size += size_of(found[-1:])
            refuse_too_large(size)
    return found


def refuse_too_large(size: int) -> None:
    """Raise `InvalidArgumentError` where the entries of many keys have too many bytes for one answer."""
    if size > MAX_RESULT_BYTES * 4:
        raise InvalidArgumentError(f"The values of these keys have more than {size} bytes: ask for fewer keys.")


def _first_rows(query: ScanQuery, reader: Reader, schema: StoreSchema) -> Rows:
    of_all_keys = isinstance(query, WindowsQuery) and query.key is None
    interval_ms = _segments(schema).interval_ms if of_all_keys else 0
    scan = _scan(query, reader, schema)
    if scan is None:
        return Rows(interval_ms=interval_ms)
    try:
        return replace(OpenScan(scan).rows(query.limit), interval_ms=interval_ms)
    except BaseException:
        scan.close()
        raise


def _scan(query: ScanQuery, reader: Reader, schema: StoreSchema) -> Scan[Any] | None:
    """The scan that a query asks for; None for one that cannot find anything."""
    match query:
        case RangeQuery(lower, upper, None, reverse):
            if lower is not None and upper is not None and lower > upper:
                return None  # the reader would say the same, with a warning in the log for each such request
            return reader.range(lower, upper, reverse=reverse)
        case RangeQuery(prefix=prefix, reverse=reverse):
            assert prefix is not None
            return reader.prefix_scan(prefix, reverse=reverse)
        case WindowsQuery(key, time_from, time_to, reverse):
            windows = WindowReads(
                reader, _segments(schema), schema.window_size_ms, retain_duplicates=schema.retain_duplicates
            )
            first, last = _times(time_from, time_to)
            if key is None:
                return windows.fetch_all(first, last, reverse=reverse)
            return Scan.of_chunks(_of_key(key, schema.window_size_ms, windows.fetch(key, first, last, reverse=reverse)))
        case SessionsQuery(key, time_from, time_to, reverse):
            sessions = SessionReads(reader, _segments(schema))
            return sessions.find_sessions(key, *_times(time_from, time_to), reverse=reverse)
        case VersionsQuery(key, time_from, time_to, reverse):
            versions = VersionedReads(reader, _segments(schema))
            return Scan.of_chunks(_with_key(key, versions.get_versions(key, time_from, time_to, ascending=not reverse)))


def _of_key(key: bytes, size_ms: int, windows: WindowIterator) -> Generator[list[tuple[Windowed, bytes]], None, None]:
    with windows:
        for chunk in windows.chunks():
            yield [(Windowed(key, start_ms, window_end_ms(start_ms, size_ms)), value) for start_ms, value in chunk]


def _with_key(
    key: bytes, versions: Scan[VersionedRecord]
) -> Generator[list[tuple[bytes, VersionedRecord]], None, None]:
    with versions:
        chunk, size = list[tuple[bytes, VersionedRecord]](), 0
        for version in versions:
            chunk.append((key, version))
            size += len(version.value)
            if size >= LARGEST_CHUNK_BYTES or len(chunk) == LARGEST_CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _times(time_from: int | None, time_to: int | None) -> tuple[int, int]:
    return 0 if time_from is None else time_from, MAX_TIMESTAMP_MS if time_to is None else time_to


def _segments(schema: StoreSchema) -> Segments:
    assert schema.segments is not None, f"a {schema.kind} store has segments"
    return schema.segments


def size_of(entries: list[Entry]) -> int:
    """About how many bytes entries of one scan have."""
    if not entries:
        return 0
    names: Any = map(_NAME, entries)
    values: Any = map(_VALUE, entries)
    if isinstance(entries[0][0], Windowed):
        names = (windowed.key for windowed in names)
    elif isinstance(entries[0][1], VersionedRecord):
        values = (version.value for version in values)
    return sum(map(len, names)) + sum(map(len, values))  # the times of an entry are not counted


def up_to_bytes(entries: list[Entry], most: int) -> tuple[list[Entry], int]:
    """The first of these entries, and how many bytes these have: all when they have no more, else until they have
    reached as many."""
    size = size_of(entries)
    if size <= most:
        return entries, size
    size = count = 0
    while size < most:
        size += size_of(entries[count : count + 1])
        count += 1
    return entries[:count], size


def sort_key(query: ScanQuery, intervals_ms: set[int]) -> Callable[[Any], Any] | None:
    """What orders the entries of all partitions as each of them has its own, up or down.

    `intervals_ms` are those of the partitions. None when they differ, because the retention was changed: then the
    partitions' entries have no common order.
    """
    match query:
        case RangeQuery():
            return _NAME
        case WindowsQuery(key=None):
            if len(intervals_ms) > 1:
                return None
            interval_ms = next(iter(intervals_ms), 1) or 1
            # By the row's own bytes: of keys of which one begins with another they are not in the order of the keys.
            return lambda entry: (entry[0].start_ms // interval_ms, window_key(entry[0].key, entry[0].start_ms))
        case WindowsQuery():
            return lambda entry: entry[0].start_ms
        case SessionsQuery():
            return lambda entry: (entry[0].end_ms, entry[0].start_ms)
        case VersionsQuery():
            return lambda entry: entry[1].timestamp


def _behind(store: str, partition: int) -> NotUpToBoundError:
    return NotUpToBoundError(
        f"Partition {partition} of {store!r} is still behind position_bound: wait longer (wait_ms), ask "
        "again, or ask with a lower bound."
    )


def _not_active(store: str, partition: int, copy: CopyStatus) -> NotActiveError:
    return NotActiveError(
        f"Partition {partition} of {store!r} is {copy.served_by} here: ask again in a moment, or without "
        "require_active."
    )
