"""Which standbys a worker keeps, and when a worker that is not in its group yet may join it.

Every worker looks at the group now and then. All workers compute the same placement (`model.standby_placement`):

| a task of another node                             | is followed here                                                |
|----------------------------------------------------|-----------------------------------------------------------------|
| with a standby placed here                         | yes                                                             |
| that moves here when workers join that are about to| yes: it catches up before                                       |
| that was followed or owned here until now          | until all its standbys elsewhere have caught up                 |
| any other, or one of another worker of this node   | no                                                              |

Before a worker joins, it follows the tasks that it will get. It joins when all tasks that its coming moves have caught
up. Owners answer until then (Kafka Streams' warm-up replicas, KIP-441, with the assignment that range will make). A
worker whose name is in the group already joins at once: its tasks wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from stateline.deployment.topics import subtopology_partitions
from stateline.deployment.workers.entries import SAID_AGAIN_S, StandbysEntry, WorkerEntries, entry_name
from stateline.deployment.workers.figures import StandbyLag
from stateline.log.interface import GroupMember
from stateline.model.standby_placement import Placeable, range_owner, standbys
from stateline.worker.context import WorkerContext
from stateline.worker.standbys.standby_tasks import StandbyTasks
from stateline.worker.tasks.task import TaskState
from stateline.worker.tasks.tasks import Tasks
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import DoesNotExistError, RetryLaterError, TopicPartition
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 2.0
_JOINING_INTERVAL_S = 0.5
# How long one call may wait for Kafka. The worker's own tasks wait meanwhile.
_PATIENCE_S = 1.0
# A worker joins if its standbys made no progress for this long.
_STANDSTILL_S = 60.0


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group at rest. `partitions` counts those of each task's subtopology. `owners` has each task's worker.
    `candidates` are about to join. `caught_up` has by node the tasks that its workers follow without a large lag."""

    partitions: Mapping[TaskId, int]
    members: tuple[Placeable, ...]
    owners: Mapping[TaskId, Placeable]
    candidates: tuple[Placeable, ...] = ()
    caught_up: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def moves(self) -> dict[TaskId, Placeable]:
        """Return the new workers of tasks that will be on another node when the candidates are members."""
        if not self.candidates:
            return {}
        known = {member.name for member in self.members}
        after = [*self.members, *(each for each in self.candidates if each.name not in known)]
        found = {task: range_owner(after, count, task.partition) for task, count in self.partitions.items()}
        return {t: to for t, to in found.items() if to is not None and not self.has(to.node, t)}

    def holders(self, replicas: int, rack_tags: Sequence[str]) -> dict[TaskId, set[Placeable]]:
        found = {
            task: set(
                standbys(str(task), owner, self.members, self.partitions[task], task.partition, replicas, rack_tags)
            )
            for task, owner in self.owners.items()
        }
        for task, to in self.moves().items():
            found.setdefault(task, set()).add(to)
        return found

    def has(self, node: str, task: TaskId) -> bool:
        owner = self.owners.get(task)
        return owner is not None and owner.node == node

    def has_caught_up(self, node: str, task: TaskId) -> bool:
        return str(task) in self.caught_up.get(node, ())


def to_follow(
    view: GroupView, own: Placeable, holders: Mapping[TaskId, set[Placeable]], kept: Collection[TaskId]
) -> set[TaskId]:
    """Return the tasks that `own` is to follow. It has `kept` some until now. Pure."""
    found: set[TaskId] = set()
    for task in view.partitions:
        wanted = holders.get(task, set())
        is_handed_over = all(view.has_caught_up(each.node, task) for each in wanted)
        is_kept = task in kept and bool(wanted) and not is_handed_over
        if not view.has(own.node, task) and (own in wanted or is_kept):
            found.add(task)
    return found


