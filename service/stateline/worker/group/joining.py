"""Whether a worker may take part in its group.

| in the group is                                 | then                                                              |
|-------------------------------------------------|-------------------------------------------------------------------|
| a worker of this name, of another directory     | it waits: it would be given the other's tasks at once, while that |
|                                                 | still has its lease                                               |
| a worker of another topology, not in            | it waits until all of these have left: each commits the input of  |
| timestamps of stores alone                      | tasks that mean other stores to the other                         |
| nobody like that, and the last starts of this   | it leaves for a while, or joins (`crash_loop`)                    |
| worker have failed                              |                                                                   |
| nobody like that                                | it joins                                                          |

Of two of different topologies that begin at once, who said so later finds it when the group gives it its first tasks,
processes nothing, and begins anew. Where the topic was deleted in which they say it, each says it again; who wants to
join waits for that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import monotonic

from stateline.deployment.lease import Lease
from stateline.deployment.nodes_topic import nodes_topic_id
from stateline.deployment.resets import refuse_unfinished
from stateline.deployment.worker_entries import FaultEntry, WorkerEntries, WorkerEntry, entry_name
from stateline.log.interface import Admin, GroupMember
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.group.crash_loop import CrashLoop, Known, failed_alike
from stateline_store import DoesNotExistError, LockedError, RetryLaterError

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
# How often it is looked whether the topic is still the one in which this worker has said what it is.
_TOPIC_INTERVAL_S = 5.0
# So long is waited for a member to say what it is: longer than it takes to find out that it has to say it again.
_UNKNOWN_PATIENCE_S = 3 * _TOPIC_INTERVAL_S


class Joining:
    """One worker's, on its thread. On the embedded log, which one machine has for itself, it asks nobody."""

    def __init__(
        self,
        group: str,
        name: str,
        own: WorkerEntry,
        admin: Admin,
        deployment: DeploymentFiles,
        lease: Lease,
        entries: WorkerEntries | None,
        crash_loop: CrashLoop | None,
    ) -> None:
        """`name` is the worker's in the group, `own` what it says of itself. `entries` and `crash_loop` are None on the
        embedded log."""
        self._group = group
        self._name = name
        self._own = own
        self._admin = admin
        self._deployment = deployment
        self._lease = lease
        self._entries = entries
        self._crash_loop = crash_loop
        self._said_in: str | None = None  # the id of the topic
        self._looks_again_s = self._topic_again_s = 0.0
        self._unknown_since_s: float | None = None
        self._told = ""

    def is_free(self) -> bool:
        """Whether nothing is in its way. Raises what the log raises."""
        if self._entries is None:
            return True
        if monotonic() < self._looks_again_s:
            return False
        self._say(self._entries)
        members, known = self._admin.members(self._group), self._entries.all()
        why = "" if self._lease.holds else self._name_is_taken(members)
        why = why or self._others(self._of_another_topology(members, known))
        why = why or self._say_nothing(members, known)
        if self._crash_loop is not None and not why:
            why = self._crash_loop.why_out(known, has_others=self._has_others(members))
        self._looks_again_s = monotonic() + _LOOK_INTERVAL_S if why else 0.0
        if why and why != self._told:
            _log.warning("%s", why)
        self._told = why
        return not why

    def is_member(self) -> bool:
        """Whether the group has a member of this worker's name and directory. Raises what the log raises."""
        named = [each for each in self._admin.members(self._group) if each.instance_id == self._name]
        return any(not self._deployment.is_of_another_directory(each.client_id) for each in named)

    def may_leave(self) -> bool:
        """Whether this worker, which nobody can ask, is to leave its group, and says so to the others. Not where no
        other node has a worker, and not where another one had to leave lately: it may be no fault of this node. Raises
        what the log raises."""
        if self._entries is None or not self._has_others(self._admin.members(self._group)):
            return False
        if failed_alike(self._entries, self._entries.all(), self._name):
            return False
        own_at = self._entries.say_fault(FaultEntry(stays=False))
        if failed_alike(self._entries, self._entries.all(), self._name, before=own_at):
            self._entries.withdraw_fault()  # both of two nodes have found at once that they do not link
            return False
        return True

    def has_others(self) -> bool:
        """Whether a worker of another node is in the group, which then gets what this one leaves. True where the log
        does not say."""
        if self._entries is None:
            return False
        try:
            return self._has_others(self._admin.members(self._group))
        except RetryLaterError:
            return True

    def withdraw_fault(self) -> None:
        """The worker works. If it had to leave its group before, another one may leave from now on."""
        if self._entries is None:
            return
        try:
            self._entries.withdraw_fault()
        except (RetryLaterError, DoesNotExistError) as error:
            _log.warning("Other nodes still count a fault of this worker, for up to an hour: %s", error)

    def _has_others(self, members: Collection[GroupMember]) -> bool:
        return any(self._deployment.is_of_another_directory(member.client_id) for member in members)

    def look_after(self) -> None:
        """Say again what this worker is, where the topic was deleted in which it has. Looks now and then."""
        if self._entries is None or self._said_in is None or monotonic() < self._topic_again_s:
            return
        self._topic_again_s = monotonic() + _TOPIC_INTERVAL_S
        try:
            self._say(self._entries)
        except (RetryLaterError, DoesNotExistError) as error:
            _log.debug("This worker cannot announce itself again now: %s", error)

    def _say(self, entries: WorkerEntries) -> None:
        topic_id = nodes_topic_id(self._group, self._admin)
        if topic_id is not None and topic_id != self._said_in:
            entries.close()
            entries.say()
            self._said_in = topic_id

    def check(self) -> None:
        """It was given its tasks. Raises `RetryLaterError` when one of another topology, which said so before this one
        did, has come in at the same time; `ConfigurationError` when a reset has begun, which has looked who is in the
        group before it was joined, and `LockedError` when one was done since this worker started: its session was over
        meanwhile, and its state is older."""
        if self._entries is None:
            return
        reset = self._entries.newest_reset(self._admin)
        refuse_unfinished(reset, self._group)
        if reset is not None and reset.epoch > self._deployment.followed_epoch():
            raise LockedError(
                f"{self._group!r} was reset while this worker was out of its group, so its state is out of date. "
                "Restart it: it begins without state."
            )
        members = self._admin.members(self._group)
        if len(members) < 2:
            return
        known = self._entries.all()
        own_at = known[self._name][0] if self._name in known else -1
        before = [name for name in self._of_another_topology(members, known) if known[name][0] < own_at]
        if before:
            raise RetryLaterError(self._others(before))

    def _name_is_taken(self, members: Collection[GroupMember]) -> str:
        others = [member for member in members if member.instance_id == self._name]
        if not any(self._deployment.is_of_another_directory(member.client_id) for member in others):
            return ""
        return (
            f"Another directory has a worker named {self._name!r} in this group: waiting until it has left, or its "
            "session has ended. Each running worker needs its own name (node.name, group.instance.id)."
        )

    def _of_another_topology(self, members: Collection[GroupMember], known: Known) -> list[str]:
        names = {entry_name(member) for member in members} - {self._name}
        return sorted(name for name in names if name in known and known[name][1].tasks != self._own.tasks)

    def _say_nothing(self, members: Collection[GroupMember], known: Known) -> str:
        silent = sorted(name for name in map(entry_name, members) if name != self._name and name not in known)
        if not silent or self._lease.holds:
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
