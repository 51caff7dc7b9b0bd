"""`Ownership`: what a copy of this directory is, and whether it may answer.

| the task's owner, as far as is known here            | a copy is  | it answers                                       |
|------------------------------------------------------|------------|--------------------------------------------------|
| a worker here, that runs it within its lease         | active     | everything                                       |
| a worker here, that reads the changelog still        | restoring  | committed reads, if no other machine is there    |
|                                                      |            | or has gone on with it                           |
| nobody, and nobody elsewhere can be                  | standby    | committed reads                                  |
| somebody elsewhere, or perhaps                       | standby    | what its lag or a bound that it covers allows    |

Nobody elsewhere can be the owner on an embedded log, while the lease of the worker that had the task here has not
ended (if it has not given the task back), and while the group has no member of another directory. A copy that has not
all of its changelog does not answer then either when another directory has gone on with the task: it was seen with it,
or has committed the group's offsets last. "The HTTP contract" calls this which copy answers.

A copy whose restore has not come to its end has rows that are newer than its Position (the worker's `store_restore`):
no lag and no bound allows it anything, whoever restores it, if anybody.
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

# For so long what Kafka has said of a changelog's end is taken as said now.
_JUST_ASKED_MS = 1_000


class Ownership:
    """One per server process, for the event loop's thread. `group` is None on an embedded log. `exactly_once`: the last
    offset of a changelog of the application's own is the marker of a transaction. `place`: where its copies are, in
    words."""

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
        self._given_back_ms: dict[str, int] = {}  # by `boot_ms`, when that was seen
        # Of which generation a copy last had all of its changelog, and when, by `boot_ms`: another is another copy.
        self._complete: dict[tuple[str, int], tuple[int, int]] = {}  # by store and partition

    def is_active(self, task_id: str) -> bool:
        """Whether a worker that is there runs this task, and nobody else can have it."""
        found = self._workers.runs(task_id)
        if found and self._given_back_ms:
            self._given_back_ms.pop(task_id, None)
        return found

    def is_owned(self, task_id: str) -> bool:
        """Whether a worker that is there has this task, and restores or runs it."""
        return self._workers.has_live_owner(task_id)

    def role(self, task_id: str) -> ServedBy:
        """Return this directory's role for this task. A standby has no owner here."""
        if self.is_active(task_id):
            return "active"
        return "restoring" if self.is_owned(task_id) else "standby"

    def worker(self, task_id: str) -> str | None:
        """The instance of this directory that has this task; None when none does."""
        return self._workers.owner(task_id)

    def may_be_elsewhere(self, task_id: str, *, given_back: bool = False, is_complete: bool = False) -> bool:
        """Whether a worker of another directory may have this task, or has gone on with it. `given_back`: the one that
        had it here has said that others may; `is_complete`: the copy here has all that anybody has committed."""
        if self._group is None or task_id == GLOBAL_TABLES:
            return False  # of a global table each node has its own copy
        if not given_back and self._workers.lease_holds(task_id):
            return False
        # A worker gives a task back when another has joined: whoever asks from then on finds that one. So does who asks
        # when the group has decided: what a worker keeps then it gives nobody back.
        since_ms = self._given_back_ms.setdefault(task_id, boot_ms()) if given_back else 0
        if self._group.may_be_elsewhere(max(since_ms, self._workers.assigned_at_ms)):
            return True
        return not is_complete and self._group.was_elsewhere(self.sources(task_id))

    def _has_been_elsewhere(self, task_id: str) -> bool:
        """Whether another directory has workers, or has gone on with this task before all of them left, or may have."""
        group, since_ms = self._group, self._workers.assigned_at_ms
        if task_id == GLOBAL_TABLES:
            return False
        return group is not None and (group.has_others(since_ms) or group.was_elsewhere(self.sources(task_id)))

    def look_at_group(self) -> None:
        """Have Kafka asked who is in the group, if it was not since a worker here was given its tasks."""
        if self._group is not None:
            self._group.has_said(self._workers.assigned_at_ms)

    def sources(self, task_id: str) -> set[TopicPartition]:
        """The partitions that this task reads by its group."""
        task = TaskId.parse(task_id)
        return {
            TopicPartition(topic.name, task.partition)
            for subtopology in self._topology.subtopologies
            if subtopology.ordinal == task.subtopology
            for topic in subtopology.sources
        }

    def is_left(self, task_id: str, *, given_back: bool) -> bool:
        """Whether the copy here may be one that somebody elsewhere has gone on with: nobody here has the task.
        `given_back` as for `may_be_elsewhere`."""
        return not self.is_owned(task_id) and self.may_be_elsewhere(task_id, given_back=given_back)

    async def settle(self) -> bool:
        """Comes back when `may_be_elsewhere` knows what can be known: in a moment. False when it did already."""
        return self._group is not None and await self._group.settle()

    async def until_ends_are_known(self) -> None:
        """Comes back when Kafka has lately said where changelogs end, or does not: in a moment."""
        if self._group is not None:
            await self._group.until_ends_are_known()

    def check(self, task_id: str, store: str, partition: int, *, given_back: bool = False) -> None:
        """Raise `NotActiveError` when another machine may have gone on with this; `given_back` as above."""
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
        """The same, and of one that is not active how far it is behind its changelog; `offsets` are those that it has
        applied, `generation` is that of its commit notice. While Kafka does not say where the changelog ends, what the
        copy had stays true: only the time since then grows."""
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
        """How many offsets of a changelog a copy lacks whose last one is this; None when that is not known now."""
        found = None if self._group is None else self._group.end(changelog)
        return None if found is None else self._behind(changelog, found[0], offset)

    def _behind(self, changelog: TopicPartition, end: int, offset: int) -> int:
        behind = max(0, end - (offset + 1))
        # What ends a transaction is an offset, too. Who else writes to a topic may use them or not.
        marker = self._exactly_once and changelog.topic not in self._read_topics
        return 0 if behind <= marker else behind

    def left(self, store: StoreDefinition, partition: int, generation: int, committed_at_ms: int) -> None:
        """A copy is its owner's no more: it had everything when that committed last, if the clock that says so was not
        set back since. `generation` as in `with_lag`."""
        age_ms = now_ms() - committed_at_ms
        if committed_at_ms and age_ms >= 0:
            self._complete[store.name, partition] = generation, boot_ms() - age_ms

    def was_complete(self, store: StoreDefinition, partition: int, generation: int, age_ms: int) -> None:
        """A copy had everything so long ago, if not since. `generation` as in `with_lag`."""
        of, at_ms = self._complete.get((store.name, partition), (None, 0))
        if of != generation or at_ms < boot_ms() - age_ms:
            self._complete[store.name, partition] = generation, boot_ms() - age_ms

    def refusal(
        self, task_id: str, terms: Terms, partition: int, copy: CopyStatus, *, given_back: bool, is_whole: bool
    ) -> NotActiveError | None:
        """Why this copy does not answer; None when it may. A bound is checked by who reads. `is_whole`: its Position
        says all that it has."""
        if copy.served_by == "active":
            return None
        restores = copy.served_by == "restoring" and self.is_owned(task_id)
        if restores and not self._has_been_elsewhere(task_id):
            return None  # nobody has more of it
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
    """Whether the request allows a copy that may not be the owner's to answer."""
    if terms.max_staleness_ms is not None and copy.lag_ms is not None and copy.lag_ms <= terms.max_staleness_ms:
        return True
    return any(partition in offsets for offsets in terms.bound.position.offsets.values())
