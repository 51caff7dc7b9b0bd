"""`BackupMaker`: lets workers link their stores, and writes the files to the backup location.

Each worker links all stores of its running tasks between two commits, which takes milliseconds. They are one cut. The
files lie in a snapshot that is never finished. It goes when the backup is written, or with the next sweep if this
process dies. Limits of snapshots neither hold for it nor count it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from stateline.backup.location import BackupLocation
from stateline.backup.reading import declared
from stateline.backup.retention import Swept, sweep
from stateline.backup.writing import BackupWriter, Written
from stateline.config.settings import Config
from stateline.deployment.backup_figures import BackupFigures
from stateline.deployment.stores.resets import followed_epoch
from stateline.deployment.stores.topology_file import Placement, read_topology
from stateline.deployment.workers.instance_file import lock_path
from stateline.model.topology import Topology
from stateline.serde.plain import type_name
from stateline.server.state.workers import Workers
from stateline_store import NotPresentError, StatelineError
from stateline_store.clock import now_ms
from stateline_store.files.process_metadata import known_process_id
from stateline_store.inspection.inspection import lock_holder
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from stateline_store.snapshots.store_copies import StoreCopy
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

T = TypeVar("T")
_NICENESS = 10


class MadeBackup(NamedTuple):
    """A backup, the files that were written for it, and the reason for each task that runs here and is not in it."""

    backup: Backup
    written: Written
    lacks: Mapping[str, str]


class BackupMaker:
    """One per process, for its event loop's thread. Files are read and written on a thread of their own, which yields
    to all others."""

    def __init__(self, config: Config, topology: Topology, workers: Workers) -> None:
        """Raises as `BackupLocation.of`."""
        self.location = BackupLocation.of(config, create=True)
        self._config, self._topology, self._workers = config, topology, workers
        self._on_disk = {
            each.ordinal: tuple(declared(topology, str(each.task_id(0)))) for each in topology.subtopologies
        }
        limit = config.backup_max_bytes_per_second
        self._writer = BackupWriter(self.location, config.node, config.backup_retention_ms, limit)
        self._snapshots = SnapshotDirectory(config.state_dir / topology.application_id)
        self._application = self._snapshots.path.parent
        self._thread = ThreadPoolExecutor(1, "backup", initializer=_yield_to_others)
        self._stopped = threading.Event()

    def tasks(self) -> list[str]:
        """Return all tasks with stores on disk, also those of other nodes. Raises as `read_topology`."""
        placements, names = read_topology(self._application).placements(), {*chain(*self._on_disk.values())}
        places = (each for name, each in placements.items() if name in names)
        return sorted({each.task_id(number) for each in places for number in range(each.partitions)}, key=TaskId.parse)

    async def make(self, id_: str, *, full: bool = False) -> MadeBackup:
        """Back up all stores on disk of the tasks that run here, without those that cannot be linked now. `full` writes
        all pieces again. Raises `NotPresentError` if no task runs here, and `RetryLaterError` when the location
        or the disk refuses."""
        unfinished = await asyncio.to_thread(self._snapshots.begin_for_backup)
        try:
            backup, lacks = await self._linked(id_, unfinished.id)
            reached("backup:linked")
            write = partial(self._writer.write, full=full)
            return MadeBackup(*await self._run(write, backup, unfinished.path, self._stopped), lacks)
        finally:
            unfinished.close()
            await asyncio.to_thread(self._snapshots.give_up, unfinished.id)

    async def sweep(self) -> Swept:
        """Delete old backups and files without one, of all nodes."""
        return await self._run(sweep, self.location, self._config.backup_retention_ms, self._config.backup_keep)

    async def refuse_lost(self, figures: BackupFigures) -> None:
        """Raise `DoesNotExistError` if the location has no backup although these figures are of backups there."""
        if figures.location == self.location.url:
            await self._run(self.location.refuse_empty)

    def close(self) -> None:
        """Stop what is being written."""
        self._stopped.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _linked(self, id_: str, snapshot_id: str) -> tuple[Backup, dict[str, str]]:
        """Return the backup of what workers have linked, and the reason for each task that it lacks."""
        parts: list[CheckpointPart] = []
        topics: dict[str, str] = {}
        offsets: dict[str, int] = {}
        committed: dict[str, Any] = {}
        failed: StatelineError | None = None
        lacks: dict[str, str] = {}
        created_at_ms, reset_epoch = now_ms(), followed_epoch(self._application)
        for name, instance in self._workers.instances.items():
            running = [task for task, state in instance.tasks.items() if state == "running"]
            if running and lock_holder(lock_path(self._application, name))[0] is not False:
                try:
                    linked = await self._workers.link_for_backup(name, snapshot_id, self._places(running))
                except StatelineError as error:
                    failed = error
                    lacks |= dict.fromkeys(running, str(error))
                    continue
                parts += linked.parts
                topics |= linked.topics
                offsets |= linked.offsets
                lacks |= linked.lacks
                committed |= {task: linked.committed[task] for task in running if task in linked.committed}
        if not committed:
            raise failed or NotPresentError("No task runs here: there is nothing to back up.")
        path = self._snapshots.path / snapshot_id
        source = str(known_process_id(self._application))
        copy = await asyncio.to_thread(StoreCopy.of, source, topics, parts, path)
        placements = read_topology(self._application).placements()
        stores = {name: self._described(name, placements) for names in self._on_disk.values() for name in names}
        application, digest = self._topology.application_id, self._topology.digest()
        node = self._config.node
        no_digests: dict[str, list[str]] = {}  # the writer makes them
        told = stores, offsets, committed, no_digests, copy, reset_epoch
        backup = Backup(id_, node, application, created_at_ms, digest, *told)
        return backup, {task: why for task, why in lacks.items() if task not in committed}

    def _places(self, tasks: list[str]) -> list[tuple[str, int]]:
        """Return the stores on disk of these tasks."""
        ids = map(TaskId.parse, tasks)
        return [(name, task.partition) for task in ids for name in self._on_disk.get(task.subtopology, ())]

    def _described(self, name: str, placements: Mapping[str, Placement]) -> dict[str, Any]:
        store, placement = self._topology.stores[name], placements.get(name)
        return {
            "kind": store.kind,
            "key_type": type_name(store.key),
            "value_type": type_name(store.value),
            "timestamped": store.timestamped,
            "changelog": store.changelog(self._topology.application_id),
            "retention_ms": store.retention_ms,
            "window_size_ms": store.window_size_ms,
            "headers": store.headers,
            "partitions": None if placement is None else placement.partitions,
            "subtopology": self._topology.subtopology_of(name).ordinal,
        }


def _yield_to_others() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
