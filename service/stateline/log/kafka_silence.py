"""Partitions that give nothing, not even their end, after a consumer was sent to a new place in them. Pure, but for the
clock.

librdkafka was seen to leave one unread that was taken while paused and given back. Such a one is sought anew once; then
its client is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from stateline_store import TopicPartition

# A partition that is read from a new place gives a record or tells its end as soon as its leader answers.
SILENCE_S = 10.0


class SilentPartitions:
    """Of one consumer, for the thread that uses it: which of its partitions have given nothing since when."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, int] = {}  # where to read from, of those that have not given anything since
        self._since_s: dict[TopicPartition, float] = {}  # of these, since when they have been read in vain
        self._sought_anew: set[TopicPartition] = set()

    def __bool__(self) -> bool:
        return bool(self._since_s)

    def expect(self, places: Mapping[TopicPartition, int], paused: Collection[TopicPartition]) -> None:
        """These partitions, and no others, are read from new places."""
        self._places = dict(places)
        self._since_s = dict.fromkeys(self._places.keys() - set(paused), time.monotonic())
        self._sought_anew.clear()

    def seek(self, partition: TopicPartition, offset: int, *, is_paused: bool) -> None:
        """This partition is read from a new place."""
        self._places[partition] = offset
        if not is_paused:
            self._since_s[partition] = time.monotonic()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is expected of these."""
        for partition in partitions:
            self._since_s.pop(partition, None)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Something is expected of these again, if they have given nothing from their place on."""
        self._since_s |= dict.fromkeys(self._places.keys() & set(partitions), time.monotonic())

    def hear(self, partition: TopicPartition) -> None:
        """It has given something, or told its end."""
        self._since_s.pop(partition, None)
        self._places.pop(partition, None)
        self._sought_anew.discard(partition)

    def overdue(self) -> list[TopicPartition]:
        """Those that have been silent for too long, and from now on for as long again."""
        now_s = time.monotonic()
        found = [each for each, since_s in self._since_s.items() if now_s - since_s > SILENCE_S]
        self._since_s |= dict.fromkeys(found, now_s)
        return found

    def seek_anew(self, partition: TopicPartition) -> int | None:
        """From where to read it once more, perhaps one of librdkafka's places below 0; None when that was in vain."""
        if partition in self._sought_anew:
            self._since_s.pop(partition)
            return None
        self._sought_anew.add(partition)
        return self._places[partition]
