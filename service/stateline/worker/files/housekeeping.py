"""A worker's care for the state directory: every store at its place before the start, unused tasks deleted later."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import suppress

from stateline.config.settings import Config
from stateline.deployment.stores.leftover_stores import leftovers, stores_on_disk, told
from stateline.model.topology import Topology
from stateline_store import RetryLaterError, StateDirectory, clean, settle_places
from stateline_store.clock import now_ms
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)


class Housekeeping:
    def __init__(self, directory: StateDirectory, topology: Topology, config: Config) -> None:
        self._directory, self._topology = directory, topology
        self._subtopologies = {s.ordinal: s for s in topology.subtopologies}
        self._automatic = config.automatic_state_relocation
        self._delay_s = config.state_cleanup_delay_ms / 1000
        self.last_clean = time.monotonic()  # the first pass comes a delay after the start

    def settle_places(self) -> None:
        """Move stores whose subtopology has another number now (KIP-816), before any task is opened. Raises as
        `stateline_store.settle_places`."""
        wanted = {store.name: s.ordinal for s in self._subtopologies.values() for store in s.stores}
        settle_places(self._directory, wanted, automatic=self._automatic)

    def say_leftovers(self) -> None:
        """Warn once of stores on disk that the application does not declare. Unreadable files are ignored."""
        with suppress(RetryLaterError, OSError):
            if found := leftovers(self._directory, self._topology.all_stores):
                _log.warning("%s", told(found, self._topology.target))

    def sweep_snapshots(self) -> None:
        """Delete snapshots whose lease has ended, and remains of crashes. After a failure the next call tries again."""
        try:
            if swept := SnapshotDirectory(self._directory.application).sweep(now_ms()):
                _log.info("Deleted snapshots whose lease has ended: %s", ", ".join(swept))
        except RetryLaterError as error:
            _log.warning("Snapshots are not tidied up: %s", error)

    def clean_if_due(self, live: Collection[TaskId], global_tables: str) -> None:
        """Delete directories of tasks that nobody has used for ``state.cleanup.delay.ms``. `live` are this worker's
        tasks, `global_tables` is the directory of its global tables. A task stays if a store of it cannot be rebuilt,
        or is not declared."""
        if time.monotonic() - self.last_clean < self._delay_s:
            return
        self.last_clean = time.monotonic()
        self.sweep_snapshots()
        tasks = {global_tables, *map(str, live)}
        clean(self._directory, tasks, int(self._delay_s * 1000), now_ms(), self._must_stay)

    def _must_stay(self, task_id: str) -> bool:
        if not TaskId.is_one(task_id):
            return False  # global tables: their topics have them
        subtopology = self._subtopologies.get(TaskId.parse(task_id).subtopology)
        if subtopology is None:
            return True
        rebuilt = {store.name for store in subtopology.stores if store.source is not None or store.logged}
        return not stores_on_disk(self._directory.task(task_id)) <= rebuilt
