"""SegmentedStore: the base of window and session stores: rows in segments of time, and a retention.

    stored key := segment:i64 BE ‖ row key              on disk: never change
    row key    := key ‖ two numbers (`windowed_keys`)   the changelog's key too

The first of the two numbers is the row's time: the start of a window, the end of a session. It gives the segment, moves
stream time, and decides when the row expires (`segments`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import ClassVar, TypeAlias

from stateline_store.errors import DamagedDataError
from stateline_store.layout import Layout
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rows.segments import PREFIX, Segments
from stateline_store.rows.timestamped_rows import Key, join, values_of
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS
from stateline_store.scan import KeyRange, Scan, StoreIterator
from stateline_store.state_store import StoreContext
from stateline_store.stores.transactional_store import TransactionalStore

Changes: TypeAlias = Iterable[tuple[bytes, bytes | None, int]]


class RowPackers(dict[int, Callable[[int, bytes, int, int], bytes]]):
    """By the length of a key: a function that packs (segment, key, and the two numbers of its suffix) to a stored key.
    One call into C instead of five, on the hot path of every put. It raises `struct.error` for what does not fit."""

    def __init__(self, suffix: struct.Struct) -> None:
        super().__init__()
        self._numbers = suffix.format[1:]

    def __missing__(self, length: int) -> Callable[[int, bytes, int, int], bytes]:
        pack = struct.Struct(f">q{length}s{self._numbers}").pack
        if len(self) < 1000:  # lengths are few, or else keys are long and take their time anyway
            self[length] = pack
        return pack


class SegmentedStore(TransactionalStore):
    """A TransactionalStore whose rows expire. Each kind defines its row keys."""

    _segments: Segments
    _segment_width: ClassVar[int] = PREFIX.size
    _row_suffix: ClassVar[struct.Struct]
    _packers: ClassVar[RowPackers]

    def __init__(
        self,
        name: str,
        *,
        retention_ms: int,
        persistent: bool = True,
        headers: bool = False,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        super().__init__(name, persistent=persistent, headers=headers, tuning=tuning)
        self._segments = Segments.of_retention(retention_ms)
        self._retention_ms = retention_ms
        self._interval_ms = self._declared_interval_ms = self._segments.interval_ms
        self._dropped = 0

    @property
    def segments(self) -> Segments:
        """The retention and the segment interval, which readers need beside the rows."""
        return self._segments

    @property
    def layout(self) -> Layout:
        return Layout(self.kind, self.timestamped, self._declared_interval_ms, headers=self.headers)

    @property
    def dropped_records(self) -> int:
        """The number of puts since the opening that were dropped as late. A rollback does not change it."""
        return self._dropped

    def init(self, context: StoreContext) -> None:
        super().init(context)
        self._dropped = 0

    def with_segments(self, row_keys: Iterable[bytes]) -> list[bytes]:
        """Return the stored keys of these row keys, for `get_rows` and `put_rows`."""
        pack, interval = PREFIX.pack, self._interval_ms
        unpack, width = self._row_suffix.unpack_from, self._row_suffix.size
        return [pack(unpack(key, len(key) - width)[0] // interval) + key for key in row_keys]

    def rows_between(self, first_ms: int, last_ms: int) -> StoreIterator:
        """Scan (stored key, stored bytes) of the rows of these times and of others in their segments: staged over
        committed, by segment. The scan also has rows that reads hide, until a commit has removed them."""
        first, last = self._segments.id_of(max(first_ms, 0)), self._segments.id_of(min(last_ms, MAX_TIMESTAMP_MS))
        return self._own_reader().scan(KeyRange(PREFIX.pack(first), PREFIX.pack(last + 1)))

    def _take_layout(self, layout: Layout) -> None:
        self._interval_ms = layout.segment_interval_ms or self._declared_interval_ms
        self._segments = Segments(self._retention_ms, self._interval_ms)

    def restore(self, changes: Changes) -> None:
        """Stage changes of changelog records, the newest last. A change is left out if its segment has expired by the
        last of them. It moves stream time all the same.

        Raises `DamagedDataError` for a key that is none of this kind of store. Nothing is staged then.
        """
        self._open()
        if self.timestamped:
            changes = ((key, None if value is None else join(value, at), at) for key, value, at in changes)
        rows, newest_ms = self._restored(changes)
        self._buffer.take(rows)
        self._stream_time_ms = newest_ms

    def _restored(self, changes: Changes) -> tuple[dict[bytes, bytes | None], int]:
        """Return the rows of these changes that are still live after all of them, and the stream time then."""
        rows: dict[bytes, bytes | None] = {}
        oldest, newest = MAX_TIMESTAMP_MS, self._stream_time_ms
        # The hot path of a restore: over a million records a second, so no calls but the ones into C.
        pack, unpack, behind, interval = (
            PREFIX.pack,
            self._row_suffix.unpack_from,
            -self._row_suffix.size,
            self._interval_ms,
        )
        key: object = None
        try:
            for key, value, _ in changes:
                at_ms = unpack(key, behind)[0]
                if at_ms > newest:
                    newest = at_ms
                if at_ms < oldest:
                    oldest = at_ms
                rows[pack(at_ms // interval) + key] = value
        except (struct.error, TypeError) as error:
            raise DamagedDataError(f"{key!r:.100} is no key of {self._name}'s changelog: {error}.") from error
        if oldest < 0:
            raise DamagedDataError(
                f"The changelog of {self._name} has a key of time {oldest} ms: 0 or more is possible."
            )
        live = self._segments.oldest_live(newest)
        if oldest // interval < live:
            first = pack(live)
            rows = {key: value for key, value in rows.items() if key >= first}
        return rows, newest

    def _values_of(self, rows: Scan[tuple[Key, bytes]]) -> Scan[tuple[Key, bytes]]:
        return values_of(rows) if self.timestamped else rows

    def _is_too_late(self, at_ms: int) -> bool:
        return at_ms // self._interval_ms < self._segments.oldest_live(self._stream_time_ms)
