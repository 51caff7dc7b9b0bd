"""`ChangelogFollower`: reads the topics that stores are made of, slice by slice, with a consumer in no group.

Restores, standbys, global tables and format upgrades read by it. They decide what a store takes of a slice, and when it
commits. "At the end" is ``next_offset >= end``: control records and compacted offsets may follow the last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from stateline.log.interface import Consumer, Log, Record
from stateline.processing.reading import by_partition
from stateline_store import StatelineError, TopicPartition

# How many records one slice has at most.
SLICE_RECORDS = 5_000


class ChangelogFollower:
    """`read` counts the records of the last slice."""

    def __init__(
        self, log: Log, starts: Callable[[], Iterable[tuple[TopicPartition, int]]], *, passes_over_deleted: bool = False
    ) -> None:
        """`starts` returns the next offset of each store in each of its partitions: the smallest decides. Without
        `passes_over_deleted`, `poll` raises `LogUnavailableError` if the log has deleted the next record."""
        self.read = 0
        self._log = log
        self._starts = starts
        self._reset = "earliest" if passes_over_deleted else "error"
        self._consumer: Consumer | None = None
        self._is_changed = False

    @property
    def is_current(self) -> bool:
        return not self._is_changed and self._consumer is not None

    @property
    def is_full(self) -> bool:
        return self._is_changed or self.read > SLICE_RECORDS // 2

    def change(self) -> None:
        """Ask for `starts` again at the next `poll`."""
        self._is_changed = True

    def poll(self, timeout_s: float = 0.0) -> dict[TopicPartition, list[Record]]:
        """Return the next records by partition, waiting up to `timeout_s` for the first. Raises as `Consumer.poll`."""
        self.read = 0
        if self._is_changed:
            self._assign()
        if self._consumer is None:
            return {}
        records = self._consumer.poll(SLICE_RECORDS, timeout_s)
        self.read = len(records)
        return by_partition(records)

    def next_offset(self, log: TopicPartition) -> int | None:
        """Return the consumer's next offset; None without a consumer."""
        return None if self._consumer is None else self._consumer.next_offset(log)

    def lag(self, log: TopicPartition) -> int | None:
        """Return the consumer's lag; None if it is unknown, or before the next `poll` after `change`."""
        return self._consumer.lag(log) if self._consumer is not None and not self._is_changed else None

    def has_passed(self, log: TopicPartition, end: int) -> bool:
        return (self.next_offset(log) or 0) >= end

    def close(self) -> None:
        """Release the consumer. The next `poll` begins at `starts`."""
        consumer, self._consumer, self._is_changed = self._consumer, None, True
        if consumer is not None:
            with suppress(StatelineError):  # what its last `poll` has not raised: nobody reads on there
                consumer.close()

    def _assign(self) -> None:
        starts: dict[TopicPartition, int] = {}
        for log, offset in self._starts():
            starts[log] = min(offset, starts.get(log, offset))
        if not starts:
            self.close()
        else:
            self._consumer = self._consumer or self._log.consumer(auto_offset_reset=self._reset)
            self._consumer.assign(starts)
        self._is_changed = False