class StandbyAssignment:
    """Without `entries` (embedded log) or ``num.standby.replicas`` there are no standbys."""

    def __init__(
        self,
        context: WorkerContext,
        own: Placeable,
        entries: WorkerEntries | None,
        tasks: Tasks,
        followed: StandbyTasks,
        topics: TopicWatch,
    ) -> None:
        config, topology = context.config, context.topology
        self._replicas = config.num_standby_replicas if entries is not None else 0
        self._most_warming = config.max_warmup_replicas
        self._rack_tags = config.rack_tags
        # Tasks without a store that can be rebuilt need no standby.
        self._subtopologies = [
            s for s in topology.subtopologies if any(d.logged or d.source is not None for d in s.stores)
        ]
        self._topology = topology
        self._group = context.group
        self._own = own
        self._log, self._admin = context.log, context.admin
        self._entries = entries
        self._tasks = tasks
        self.followed = followed
        self._topics = topics
        self.wanted: set[TaskId] = set()
        self._complete_s: dict[TaskId, float] = {}  # of `wanted`: the last time without a lag, or since it is wanted
        self._had: set[TaskId] = set()  # owned at the last look
        self._last_owners: Mapping[TaskId, Placeable] = {}
        self._said: StandbysEntry | None = None
        self._looks_s = self._said_s = 0.0
        self._joining_since_s: float | None = None
        self._is_ready = False  # to join
        self._behind: Mapping[TaskId, Placeable] = {}  # the tasks that joining waits for, and where they catch up
        self._copied = 0  # `CopiedTasks.heard` at the last look
        self._moved_s = 0.0  # the last progress, while it waits to join
        self._least_lag: int | None = None  # of all standbys here, since then
        # Whether the log has reported the upgrade. False while a store may wait for its timestamps.
        self._is_upgraded = config.upgrade_from is None
        self._upgraded = 0  # standbys, as of the last look
        self._replaced = set[TaskId]()  # tasks that have replaced plain files since this worker has them

    def advance(self, *, beside_work: bool) -> None:
        """Follow further, `beside_work` of its own tasks or not, and look at the group now and then."""
        if self._entries is None or not self._replicas:
            return
        with self._log.patience.for_all(_PATIENCE_S):
            self.followed.advance(beside_work=beside_work)
            if monotonic() >= self._looks_s:
                interval_s = _LOOK_INTERVAL_S if self._joining_since_s is None else _JOINING_INTERVAL_S
                self._looks_s = monotonic() + interval_s
                try:
                    self._look(self._entries)
                except (RetryLaterError, DoesNotExistError) as error:
                    _log.debug("Which standbys are wanted is not known now: %s", error)
            self._fill()

    def may_join(self) -> bool:
        """Return whether a worker that is no member has caught up with the tasks that it will get. After True it counts
        as a member. `advance` makes the progress."""
        if self._entries is None or not self._replicas:
            return True
        if self._joining_since_s is None:
            self._joining_since_s = self._moved_s = monotonic()
            self._looks_s, self._is_ready = 0.0, False
            self._had.clear()
        elif self._is_ready or monotonic() > self._moved_s + _STANDSTILL_S:
            if not self._is_ready:
                _log.warning("Nothing has caught up further for %g s: joining the group as it is", _STANDSTILL_S)
            self._joining_since_s, self._looks_s = None, 0.0
            return True
        return False

    def lags(self) -> dict[str, StandbyLag]:
        """Return the records that each task lacks here, and for how long. Includes tasks that wait or cannot be
        followed."""
        now_s, records = monotonic(), self.followed.lags()
        wanted = sorted((self.wanted | records.keys()) - self._tasks.all.keys())
        self._complete_s = {t: max(self._complete_s.get(t, now_s), self.followed.complete_s(t)) for t in wanted}
        return {str(t): StandbyLag(records.get(t), int((now_s - self._complete_s[t]) * 1000)) for t in wanted}

    def close(self) -> None:
        self.wanted.clear()
        self.followed.close()

    def _look(self, entries: WorkerEntries) -> None:
        view = self._view(self._admin.members(self._group), entries)
        if view is None:
            self._last_owners = {}
            return
        if self._joining_since_s is not None:
            self._is_ready = self._may_join(view)
        elif view.owners != self._last_owners:  # a rebalance has just ended
            self._last_owners = view.owners
            # Their new owner, another worker of this node, waits for their directories.
            self.followed.drop([task for task in self.followed.begun if view.has(self._own.node, task)])
            return
        owned = {*self._tasks.all}
        kept, self._had = {*self.followed.begun} | (self._had - owned), owned
        holders = view.holders(self._replicas, self._rack_tags)
        self.wanted = to_follow(view, self._own, holders, kept)
        self.followed.drop({*self.followed.begun} - self.wanted)
        self._say(entries)
        self._note_upgraded(view)

    def _note_upgraded(self, view: GroupView) -> None:
        """Log once when no store here waits for its timestamps any more."""
        own = self._tasks.all
        tasks = [*own.values(), *self.followed.tasks]
        is_upgraded = not any(task.stores.formats.has_plain for task in tasks)
        given = {task for task, owner in view.owners.items() if owner == self._own}
        is_whole = (
            self._own in view.members
            and given <= own.keys()  # tasks that wait for their directories are not open yet
            and all(task.state is TaskState.RUNNING for task in own.values())
            and self.wanted <= {*self.followed.ids}
        )
        replaced = {task.id for task in own.values() if task.stores.formats.has_replaced}
        if not is_upgraded or self.followed.upgraded != self._upgraded or not replaced <= self._replaced:
            self._is_upgraded, self._upgraded = False, self.followed.upgraded
            self._replaced |= replaced
        if is_upgraded and is_whole and tasks and not self._is_upgraded:
            _log.info("Every task of this worker is ready with timestamps, %d in all: the next node's turn", len(tasks))
            self._is_upgraded = True

    def _view(self, members: Collection[GroupMember], entries: WorkerEntries) -> GroupView | None:
        """Return the group. None while it is not at rest, or members have no entry in the nodes topic."""
        known = entries.all()
        counts = subtopology_partitions(
            self._topology, {name: info.partitions for name, info in self._topics.found.items()}
        )
        partitions = {s.task_id(n): counts[s.ordinal] for s in self._subtopologies for n in range(counts[s.ordinal])}
        placeable = {name: Placeable(name, entry.directory, entry.tags) for name, (_, entry) in known.items()}
        placeable[self._own.name] = self._own
        names = {entry_name(member): member for member in members}
        if not names.keys() <= placeable.keys():
            return None
        by_source = {source: placeable[name] for name, member in names.items() for source in member.partitions}
        owners = {
            task: by_source[source]
            for s in self._subtopologies
            for task in map(s.task_id, range(counts[s.ordinal]))
            if (source := TopicPartition(s.sources[0].name, task.partition)) in by_source
        }
        if members and owners.keys() != partitions.keys():
            return None
        caught_up: dict[str, frozenset[str]] = {self._own.node: self._caught_up()}
        for name, (_, entry) in entries.standbys.items():
            if name in placeable and name != self._own.name:
                node = placeable[name].node
                caught_up[node] = caught_up.get(node, frozenset()) | entry.caught_up
        joining = {
            name
            for name, (at_s, entry) in entries.standbys.items()
            if entry.joining and name not in names and name in placeable and monotonic() < at_s + 3 * SAID_AGAIN_S
        }
        if self._joining_since_s is not None:
            joining.add(self._own.name)
        return GroupView(
            partitions,
            tuple(placeable[name] for name in names),
            owners,
            tuple(placeable[name] for name in sorted(joining)),
            caught_up,
        )

    def _may_join(self, view: GroupView) -> bool:
        if not view.members or self._own in view.members:
            return True
        behind = {
            task: to
            for task, to in view.moves().items()
            if to.node in view.caught_up and not view.has_caught_up(to.node, task)
        }
        copied = self.followed.copies.heard
        if copied != self._copied:
            self._copied, self._moved_s = copied, monotonic()
        if (lag := self.followed.total_lag()) is not None and (self._least_lag is None or lag < self._least_lag):
            self._least_lag, self._moved_s = lag, monotonic()
        if behind != self._behind:
            self._behind, self._moved_s, self._least_lag = behind, monotonic(), None
            if behind:
                _log.info("Before joining, %d tasks catch up, here or at others: %s", len(behind), _listed(behind))
        return not behind

    def _caught_up(self) -> frozenset[str]:
        return frozenset(map(str, self.followed.caught_up()))

    def _say(self, entries: WorkerEntries) -> None:
        entry = StandbysEntry(self._caught_up(), self._joining_since_s is not None)
        again = entry.joining and monotonic() > self._said_s + SAID_AGAIN_S
        if entry != self._said or again:
            entries.say_standbys(entry)
            self._said, self._said_s = entry, monotonic()

    def _fill(self) -> None:
        """Follow more of the wanted tasks, while fewer than ``max.warmup.replicas`` are catching up."""
        missing = sorted(self.wanted - {*self.followed.begun} - {*self._tasks.all})
        if not missing:
            return
        room = self._most_warming - (len(self.followed.begun) - len(self.followed.caught_up()))
        for task in missing:
            if room <= 0:
                return
            room -= self.followed.add(task)


def _listed(tasks: Iterable[TaskId], most: int = 10) -> str:
    texts = [str(task) for task in sorted(tasks)]
    return ", ".join(texts[:most]) + (" …" if len(texts) > most else "")
