"""Until when nobody else can have what a group has given this member: a worker its tasks, a driver its pipeline.

A group gives a member's tasks to others when it has heard nothing of it for the session timeout. So who has the group's
word that it is a member may say `active` for that long, counted from when it asked; a little less, for clocks differ.
What the broker counts is an offset commit outside a transaction: it is refused to whoever is no member of the newest
generation, and begins the session anew (`OffsetMetadataManager.commitOffset` of Kafka 4.3). Heartbeats do the same, and
librdkafka sends them on a thread of its own, which tells nothing and goes on when the worker hangs. Offsets inside a
transaction begin nothing anew.

What is committed is the offset of a partition that nobody reads by a group (`deployment.nodes_topic`): one of a source
could undo what a transaction on its way commits.
"""

from __future__ import annotations

from stateline.log.interface import Consumer
from stateline_store import TopicPartition
from stateline_store.clock import boot_ms

_RENEWALS_PER_SESSION = 6
_MARGIN_PER_SESSION = 10  # one part of so many is not used


class Lease:
    """One member's, on its thread."""

    def __init__(self, session_timeout_ms: int, place: TopicPartition | None) -> None:
        """`place` is the partition to commit an offset of; None where nobody else can have the tasks at all."""
        self._place = place
        self._length_ms = session_timeout_ms - session_timeout_ms // _MARGIN_PER_SESSION
        self._interval_ms = session_timeout_ms // _RENEWALS_PER_SESSION
        self._asked_at_ms = -self._interval_ms
        self._until_ms = 0

    @property
    def until_ms(self) -> int | None:
        """As of now, by `clock.boot_ms`; 0 for one that has not begun, None for one that does not end."""
        return None if self._place is None else self._until_ms

    @property
    def holds(self) -> bool:
        """Whether nobody else can have the tasks at this moment."""
        return self._place is None or boot_ms() < self._until_ms

    def renew_if_due(self, consumer: Consumer) -> None:
        """See what the group has said, and ask it again now and then. Waits for nothing."""
        if self._place is None:
            return
        confirmed_ms = consumer.confirmed_at_ms
        if confirmed_ms is not None:
            self._until_ms = confirmed_ms + self._length_ms
        now_ms = boot_ms()
        if now_ms >= self._asked_at_ms + self._interval_ms and consumer.confirm_membership(self._place):
            self._asked_at_ms = now_ms

    def end(self) -> None:
        """The group was left: others may have the tasks from now on."""
        self._until_ms, self._asked_at_ms = 0, -self._interval_ms
