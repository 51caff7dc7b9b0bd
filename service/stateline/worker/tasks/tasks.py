"""The tasks of a worker, by id, by source partition and by store. Closes many of them side by side.

To close a store takes half a dozen syncs of the disk, and little processor time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from stateline.deployment.lease import Lease
from stateline.log.interface import OffsetNote
from stateline.query.values import HostedPartition
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import StateStore, StoreState, TopicPartition, TransactionalStore
from stateline_store.clock import boot_ms
from stateline_store.rocksdb.options import flushing_at_once
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_AT_ONCE = 8  # tasks that close at a time
_SAID_AGAIN_S = 5.0  # how often the log says how many are closed

# The state of a store in answers, by its task's state. In other states its stores are not queried.
_SERVED = {
    TaskState.RESTORING: StoreState.RESTORING,  # a former standby answers as a standby until it runs
    TaskState.RUNNING: StoreState.ACTIVE,
    TaskState.SUSPENDED: StoreState.STANDBY,  # the group may have given it to another worker
}


class Tasks:
    """After `lease`, others may have them. `all` has them by id, `by_source` by the partitions that they read.
    `task_manager` adds and removes tasks."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.by_source: dict[TopicPartition, Task] = {}
        self.changes = 0
        """How often tasks have come, gone or moved to another state, standbys included."""
        self.all: dict[TaskId, Task] = {}
        self._by_store: dict[tuple[str, int], Task] = {}

    @property
    def running(self) -> list[Task]:
        return self.in_state(TaskState.RUNNING)

    def in_state(self, state: TaskState) -> list[Task]:
        return [task for task in self.all.values() if task.state is state]

    @property
    def are_settled(self) -> bool:
        return bool(self.all) and all(task.state is TaskState.RUNNING for task in self.all.values())

    def dirty(self) -> list[Task]:
        return [task for task in self.running if task.processing.dirty]

    def next_offsets(self) -> dict[TopicPartition, int]:
        return {source: at for task in self.running for source, at in task.processing.next_offsets.items()}

    def committed(self) -> dict[str, dict[str, tuple[int, int | None, str | None]]]:
        """Return for each running task, by topic, the next offset of the newest commit and its note."""
        return {
            str(task.id): {
                source.topic: (at, *task.processing.committed_notes.get(source, OffsetNote()))
                for source, at in task.processing.committed_next_offsets.items()
            }
            for task in self.running
        }

    def staged_bytes(self) -> int:
        return sum(task.staged_bytes for task in self.running)

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        """Return this partition of a store, to be queried; None if this worker cannot answer for it."""
        task = self._by_store.get((store, partition))
        if task is None or task.state not in _SERVED:
            return None
        found = task.stores.by_name[store]
        if not isinstance(found, TransactionalStore) or not found.is_open:
            return None
        state = _SERVED[task.state]
        if state is StoreState.ACTIVE and self._lease.holds:
            return HostedPartition(found, state)
        offset = task.standby_offset(store)
        if offset is None:
            return HostedPartition(found, StoreState.RESTORING)
        return HostedPartition(found, StoreState.STANDBY, offset, self._since_left_ms(task))

    def owned(self, store: str, partition: int) -> StateStore | None:
        """Return this partition of a store of any kind if this worker runs it and nobody else can have it."""
        task = self._by_store.get((store, partition))
        if task is None or _SERVED.get(task.state) is not StoreState.ACTIVE or not self._lease.holds:
            return None
        found = task.stores.by_name[store]
        return found if found.is_open else None

    def _since_left_ms(self, task: Task) -> int | None:
        """Return for how long this task may have been another worker's since it ran here; None for unknown."""
        until_ms = self._lease.until_ms
        if not until_ms or task.state is TaskState.RESTORING:
            return None
        left_ms = until_ms if task.suspended_at_ms is None else min(until_ms, task.suspended_at_ms)
        return max(0, boot_ms() - left_ms)

    def moved(self) -> None:
        """A task, or a standby, has moved to another state. Threads that close tasks call it as well: at least one
        count arrives."""
        self.changes += 1

    def add(self, task: Task) -> None:
        self.changes += 1
        self.all[task.id] = task
        self.by_source.update(dict.fromkeys(task.topology.sources, task))
        self._by_store.update({(store, task.id.partition): task for store in task.topology.definitions})

    def remove(self, task: Task) -> None:
        self.changes += 1
        self.all.pop(task.id, None)
        for source in task.topology.sources:
            self.by_source.pop(source, None)
        for store in task.topology.definitions:
            self._by_store.pop((store, task.id.partition), None)


def states_of(tasks: Iterable[Task]) -> dict[str, str]:
    return {str(task.id): str(task.state) for task in tasks}


def close_together(tasks: Collection[Task]) -> Iterator[tuple[Task, Exception | None]]:
    """Close each task, and yield it with the error that `Task.close` raised. All are closed when the iterator ends."""
    said_s = time.monotonic()
    for number, closed in enumerate(_closed(tasks), start=1):
        yield closed
        if number < len(tasks) and time.monotonic() > said_s + _SAID_AGAIN_S:
            said_s = time.monotonic()
            _log.info("Closing tasks: %d of %d are closed", number, len(tasks))


def _closed(tasks: Collection[Task]) -> Iterator[tuple[Task, Exception | None]]:
    """Yield each task when it is closed. An application's own store closes on this thread, which has opened it."""
    beside = [task for task in tasks if task.stores.close_on_any_thread]
    with flushing_at_once(min(_AT_ONCE, len(beside))), ThreadPoolExecutor(_AT_ONCE, "close") as pool:
        closing = {pool.submit(_close, task): task for task in beside}
        yield from ((task, _close(task)) for task in tasks if not task.stores.close_on_any_thread)
        yield from ((closing[done], done.result()) for done in as_completed(closing))


def _close(task: Task) -> Exception | None:
    try:
        task.close()
    except Exception as error:  # noqa: BLE001 - the others are closed all the same
        return error
    return None
