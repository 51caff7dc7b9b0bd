"""Decide the role of this directory's copies, and whether they may answer (`docs/http/answers.md`, "Which copy
answers").

| the task's owner, as far as is known here            | a copy is  | it answers                                       |
|------------------------------------------------------|------------|--------------------------------------------------|
| a worker here, which runs it within its lease        | active     | everything                                       |
| a worker here, which still reads the changelog       | restoring  | committed reads, if no other machine has workers |
|                                                      |            | or continued the task                            |
| none, and no worker elsewhere can own it             | standby    | committed reads                                  |
| perhaps a worker elsewhere                           | standby    | if its lag or a covered bound allows it          |

No worker elsewhere can own a task in three cases: on the embedded log; until the lease of the task's last worker here
ends, if this worker has not given the task back; and while the group has no member of another directory. In the last
case, an incomplete copy still refuses if another directory continued the task: it was seen with the task, or committed
the group's offsets last.

After an unfinished restore, a copy has rows newer than its Position (the worker's `store_restore`). Then no lag and no
bound allows it to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stateline.deployment.stores.topology_file import GLOBAL_TABLES
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.query.values import CopyStatus, ServedBy, Terms
from stateline.server.state.group_watch import GroupWatch
from stateline.server.state.workers import Workers
from stateline_store import IsolationLevel, NotActiveError, TopicPartition
from stateline_store.clock import boot_ms, now_ms
from stateline_store.task_id import TaskId

# For this long, Kafka's answer about a changelog's end counts as of now.
_JUST_ASKED_MS = 1_000


class Ownership:
    """One per server process, for the event loop's thread.

    `group` is None on an embedded log. `exactly_once`: the last offset of the application's own changelogs is the
    marker of a transaction. `place` names this node in messages."""

    def __init__(
        self,
        topology: Topology,
        workers: Workers,
        group: GroupWatch | None,
        *,
        exactly_once: bool,
        place: str = "here",
    ) -> None:
        self._topology = topology
        self._workers = workers
        self._group = group
        self._exactly_once = exactly_once
        self.place = place
        self._read_topics = {topic.name for each in topology.subtopologies for topic in each.sources}
        self._given_back_ms: dict[str, int] = {}  # task → first time seen, by `boot_ms`
        # Store and partition → the generation of a copy that had all of its changelog, and when (`boot_ms`).
        self._complete: dict[tuple[str, int], tuple[int, int]] = {}

    def is_active(self, task_id: str) -> bool:
        """Whether a live worker here runs this task, and no other worker can have it."""
        known = self._workers.running.get(task_id)  # in as few calls as can be, because each read asks
        found = (known is not None and known.owns_tasks) or self._workers.runs(task_id)
        if found and self._given_back_ms:
            self._given_back_ms.pop(task_id, None)
        return found

    def is_owned(self, task_id: str) -> bool:
        """Whether a live worker here restores or runs this task."""
        return self._workers.has_live_owner(task_id)

    def role(self, task_id: str) -> ServedBy:
        """Return this directory's role for this task. A standby has no owner here."""
        if self.is_active(task_id):
            return "active"
        return "restoring" if self.is_owned(task_id) else "standby"

    def worker(self, task_id: str) -> str | None:
        """Return the instance of this directory that has this task, or None."""
        return self._workers.owner(task_id)

    def may_be_elsewhere(self, task_id: str, *, given_back: bool = False, is_complete: bool = False) -> bool:
        """Whether a worker of another directory may have this task, or has continued it.

        `given_back`: the last worker here has given the task back. `is_complete`: the copy here has everything that any
        worker has committed."""
        if self._group is None or task_id == GLOBAL_TABLES:
            return False  # each node has its own copy of a global table
        if not given_back and self._workers.lease_holds(task_id):
            return False
        # A worker gives a task back after another one has joined, so later answers of Kafka have that member. Answers
        # after an assignment have it, too: tasks that a worker keeps are not given back.
        since_ms = self._given_back_ms.setdefault(task_id, boot_ms()) if given_back else 0
        if self._group.may_be_elsewhere(max(since_ms, self._workers.assigned_at_ms)):
            return True
        return not is_complete and self._group.was_elsewhere(self.sources(task_id))

    def _has_been_elsewhere(self, task_id: str) -> bool:
        """Whether another directory has workers, or may have continued this task before its workers left."""
        group, since_ms = self._group, self._workers.assigned_at_ms
        if task_id == GLOBAL_TABLES:
            return False
        return group is not None and (group.has_others(since_ms) or group.was_elsewhere(self.sources(task_id)))

    def look_at_group(self) -> None:
        """Ask Kafka for the group's members, unless it has answered since the last assignment here."""
        if self._group is not None:
            self._group.has_said(self._workers.assigned_at_ms)

    def sources(self, task_id: str) -> set[TopicPartition]:
        """Return the topic partitions that this task reads."""
        task = TaskId.parse(task_id)
        return {
            TopicPartition(topic.name, task.partition)
            for subtopology in self._topology.subtopologies
            if subtopology.ordinal == task.subtopology
            for topic in subtopology.sources
        }

    def is_left(self, task_id: str, *, given_back: bool) -> bool:
        """Whether no worker here has the task, and one elsewhere may have it. `given_back` as for
        `may_be_elsewhere`."""
        return not self.is_owned(task_id) and self.may_be_elsewhere(task_id, given_back=given_back)

    async def settle(self) -> bool:
        """Wait up to 1 s until `may_be_elsewhere` has all facts. Returns False if no wait was needed."""
        return self._group is not None and await self._group.settle()

    async def until_ends_are_known(self) -> None:
        """Wait up to 1 s for the ends of changelogs (`GroupWatch`)."""
        if self._group is not None:
            await self._group.until_ends_are_known()

    def check(self, task_id: str, store: str, partition: int, *, given_back: bool = False) -> None:
        """Raise `NotActiveError` if another machine may have continued this task. `given_back` as for
        `may_be_elsewhere`."""
        if not self.is_active(task_id) and self.may_be_elsewhere(task_id, given_back=given_back):
            raise NotActiveError(
                f"Partition {partition} of {store!r} is standby {self.place}, and may be out of date, as another "
                "machine may own it. Ask again in a moment."
            )

    def changelog(self, store: StoreDefinition, partition: int) -> TopicPartition | None:
        """Return the topic partition from which this store partition is rebuilt. None without one, or for a global
        table."""
        if store.name in self._topology.global_tables:
            return None
        topic = store.changelog(self._topology.application_id)
        return None if topic is None else TopicPartition(topic, partition)

    def with_lag(
        self,
        copy: CopyStatus,
        store: StoreDefinition,
        partition: int,
        generation: int,
        offsets: Mapping[TopicPartition, int],
    ) -> CopyStatus:
        """Return the status with the copy's lag behind its changelog. An active copy gets none.

        `offsets` are the copy's applied offsets. `generation` is that of its commit notice. While Kafka does not return
        the changelog's end, `lag_ms` grows from the last time that the copy was complete."""
        if copy.served_by == "active" or self._group is None:
            return copy
        changelog = self.changelog(store, partition)
        if changelog is None:
            return copy
        behind, asked_at_ms = None, 0
        if (found := self._group.end(changelog)) is not None:
            end, asked_at_ms = found
            behind = self._behind(changelog, end, offsets.get(changelog, -1))
            if behind == 0:
                self._complete[store.name, partition] = generation, asked_at_ms
        of, at_ms = self._complete.get((store.name, partition), (None, 0))
        since_ms = max(boot_ms() - at_ms, 1) if of == generation else None
        is_complete = behind == 0 and boot_ms() - asked_at_ms <= _JUST_ASKED_MS
        return replace(copy, lag_records=behind, lag_ms=0 if is_complete else since_ms)

    def behind(self, changelog: TopicPartition, offset: int) -> int | None:
        """Return the number of the changelog's offsets after `offset`; None if unknown now."""
        found = None if self._group is None else self._group.end(changelog)
        return None if found is None else self._behind(changelog, found[0], offset)

    def _behind(self, changelog: TopicPartition, end: int, offset: int) -> int:
        behind = max(0, end - (offset + 1))
        # A transaction's marker has an offset, too. Other writers of an input topic may use transactions or not.
        marker = self._exactly_once and changelog.topic not in self._read_topics
        return 0 if behind <= marker else behind

    def left(self, store: StoreDefinition, partition: int, generation: int, committed_at_ms: int) -> None:
        """Note that the copy has lost its owner. It was complete at its last commit, unless the clock was set back
        since. `generation` as for `with_lag`."""
        age_ms = now_ms() - committed_at_ms
        if committed_at_ms and age_ms >= 0:
            self._complete[store.name, partition] = generation, boot_ms() - age_ms

    def was_complete(self, store: StoreDefinition, partition: int, generation: int, age_ms: int) -> None:
        """Note that the copy was complete `age_ms` ago. `generation` as for `with_lag`."""
        of, at_ms = self._complete.get((store.name, partition), (None, 0))
        if of != generation or at_ms < boot_ms() - age_ms:
            self._complete[store.name, partition] = generation, boot_ms() - age_ms

    def refusal(
        self, task_id: str, terms: Terms, partition: int, copy: CopyStatus, *, given_back: bool, is_whole: bool
    ) -> NotActiveError | None:
        """Return why this copy may not answer, or None if it may. The reader checks the bound itself. `is_whole`: the
        copy has no rows beyond its Position."""
        if copy.served_by == "active":
            return None
        restores = copy.served_by == "restoring" and self.is_owned(task_id)
        if restores and not self._has_been_elsewhere(task_id):
            return None  # no other copy has more
        owner_alone = terms.require_active or terms.isolation_level is IsolationLevel.READ_UNCOMMITTED
        if not owner_alone:
            if is_whole and _is_allowed(terms, partition, copy):
                return None
            is_complete = is_whole and copy.lag_ms == 0
            if not restores and not self.may_be_elsewhere(task_id, given_back=given_back, is_complete=is_complete):
                return None
        if restores or not is_whole:
            return NotActiveError(
                f"Partition {partition} of {terms.store!r} {'is being' if restores else 'was not wholly'} restored "
                f"{self.place}, and another machine may have had it whole: ask again in a moment (wait_ms waits)."
            )
        return self._is_standby(terms, partition, copy, owner_alone=owner_alone)

    def _is_standby(self, terms: Terms, partition: int, copy: CopyStatus, *, owner_alone: bool) -> NotActiveError:
        which = f"Partition {partition} of {terms.store!r} is {copy.served_by} {self.place}"
        as_it_is = ["isolation_level=read_committed without require_active"] if owner_alone else []
        if not owner_alone or (self._group is not None and self._group.has_others()):
            lag = "unknown" if copy.lag_ms is None else f"{copy.lag_ms} ms"
            which += f", and may be out of date (lag: {lag}), as another machine may own it"
            as_it_is.append("max_staleness_ms or a position_bound that names the partition")
        else:
            which += ", and no worker runs it just now"
        return NotActiveError(
            f"{which}. Ask again in a moment (wait_ms waits), or accept this copy by {' and '.join(as_it_is)}."
        )


def _is_allowed(terms: Terms, partition: int, copy: CopyStatus) -> bool:
    """Whether the request accepts a copy that may not be the owner's."""
    if terms.max_staleness_ms is not None and copy.lag_ms is not None and copy.lag_ms <= terms.max_staleness_ms:
        return True
    return any(partition in offsets for offsets in terms.bound.position.offsets.values())
