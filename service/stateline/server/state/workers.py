"""The server's connections to the workers of its application, and the tasks of each worker.

There is one connection to each live instance. If a worker is gone or does not answer in time, queries of its partitions
fail with `NotPresentError`. For the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateline.deployment.unix_sockets import trusted_users
from stateline.deployment.workers.failed_starts import FailedStarts
from stateline.deployment.workers.instance_file import STANDBY, Instance, instances_directory, lock_path, read_instances
from stateline.query.values import Failure, Outcome, Terms
from stateline.server.state.worker_connection import LinkedForCopy, LinkedParts, WorkerConnection
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import (
    IsolationLevel,
    NotPresentError,
    Query,
    StatelineError,
)
from stateline_store.clock import boot_ms
from stateline_store.inspection.inspection import may_be_held

# A restarted worker is back sooner, and a working one stays longer.
_STARTS_WITHIN_S = 4.0
_LOOK_AGAIN_S = 0.02

_log = logging.getLogger(__name__)


@dataclass
class Interruption:
    """An instance with tasks that did not run. `times` is the number of interruptions since `began_ms`."""

    began_ms: int
    times: int = 0
    runs_ms: int | None = None

    def goes_on(self) -> None:
        """Note that the instance does not run now."""
        self.times += self.runs_ms is not None or not self.times
        self.runs_ms = None

    def has_run_for(self, seconds: float) -> bool:
        """Note that the instance runs its tasks. Return whether it has for so many seconds."""
        self.runs_ms = self.runs_ms or boot_ms()
        return boot_ms() - self.runs_ms > seconds * 1000

    @property
    def is_over(self) -> bool:
        """Whether it was one restart, and the instance runs its tasks again."""
        return self.times == 1 and self.runs_ms is not None


class Workers:
    """Every instance of the application, by the files in `<application>/instances`.

    `on_change` is called when a worker has committed, was connected, or has other tasks. Waiting queries then look
    again.
    """

    def __init__(self, application: Path, on_change: Callable[[], None], limits: TimeLimits) -> None:
        self._application = application
        self._on_change = on_change
        self._limits = limits
        self._refreshing = asyncio.Lock()
        self._connections: dict[str, WorkerConnection] = {}
        self._live_owners: dict[str, WorkerConnection] = {}  # by task; as of the last refresh
        self.running: dict[str, WorkerConnection] = {}
        """By task: the connections that `runs` has found since the last refresh."""
        self._leases: dict[str, tuple[str, float]] = {}  # by task: the instance that ran it last, and until when
        self._refused: set[str] = set()  # instances at whose socket a process of another user listens
        self._interrupted: dict[str, Interruption] = {}  # by instance
        self._has_read = False
        self.instances: dict[str, Instance] = {}
        self.assigned_at_ms = 0
        """The last new assignment seen here, by `boot_ms`; 0 before any."""

    async def refresh(self) -> None:
        """Read the instances again. Connect to live ones, and disconnect from those that left."""
        async with self._refreshing:
            known, self.instances = self.instances, read_instances(self._application)
            self._live_owners.clear()
            if known != self.instances:
                self._on_change()  # a task may have got its owner
            if any(_is_assigned_anew(known.get(name), each) for name, each in self.instances.items()):
                self.assigned_at_ms = boot_ms()
            self.running.clear()
            self._note_leases()
            self._note_interruptions()
            for name, connection in list(self._connections.items()):
                if not connection.alive or self.instances.get(name) is None or _moved(name, known, self.instances):
                    del self._connections[name]
                    await connection.close()
            for name, instance in self.instances.items():
                if name not in self._connections:
                    await self._connect(name, instance)
            self._has_read = True

    async def until_known(self, within_s: float) -> None:
        """Wait until every connected instance has told its lease. Until then, its tasks seem to have no owner."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._has_read or not all(each.answers for each in self._connections.values() if each.alive):
                    await asyncio.sleep(_LOOK_AGAIN_S)

    def look_after(self) -> None:
        """Ask every worker for a sign of life. Returns at once. `answers` has the result later."""
        for connection in self._connections.values():
            connection.look_after()

    def is_connected(self, instance: str) -> bool:
        """Whether this instance is connected. It may hang."""
        connection = self._connections.get(instance)
        return connection is not None and connection.alive

    def answers(self, instance: str) -> bool:
        """Whether this instance is connected and has recently answered."""
        connection = self._connections.get(instance)
        return connection is not None and connection.answers

    def faults(self) -> dict[str, str]:
        """Return by instance why it does not run its tasks: its own words, or that it has ended and its tasks wait."""
        found = {name: each.fault for name, each in self._connections.items() if each.alive and each.fault}
        for name, interruption in self._interrupted.items():
            for_s = (boot_ms() - interruption.began_ms) / 1000
            if name not in found and for_s > _STARTS_WITHIN_S and not interruption.is_over:
                times = "" if interruption.times == 1 else f", {interruption.times} times"
                since = f"It has ended within the last {for_s:.0f} s{times}"
                found[name] = f"{since}, and its tasks wait for it. Its log says why."
        return found

    def failed_starts(self) -> dict[str, str]:
        """Return a message by missing instance with the number of its failed starts in a row."""
        found: dict[str, str] = {}
        for path in instances_directory(self._application).glob("*.starts"):
            name, count = path.stem, FailedStarts(self._application, path.stem).count
            if count and not self.is_connected(name):
                starts = "start has" if count == 1 else f"{count} starts have"
                found[name] = f"Its last {starts} failed. Its log says why."
        return found

    def unwritten_figures(self) -> dict[str, bytes]:
        """Return the figures by instance that it cannot write to its file. Thread-safe."""
        connected = dict(self._connections).items()
        return {name: each.figures for name, each in connected if each.alive and each.figures is not None}

    def say_unreached(self, why: str) -> None:
        """Tell every worker that no other node reaches this one."""
        for connection in self._connections.values():
            connection.say_unreached(why)

    def is_alive(self, instance: str) -> bool:
        """Whether the process of this instance may live. A killed process leaves its file, but no lock."""
        return self.is_connected(instance) or may_be_held(lock_path(self._application, instance))

    def owner(self, task_id: str) -> str | None:
        """Return the instance that has this task, or None: one that answers, else a connected one, else the last."""
        owners = [name for name, instance in self.instances.items() if instance.has(task_id)]
        if len(owners) > 1:  # of a global table, mostly
            owners.sort(key=lambda name: self.instances[name].state_of(task_id) != "running")
        for is_good in (self.answers, self.is_connected):
            if (best := next(filter(is_good, owners), None)) is not None:
                return best
        return owners[0] if owners else None

    def live_owner(self, task_id: str) -> WorkerConnection | None:
        """Return the connected worker that has this task, or None."""
        known = self._live_owners.get(task_id)
        if known is not None and known.owns_tasks:
            return known
        owner = self.owner(task_id)
        connection = None if owner is None else self._connections.get(owner)
        if connection is None or not connection.owns_tasks:
            return None
        self._live_owners[task_id] = connection
        return connection

    def has_live_owner(self, task_id: str) -> bool:
        """Whether a connected worker has this task."""
        return self.live_owner(task_id) is not None

    def runs(self, task_id: str) -> bool:
        """Whether a connected worker runs this task within its lease, by its last message."""
        known = self.running.get(task_id)
        if known is not None and known.owns_tasks:
            return True
        for name, instance in self.instances.items():
            connection = self._connections.get(name)
            if connection is None or not connection.owns_tasks:
                continue
            if instance.state_of(task_id) == "running":
                self.running[task_id] = connection
                return True
        return False

    def lease_holds(self, task_id: str) -> bool:
        """Whether the lease of the instance that ran this task has not ended, even if the process has. A restoring
        instance does not count, because its copy is not whole. Only the last refresh shows tasks given back."""
        self._note_leases()
        return task_id in self._leases and self._leases[task_id][1] > boot_ms()

    def generation(self, task_id: str) -> int:
        """Return the group's generation in which a worker here got this task; -1 if none has it."""
        found = (each.generation for each in self.instances.values() if each.has(task_id))
        return max(found, default=-1)

    @property
    def member_ids(self) -> set[str]:
        """Return the member ids of this directory's instances in their group, alive or not."""
        return {each.member_id for each in self.instances.values() if each.member_id is not None}

    def _note_leases(self) -> None:
        """Note the end of each task's lease. Instances that are gone keep theirs, because neither a static member nor a
        killed process leaves its group."""
        for name, instance in self.instances.items():
            if (connection := self._connections.get(name)) is None:
                continue
            had = {task_id for task_id, (owner, _) in self._leases.items() if owner == name}
            # Before its first assignment, a restarted instance has the tasks of its former process.
            has = set(filter(instance.has, instance.tasks))
            told = had | has if instance.generation >= 0 else has
            for task_id in told:
                if instance.tasks.get(task_id) == "running":
                    self._leases[task_id] = name, connection.lease_until_ms
                else:  # given back, even if it is restored again since
                    self._leases.pop(task_id, None)

    def _note_interruptions(self) -> None:
        """Note for each instance with tasks whether it is connected and runs them."""
        for name in {name for name, _ in self._leases.values()}:
            states = self.instances[name].tasks.values() if name in self.instances else ()
            if not (self.is_connected(name) and "running" in states):
                self._interrupted.setdefault(name, Interruption(boot_ms())).goes_on()
            elif name in self._interrupted and self._interrupted[name].has_run_for(_STARTS_WITHIN_S):
                del self._interrupted[name]
        for name in self._interrupted.keys() - {name for name, _ in self._leases.values()}:
            del self._interrupted[name]

    def has_answering_owner(self, task_id: str) -> bool:
        """Whether a worker that answers has this task."""
        owner = self.owner(task_id)
        return owner is not None and self.answers(owner)

    async def query(
        self, task_id: str, terms: Terms, partition: int, query: Query[Any], wait_ms: int, declared: str
    ) -> Outcome:
        """Ask the task's owner, as of the last `refresh`. For committed reads without an owner, ask a worker with a
        standby. `declared` is that of `WorkerConnection.query`."""
        owner = self.owner(task_id)
        connection = self._connections.get(owner) if owner is not None else None
        is_there = connection is not None and connection.alive
        if not is_there and terms.isolation_level is IsolationLevel.READ_COMMITTED:
            connection = self._follower(task_id)
        if connection is None or not connection.alive:
            return Failure(NotPresentError(_unreachable(terms.store, partition, owner)))
        try:
            return await connection.query(terms, partition, query, wait_ms, declared)
        except StatelineError as error:
            return Failure(error)

    def follows(self, task_id: str) -> bool:
        """Whether a connected worker follows this task as a standby."""
        return self._follower(task_id) is not None

    def _follower(self, task_id: str) -> WorkerConnection | None:
        for name, instance in self.instances.items():
            connection = self._connections.get(name)
            if connection is not None and connection.alive and instance.tasks.get(task_id) == STANDBY:
                return connection
        return None

    async def snapshot(self, owner: str | None, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedParts:
        """Let this owner of all these places link them into a snapshot. Raises like `WorkerConnection.snapshot`."""
        connection = self._connections.get(owner) if owner is not None else None
        if connection is None or not connection.alive:
            store, partition = places[0]
            if owner is not None:
                raise NotPresentError(_unreachable(store, partition, owner))
            raise NotPresentError(
                f"Partition {partition} of {store!r} is on no worker, and a server alone makes no snapshot. Only the "
                "worker that owns a store can link its files between two commits. Start `stateline worker` or "
                "`stateline run` with this state.dir, and ask again when it has the partition."
            )
        return await connection.snapshot(snapshot, places)

    def wanted_copies(self) -> dict[str, tuple[WorkerConnection, Sequence[str]]]:
        """Return by task the worker that wants its stores from another node, and the stores."""
        connected = [each for each in self._connections.values() if each.alive]
        return {task: (each, stores) for each in connected for task, stores in each.wanted_copies.items()}

    async def link_for_copy(self, task_id: str, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedForCopy:
        """Let a worker here that has or follows this task link its files for another node. Raises as
        `WorkerConnection.link_for_copy`."""
        names = [name for name, instance in self.instances.items() if task_id in instance.tasks]
        names.sort(key=lambda name: not self.instances[name].has(task_id))
        connection = next((c for c in map(self._connections.get, names) if c is not None and c.alive), None)
        if connection is None:
            raise NotPresentError(f"No worker of this node has task {task_id}.")
        return await connection.link_for_copy(snapshot, places)

    async def link_for_backup(self, name: str, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedForCopy:
        """Let this instance link stores that it owns for a backup. Raises as `WorkerConnection.link_for_copy`."""
        connection = self._connections.get(name)
        if connection is None or not connection.alive:
            raise NotPresentError(f"Worker {name!r} does not answer: ask again in a moment.")
        return await connection.link_for_copy(snapshot, places, is_backup=True)

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            await connection.close()

    async def _connect(self, name: str, instance: Instance) -> None:
        path, trusted = instance.socket, trusted_users(self._application)
        try:
            self._connections[name] = await WorkerConnection.open(path, self._on_change, self._limits, trusted)
            self._refused.discard(name)
        except PermissionError as error:
            if name not in self._refused:  # it is tried again and again
                _log.warning("Worker %r is not asked at %s: %s. Remove the other process.", name, path, error)
            self._refused.add(name)
        except OSError as error:
            _log.debug("Worker %s does not answer at %s: %s", name, path, error)


def _moved(name: str, known: dict[str, Instance], now: dict[str, Instance]) -> bool:
    before, after = known[name], now[name]
    return (before.pid, before.socket) != (after.pid, after.socket)


def _is_assigned_anew(known: Instance | None, now: Instance) -> bool:
    return now.generation not in (-1, known.generation if known else -1)


def _unreachable(store: str, partition: int, owner: str | None) -> str:
    what = f"Partition {partition} of {store!r}"
    if owner is None:
        return f"{what} is on no worker at the moment: start one, or ask again when the tasks are assigned."
    return f"{what} is on the worker {owner!r}, which does not answer: ask again in a moment."
