"""VersionedWrites: which rows of a key a new version changes, and how. The counterpart of `versioned_reads`.

A version becomes the latest, or goes into the row of the segment in which its validity ends, where its neighbours may
have to be cut short or to move. The semantics are those of Kafka Streams' `RocksDBVersionedStore`, but for what
`versioned_store` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeAlias

from stateline_store.reads.versioned_reads import VersionedReads
from stateline_store.rows.segments import PREFIX, Segments
from stateline_store.rows.timestamped_rows import TIMESTAMP, join
from stateline_store.rows.versioned_rows import LATEST, Version, append, bounds, new_row, versions
from stateline_store.rows.versioned_rows import join as join_row

_Rows: TypeAlias = dict[bytes, bytes | None]


class VersionedWrites:
    """The writes of one opening of a store, over its own reads. Not thread-safe."""

    def __init__(
        self,
        reads: VersionedReads,
        segments: Segments,
        get: Callable[[bytes], bytes | None],
        get_rows: Callable[[Sequence[bytes]], list[bytes | None]],
        stage: Callable[[bytes, bytes | None], None],
        stage_rows: Callable[[dict[bytes, bytes | None]], None],
        advance: Callable[[int], None],
    ) -> None:
        """Write stored bytes by `stage` and `stage_rows`, and read them, staged ones included, by `get` and `get_rows`.
        `advance` moves the store's stream time up to a timestamp."""
        self._reads = reads
        self._segments = segments
        self._get, self._get_rows = get, get_rows
        self._stage, self._stage_rows, self._advance = stage, stage_rows, advance

    def put_all(self, puts: Sequence[tuple[bytes, bytes | None, int]]) -> None:
        """Advance stream time to each version and stage it, in this order; none is late then. Values that become
        the latest of their key, the usual case, take half as long as by `put`."""
        latest_keys = [LATEST + key for key, _, _ in puts]
        wanted = list(dict.fromkeys(latest_keys))
        rows = dict(zip(wanted, self._get_rows(wanted), strict=True))
        rows |= self._rows_to_extend(puts, latest_keys, rows)
        read_time, write_time, segment_key = TIMESTAMP.unpack_from, TIMESTAMP.pack, PREFIX.pack
        interval_ms, width = self._segments.interval_ms, TIMESTAMP.size
        made: dict[bytes, bytes | None] = {}
        put_alone: set[bytes] = set()  # `rows` does not have what became of these keys
        newest = -1
        for (key, value, timestamp), latest_key in zip(puts, latest_keys, strict=True):
            latest = rows[latest_key]
            if timestamp > newest:
                newest = timestamp
            before = -1 if latest is None or len(latest) < width else read_time(latest)[0]
            if value is None or latest is None or not 0 <= before < timestamp or key in put_alone:
                if latest_key in made:
                    self._stage_rows(made)
                    made = {}
                put_alone.add(key)
                self._advance(newest)  # what `put` finds depends on it
                self.put(key, value, timestamp)
                continue
            row_key = segment_key(timestamp // interval_ms) + key
            row, old = rows.get(row_key), latest[width:]
            ended = new_row(before, old, timestamp) if row is None else append(row, before, old, timestamp)
            made[row_key] = rows[row_key] = ended
            made[latest_key] = rows[latest_key] = write_time(timestamp) + value
        self._advance(newest)
        self._stage_rows(made)

    def _rows_to_extend(
        self, puts: Sequence[tuple[bytes, bytes | None, int]], latest_keys: Sequence[bytes], rows: _Rows
    ) -> _Rows:
        """Return the rows of the segments in which the puts' latest values end. A key's versions end at the time of its
        latest value or before it. So a later segment than that time's has no row of the key, and is not looked up."""
        read_time, interval_ms, width = TIMESTAMP.unpack_from, self._segments.interval_ms, TIMESTAMP.size
        wanted = {
            self._row_key(key, timestamp): None
            for (key, _, timestamp), latest_key in zip(puts, latest_keys, strict=True)
            if (latest := rows[latest_key]) is None
            or len(latest) < width
            or read_time(latest)[0] // interval_ms >= timestamp // interval_ms
        }
        return dict(zip(wanted, self._get_rows([*wanted]), strict=True)) if wanted else {}

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int | None:
        """Stage a version that is not late, None for a tombstone. Returns the end of its validity, None for the latest.
        Its segment, and so every segment that it touches, is live."""
        latest = self._reads.get(key)
        if latest is not None and timestamp > latest.timestamp:
            self._append(key, latest.timestamp, latest.value, timestamp)
        if latest is not None and timestamp >= latest.timestamp:
            self._put_latest(key, value, timestamp)
            return None
        valid_to = None if latest is None else latest.timestamp
        covering: tuple[int, bytes] | None = None
        # Closed before anything is staged, which an open scan would copy.
        with closing(self._reads.rows(key, timestamp)) as rows:
            for segment, row in rows:
                oldest = bounds(row)[1]
                if oldest <= timestamp:
                    covering = segment, row
                    break
                valid_to = oldest
        if covering is not None:
            return self._put_inside(*covering, key, value, timestamp)
        if valid_to is None:
            self._put_latest(key, value, timestamp)
        else:
            self._put_before(valid_to, key, value, timestamp)
        return valid_to

    def _put_latest(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Put the key's newest version. The versions before it have been moved to segments."""
        if value is not None:
            self._stage(LATEST + key, join(value, timestamp))
            return
        self._stage(LATEST + key, None)  # even when there is none: a commit with nothing staged would leave the log
        # The end of a row is the tombstone: make a row in this segment end here, when none does.
        at = self._row_key(key, timestamp)
        row = self._get(at)
        if row is None:
            self._stage(at, new_row(timestamp, None, timestamp))
        elif bounds(row)[0] < timestamp:
            self._stage(at, append(row, bounds(row)[0], None, timestamp))

    def _put_inside(self, segment: int, row: bytes, key: bytes, value: bytes | None, timestamp: int) -> int:
        """Put a version into the row that holds the version valid at `timestamp`."""
        newest_first = versions(row)
        place = next(index for index, version in enumerate(newest_first) if version.timestamp <= timestamp)
        found = newest_first[place]
        put = Version(timestamp, value, found.valid_to)
        if found.timestamp == timestamp:
            newest_first[place] = put
        elif self._segments.id_of(timestamp) == segment:
            newest_first[place : place + 1] = [put, found._replace(valid_to=timestamp)]
        else:  # what was valid there ends in an older segment now
            self._append(key, found.timestamp, found.value, timestamp)
            newest_first[place] = put
        self._stage(PREFIX.pack(segment) + key, join_row(newest_first))
        return found.valid_to

    def _put_before(self, valid_to: int, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Put a version before the next one, which begins at `valid_to`. No version is valid at `timestamp`."""
        at = self._row_key(key, valid_to)
        row = self._get(at)
        if row is None or bounds(row)[0] <= timestamp:
            self._append(key, timestamp, value, valid_to)
            return
        ends, oldest = bounds(row)
        put = Version(timestamp, value, valid_to)
        # A degenerate row's tombstone is told by the end of any row.
        self._stage(at, join_row([put] if ends == oldest else [*versions(row), put]))

    def _append(self, key: bytes, timestamp: int, value: bytes | None, valid_to: int) -> None:
        """Add the newest version of the segment in which its validity ends."""
        at = self._row_key(key, valid_to)
        row = self._get(at)
        self._stage(at, new_row(timestamp, value, valid_to) if row is None else append(row, timestamp, value, valid_to))

    def _row_key(self, key: bytes, valid_to: int) -> bytes:
        return PREFIX.pack(self._segments.id_of(valid_to)) + key
