"""Choose the records of one poll and one slice, from the time and memory of earlier ones. Pure.

Slices are short, because queries, commits and a stop wait for their end. The records of a poll are processed before the
next poll, because the group drops a worker that does not poll.
"""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.processing.reading import size_of

# A slice aims at this long: the most that an uncommitted query waits for, apart from a commit.
SLICE_S = 0.004
# A poll's records should be processed within about this time.
POLL_S = 0.4
SLICE_BYTES = 1024 * 1024
POLL_BYTES = 16 * 1024 * 1024
# A slice should stage at most this much: processors may put far more than their records have.
SLICE_GROWTH_BYTES = 8 * 1024 * 1024
_MAX_SLICE_RECORDS, _MAX_POLL_RECORDS = 5_000, 4_000  # a poll takes a microsecond per record, too


class SlicePace:
    """Learns from the slices so far. Begins with few records, because a record may take long or be large."""

    def __init__(self) -> None:
        self.records = 16
        self._record_bytes = POLL_BYTES // 500
        self._growth = 0

    @property
    def poll_records(self) -> int:
        by_time = int(self.records * POLL_S / SLICE_S)
        by_memory = POLL_BYTES // max(self._record_bytes, 1)
        return max(1, min(by_time, by_memory, _MAX_POLL_RECORDS))

    def cut(self, records: Sequence[Record], at: int) -> tuple[Sequence[Record], int]:
        """Return the next slice from `at` on, of at least one record, and its size in bytes."""
        slice_ = records[at : at + self.records]
        size = size_of(slice_)
        while size > SLICE_BYTES and len(slice_) > 1:
            slice_ = slice_[: max(1, len(slice_) * SLICE_BYTES // (2 * size))]
            size = size_of(slice_)
        return slice_, size

    def learn(self, records: int, size_bytes: int, seconds: float, growth_bytes: int) -> None:
        """Fit the next slice to `SLICE_S` and `SLICE_GROWTH_BYTES`, by at most a factor of two."""
        wanted = records * min(SLICE_S / max(seconds, 1e-6), SLICE_GROWTH_BYTES / max(growth_bytes, 1))
        self.records = int(min(max(wanted, self.records / 2, 1), self.records * 2, _MAX_SLICE_RECORDS))
        self._record_bytes = max(size_bytes // records, self._record_bytes // 2)
        self._growth = max(growth_bytes, self._growth // 2)

    def would_cross(self, staged_bytes: int, next_bytes: int, max_bytes: int, slices: int = 1) -> bool:
        """Return whether the buffers exceed `max_bytes` (-1: no limit), or probably will after `slices` more. The rule
        is KIP-892's. Empty buffers never exceed it: one record may stage more, and a commit would not help."""
        return max_bytes >= 0 and staged_bytes > 0 and staged_bytes + max(self._growth * slices, next_bytes) > max_bytes
