"""Know until when a member of a group is its only one for its tasks (a worker) or its pipeline (a driver).

A group gives a member's tasks to others after the session timeout without a sign of life. So a member may call itself
active for nearly that long after it asked the group. The margin allows for clocks that run at different speeds.

The question is an offset commit outside a transaction. The broker refuses it to anybody who is no member of the newest
generation, and it restarts the session (`OffsetMetadataManager.commitOffset` of Kafka 4.4). Heartbeats prove nothing:
librdkafka sends them on its own thread, also while the worker hangs. Offsets inside a transaction restart no session.

The committed offset belongs to a partition that no group reads (`deployment.nodes_topic`). An offset of a source could
undo the commit of a transaction.
"""

from __future__ import annotations

from stateline.log.interface import Consumer
from stateline_store import TopicPartition
from stateline_store.clock import boot_ms

_RENEWALS_PER_SESSION = 6
_MARGIN_PER_SESSION = 10  # the unused part of a session: one in 10


class Lease:
    """One member's lease, for its thread."""

    def __init__(self, session_timeout_ms: int, place: TopicPartition | None) -> None:
        """`place` is the partition whose offset is committed. None: no other process can have the tasks."""
        self._place = place
        self._length_ms = session_timeout_ms - session_timeout_ms // _MARGIN_PER_SESSION
        self._interval_ms = session_timeout_ms // _RENEWALS_PER_SESSION
        self._asked_at_ms = -self._interval_ms
        self._until_ms = 0

    @property
    def until_ms(self) -> int | None:
        """The end by `clock.boot_ms`: 0 before the beginning, None without an end."""
        return None if self._place is None else self._until_ms

    @property
    def holds(self) -> bool:
        """Whether no other process can have the tasks now."""
        return self._place is None or boot_ms() < self._until_ms

    def renew_if_due(self, consumer: Consumer) -> None:
        """Read the group's answer, and ask again if it is time. Never waits."""
        if self._place is None:
            return
        confirmed_ms = consumer.confirmed_at_ms
        if confirmed_ms is not None:
            self._until_ms = confirmed_ms + self._length_ms
        now_ms = boot_ms()
        if now_ms >= self._asked_at_ms + self._interval_ms and consumer.confirm_membership(self._place):
            self._asked_at_ms = now_ms

    def end(self) -> None:
        """The member has left the group."""
        self._until_ms, self._asked_at_ms = 0, -self._interval_ms
