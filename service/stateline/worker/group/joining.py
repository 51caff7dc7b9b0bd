"""Whether a worker may take part in its group.

| in the group is                                 | then this worker                                                  |
|-------------------------------------------------|-------------------------------------------------------------------|
| a worker of this name, of another directory     | waits: it would get the other's tasks at once, while the other    |
|                                                 | still has its lease                                               |
| a worker of another topology, which differs in  | waits until all of these have left: their tasks of the same id    |
| more than timestamps of stores                  | have other stores                                                 |
| neither, and this worker's last starts failed   | leaves for a while, or joins (`crash_loop`)                       |
| neither                                         | joins                                                             |

If two workers of different topologies join at once, the one with the later entry finds the other when the group gives
it its first tasks. It processes nothing and starts over. If the nodes topic was deleted, each worker writes its entry
again, and a worker that wants to join waits for the entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic

from stateline.deployment.nodes_topic import nodes_topic_id
from stateline.deployment.stores.resets import followed_epoch, refuse_unfinished
from stateline.deployment.workers.entries import FaultEntry, WorkerEntries, WorkerEntry, entry_name
from stateline.log.interface import GroupMember
from stateline.worker.context import WorkerContext
from stateline.worker.group.crash_loop import CrashLoop, Known, failed_alike
from stateline_store import DoesNotExistError, LockedError, RetryLaterError

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
# How often the worker compares the nodes topic's id with that of the topic that has its entry.
_TOPIC_INTERVAL_S = 5.0
# How long the worker waits for a member's entry. A member takes less time to find that it must write it again.
_UNKNOWN_PATIENCE_S = 3 * _TOPIC_INTERVAL_S


@dataclass(slots=True, eq=False)
class Joining:
    """`name` is the worker's in the group, `own` its entry. On the embedded log, `entries` and `crash_loop` are None,
    because there is no other machine."""

    _context: WorkerContext
    _name: str
    _own: WorkerEntry
    _entries: WorkerEntries | None
    _crash_loop: CrashLoop | None
    _said_in: str | None = None  # the id of the topic that has its entry
    _looks_again_s: float = 0.0
    _topic_again_s: float = 0.0
    _unknown_since_s: float | None = None
    _told: str = ""

    def is_free(self, leave: Callable[[], None]) -> bool:
        """Return whether the worker may join. `leave`: see `CrashLoop.why_out`. Raises what the log raises."""
        if self._entries is None:
            return True
        if monotonic() < self._looks_again_s:
            return False
        self._say(self._entries)
        members, known = self._context.admin.members(self._context.group), self._entries.all()
        why = "" if self._context.lease.holds else self._name_is_taken(members)
        why = why or self._others(self._of_another_topology(members, known))
        why = why or self._say_nothing(members, known)
        if self._crash_loop is not None and not why:
            why = self._crash_loop.why_out(known, leave, has_others=self._has_others(members))
        self._looks_again_s = monotonic() + _LOOK_INTERVAL_S if why else 0.0
        if why and why != self._told:
            _log.warning("%s", why)
        self._told = why
        return not why

    def is_member(self) -> bool:
        """Return whether the group has a member of this worker's name and directory. Raises what the log raises."""
        named = [each for each in self._context.admin.members(self._context.group) if each.instance_id == self._name]
        return any(not self._context.files.is_of_another_directory(each.client_id) for each in named)

    def may_leave(self) -> bool:
        """Return whether this worker, which cannot be queried, should leave its group. If so, write this to its entry.

        False if no other node has a worker, or if another worker left lately. Then the fault may not be this node's."""
        if self._entries is None or not self._has_others(self._context.admin.members(self._context.group)):
            return False
        if failed_alike(self._entries, self._entries.all(), self._name):
            return False
        own_at = self._entries.say_fault(FaultEntry(stays=False))
        if failed_alike(self._entries, self._entries.all(), self._name, before=own_at):
            self._entries.withdraw_fault()  # two nodes that do not link have found it at once
            return False
        return True

    def has_others(self) -> bool:
        """Return whether the group has a worker of another node. True if the log does not say."""
        if self._entries is None:
            return False
        try:
            return self._has_others(self._context.admin.members(self._context.group))
        except RetryLaterError:
            return True

    def withdraw_fault(self) -> None:
        """Delete this worker's fault: its tasks run. Another worker may leave its group from now on."""
        if self._entries is None:
            return
        try:
            self._entries.withdraw_fault()
        except (RetryLaterError, DoesNotExistError) as error:
            _log.warning("Other nodes still count a fault of this worker, for up to an hour: %s", error)

    def _has_others(self, members: Collection[GroupMember]) -> bool:
        return any(self._context.files.is_of_another_directory(member.client_id) for member in members)

    def look_after(self) -> None:
        """Write this worker's entry again if the nodes topic was deleted. Looks every 5 s."""
        if self._entries is None or self._said_in is None or monotonic() < self._topic_again_s:
            return
        self._topic_again_s = monotonic() + _TOPIC_INTERVAL_S
        try:
            self._say(self._entries)
        except (RetryLaterError, DoesNotExistError) as error:
            _log.debug("This worker cannot announce itself again now: %s", error)

    def _say(self, entries: WorkerEntries) -> None:
        topic_id = nodes_topic_id(self._context.group, self._context.admin)
        if topic_id is not None and topic_id != self._said_in:
            entries.close()
            entries.say()
            self._said_in = topic_id

    def check(self) -> None:
        """Check whether the worker may run the tasks that the group gave it.

        Raises `RetryLaterError` if a worker of another topology with an earlier entry joined at the same time,
        `ConfigurationError` during a reset, and `LockedError` after one."""
        if self._entries is None:
            return
        reset = self._entries.newest_reset(self._context.admin)
        refuse_unfinished(reset, self._context.group, self._context.topology.target)
        if reset is not None and reset.epoch > followed_epoch(self._context.files.directory):
            raise LockedError(
                f"{self._context.group!r} was reset while this worker was out of its group, so its state is out of "
                "date. Restart it: it begins without state."
            )
        members = self._context.admin.members(self._context.group)
        if len(members) < 2:
            return
        known = self._entries.all()
        own_at = known[self._name][0] if self._name in known else -1
        before = [name for name in self._of_another_topology(members, known) if known[name][0] < own_at]
        if before:
            raise RetryLaterError(self._others(before))

    def _name_is_taken(self, members: Collection[GroupMember]) -> str:
        others = [member for member in members if member.instance_id == self._name]
        if not any(self._context.files.is_of_another_directory(member.client_id) for member in others):
            return ""
        return (
            f"The group still has a worker named {self._name!r} with another state.dir: waiting until it has left, or "
            "its session has ended. If the old disk was lost, nothing is to be done. If both workers run, give each "
            "its own name (node.name, group.instance.id)."
        )

    def _of_another_topology(self, members: Collection[GroupMember], known: Known) -> list[str]:
        names = {entry_name(member) for member in members} - {self._name}
        return sorted(name for name in names if name in known and known[name][1].tasks != self._own.tasks)

    def _say_nothing(self, members: Collection[GroupMember], known: Known) -> str:
        silent = sorted(name for name in map(entry_name, members) if name != self._name and name not in known)
        if not silent or self._context.lease.holds:
            self._unknown_since_s = None
            return ""
        since_s = self._unknown_since_s = self._unknown_since_s or monotonic()
        if monotonic() > since_s + _UNKNOWN_PATIENCE_S:
            return ""
        return f"{', '.join(silent)} in this group have not said which application they run: waiting for that."

    def _others(self, names: Collection[str]) -> str:
        if not names:
            return ""
        return (
            f"{', '.join(names)} in this group run another application than this worker does, with other topics or "
            "stores: waiting until all of them have left, or their sessions have ended. Stop them, and start every "
            "node with the same application."
        )
