"""Finds partitions that return nothing, not even their end, after a seek. Pure, except for the clock.

librdkafka was seen to skip a partition that was revoked while paused and assigned again. The consumer seeks once more.
If that does not help, the client must be replaced.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from stateline_store import TopicPartition

# After a seek, a partition returns a record or its end as soon as its leader answers.
SILENCE_S = 10.0


class SilentPartitions:
    """Tracks since when partitions of one consumer have returned nothing. Its thread alone uses it."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, int] = {}  # the offset of the last seek of each silent partition
        self._since_s: dict[TopicPartition, float] = {}  # since when each silent partition is read
        self._sought_anew: set[TopicPartition] = set()

    def __bool__(self) -> bool:
        return bool(self._since_s)

    def expect(self, places: Mapping[TopicPartition, int], paused: Collection[TopicPartition]) -> None:
        """Expect these partitions, and no others, to be read from new places."""
        self._places = dict(places)
        self._since_s = dict.fromkeys(self._places.keys() - set(paused), time.monotonic())
        self._sought_anew.clear()

    def seek(self, partition: TopicPartition, offset: int, *, is_paused: bool) -> None:
        """Expect this partition to be read from a new place."""
        self._places[partition] = offset
        if not is_paused:
            self._since_s[partition] = time.monotonic()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Expect nothing of these."""
        for partition in partitions:
            self._since_s.pop(partition, None)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Expect something again of those that have returned nothing since their seek."""
        self._since_s |= dict.fromkeys(self._places.keys() & set(partitions), time.monotonic())

    def hear(self, partition: TopicPartition) -> None:
        """Note that a record or the end of this partition came."""
        self._since_s.pop(partition, None)
        self._places.pop(partition, None)
        self._sought_anew.discard(partition)

    def overdue(self) -> list[TopicPartition]:
        """Return the partitions that are silent for too long, and restart their time."""
        now_s = time.monotonic()
        found = [each for each, since_s in self._since_s.items() if now_s - since_s > SILENCE_S]
        self._since_s |= dict.fromkeys(found, now_s)
        return found

    def seek_anew(self, partition: TopicPartition) -> int | None:
        """Return where to seek again, perhaps an offset below 0 of librdkafka's. None if that was done already."""
        if partition in self._sought_anew:
            self._since_s.pop(partition)
            return None
        self._sought_anew.add(partition)
        return self._places[partition]
