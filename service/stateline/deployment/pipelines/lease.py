"""Decide which node may run a pipeline whose checkpoint all nodes reach: the one member of the pipeline's own group.

The group is ``<application.id>-pipeline-<name>``. It assigns the partition of ``<application.id>-nodes``. A driver
joins only an empty group, so that nodes that come and go cause no rebalance for the running one. It begins only when it
is alone, so that others that joined at the same moment leave and it stays:

| state     | what is seen                                          | then                                     |
|-----------|-------------------------------------------------------|------------------------------------------|
| `waiting` | the group has a member, or this node is drained       | `waiting`                                |
| `waiting` | it has none                                           | `joining`                                |
| `joining` | this one was given the partition, the group confirms  | `held`                                   |
|           | it, and it is alone                                   |                                          |
| `joining` | another one was given it, or this node is drained     | `waiting`: it leaves                     |
| `joining` | others are in the group, and stay                     | `waiting`: one of them may hold it       |
| `joining` | otherwise                                             | `joining`                                |
| `held`    | the lease is over, or the group says that this one is | `lost`: the driver ends, at once         |
|           | no member any more                                    |                                          |

The lease (`deployment.lease`) ends before the group drops a member, so before another one can be alone in it. A
rebalance, which takes the partition for a moment, does not end it. The lease keeps two drivers from working at once.
Results are written once even without it: a driver that begins fences its predecessor's producer
(`spark.sink.epoch_writer`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from stateline.config.settings import Config
from stateline.deployment.lease import Lease
from stateline.deployment.nodes_topic import ensure_nodes_topic, nodes_partition
from stateline.log.interface import Admin, Consumer, Log
from stateline_store import DoesNotExistError, RetryLaterError, StatelineError, TopicPartition

State = Literal["waiting", "joining", "held", "lost"]

_LOOK_S = 0.25
_LATE_PER_SESSION = 6  # a driver that is not alone after this part of a session leaves it to the others
_PAUSE_S = 1.0  # after an error of the log, and between looks at a group with members
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A driver's knowledge at a moment. `alone`: no other member is in the group. `given` is None before the
    assignment. `late`: the driver has been in the group for a while."""

    alone: bool = False
    given: bool | None = None
    confirmed: bool = False
    late: bool = False
    drained: bool = False


def next_state(state: State, seen: Seen) -> State:
    """Apply the table of this module."""
    if state == "waiting":
        return "joining" if seen.alone and not seen.drained else "waiting"
    if state == "joining":
        if seen.given is False or seen.drained or (seen.late and not seen.alone):
            return "waiting"
        return "held" if seen.given and seen.confirmed and seen.alone else "joining"
    return "held" if state == "held" and seen.confirmed else "lost"


def lease_group(application_id: str, pipeline: str) -> str:
    return f"{application_id}-pipeline-{pipeline}"


class PipelineLease:
    """A driver's lease of one pipeline, on its own thread from the start until `close`. Thread-safe.

    That thread calls `lost(why)` if the lease ends without `close`. Another driver may start a moment later. It calls
    `give_up` when `is_drained` is true. The driver must then stop and close this.
    """

    def __init__(
        self,
        log: Log,
        config: Config,
        pipeline: str,
        *,
        lost: Callable[[str], object],
        is_drained: Callable[[], bool] = lambda: False,
        give_up: Callable[[], object] = lambda: None,
    ) -> None:
        self.failure: StatelineError | None = None
        """Why it can never be had, once that is known."""
        self.owner: str | None = None
        """The node that has it, as far as is known."""
        self._log, self._config, self._pipeline = log, config, pipeline
        self._lost, self._is_drained, self._give_up = lost, is_drained, give_up
        self._group = lease_group(config.application_id, pipeline)
        self._place = nodes_partition(config.application_id)
        self._lease = Lease(config.session_timeout_ms, self._place)
        self._state: State = "waiting"
        self._given: bool | None = None
        self._consumer: Consumer | None = None
        self._joined_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"lease-{pipeline}", daemon=True)
        self._thread.start()

    @property
    def holds(self) -> bool:
        """Whether no other driver can have the pipeline now."""
        return self._state == "held" and self._lease.holds

    def close(self) -> None:
        """Leave the group. Returns when that is done or has failed."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            with closing(self._log.admin()) as admin:
                while not self._closing.is_set() and self._state != "lost":
                    self._turn(admin)
        except StatelineError as error:
            self.failure = error
        finally:
            if self._state == "held" and not self._closing.is_set():
                self._state = "lost"
                self._lose("it cannot be kept")  # for any error: nobody renews it any more
            self._leave()

    def _turn(self, admin: Admin) -> None:
        try:
            if self._consumer is not None:
                self._consumer.poll(1, _LOOK_S)
                self._lease.renew_if_due(self._consumer)
            after = next_state(self._state, self._seen(admin))
        except (RetryLaterError, DoesNotExistError) as error:
            _logger.debug("The lease of pipeline %s: %s", self._pipeline, error)
            after = self._without_an_answer()
        self._go_on(after, admin)

    def _seen(self, admin: Admin) -> Seen:
        drained = self._is_drained()
        if self._state == "held":  # without a request: it must notice the end also while the broker is away
            if drained:
                self._give_up()
            return Seen(confirmed=self._lease.holds)
        members = admin.members(self._group)
        own = None if self._consumer is None else self._consumer.member_id
        others = [member for member in members if member.member_id != own]
        self.owner = next((member.client_id for member in others if self._place in member.partitions), None)
        late = time.monotonic() > self._joined_s + self._config.session_timeout_ms / 1000 / _LATE_PER_SESSION
        return Seen(not others, self._given, self._lease.holds, late, drained)

    def _without_an_answer(self) -> State:
        """A holder keeps the lease until its end. Others begin again."""
        self._closing.wait(_LOOK_S if self._state == "held" else _PAUSE_S)
        return "waiting" if self._state != "held" else next_state("held", Seen(confirmed=self._lease.holds))

    def _go_on(self, after: State, admin: Admin) -> None:
        before, self._state = self._state, after
        if after == "lost" and before == "held":
            self._lose("its group has not confirmed it in time")
        elif after == "waiting":
            self._leave()
            self._closing.wait(_PAUSE_S)
        elif after == "joining" and before == "waiting":
            self._join(admin)
        elif after == "held" and before == "joining":
            self.owner = self._config.node
            _logger.info("pipeline %s: this node has its lease", self._pipeline)

    def _join(self, admin: Admin) -> None:
        try:
            ensure_nodes_topic(self._config.application_id, admin)
            self._consumer = self._log.consumer(self._group, client_id=self._config.node)
            self._consumer.subscribe([self._place.topic], self._assigned, self._dropped, self._suspended)
            self._joined_s = time.monotonic()
        except RetryLaterError as error:
            _logger.debug("The group %s cannot be joined now: %s", self._group, error)
            self._leave()
            self._state = "waiting"

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._given = self._place in partitions
        if self._given and self._consumer is not None:
            self._consumer.pause(partitions)  # others read its records

    def _suspended(self, partitions: Sequence[TopicPartition]) -> None:
        self._given = None

    def _dropped(self, partitions: Sequence[TopicPartition]) -> None:
        """The session has ended. Without this, the member would join again and be in another one's way."""
        self._suspended(partitions)
        self._lease.end()
        if self._state == "held" and not self._closing.is_set():
            self._state = "lost"
            self._lose("its group has not heard of it for too long")

    def _lose(self, why: str) -> None:
        self._lost(f"Pipeline {self._pipeline!r} is not this node's any more: {why}.")

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._given = None
        self._lease.end()
        if consumer is not None:
            try:
                consumer.close()
            except RetryLaterError as error:
                _logger.debug("The group %s could not be left: %s", self._group, error)
