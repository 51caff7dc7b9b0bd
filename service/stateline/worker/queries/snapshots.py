"""A worker's part of a snapshot, a copy for another node or a backup: checkpoints of stores, on their owner's thread.

Between two slices of work every store of this worker is at the same commit. `Committer.commit` commits all of them
before it returns, and after a failed commit the worker starts over before it answers anybody. Staged rows are on no
disk. So the linked files are one cut of all stores and partitions, and each store's rows say which commit it is. Stores
of whole epochs are linked only if all of them are at the same epoch. They differ if a worker died in a commit.

A copy may also come from a standby, and of different epochs, because it reads its changelog on. A backup is the owner's
alone, and has stores without a changelog too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stateline.deployment.pipelines.epoch_marker import LOADING
from stateline.model.topology import Topology
from stateline.query.values import Failure, HostedPartition
from stateline.query.wire import encode_outcome
from stateline.worker.files.topic_ids import known
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    StoreState,
    TopicPartition,
)
from stateline_store.files.directory import DIRECTORY_MODE
from stateline_store.files.durable_files import refused
from stateline_store.inspection.format_upgrade import has_plain_files
from stateline_store.snapshots.backup import task_of
from stateline_store.snapshots.checkpoints import CheckpointPart, link_database
from stateline_store.snapshots.snapshot_directory import SNAPSHOTS

_log = logging.getLogger(__name__)
_OWNED = (StoreState.ACTIVE,)
_COPIED = (StoreState.ACTIVE, StoreState.STANDBY)

Place = tuple[str, int]
"""A store and a partition of it."""


Committed = Mapping[str, Mapping[str, Sequence[int | str | None]]]
"""What the group has committed for each running task, by topic: the next offset, and the note's time and parts."""


class CopiedParts(NamedTuple):
    """`topics` has the ids of the topics that the stores were made from. `offsets` has the last applied offset of each
    part's changelog, by the part's directory. `committed` is empty in a copy. `lacks` has the reason for each task
    that a backup is without."""

    parts: list[CheckpointPart]
    topics: dict[str, str]
    offsets: dict[str, int]
    committed: Committed
    lacks: dict[str, str]


class SnapshotMaker:
    """`lookup(store, partition)` returns the partition that it hosts now, or None. `committed` returns the newest
    commit of all running tasks."""

    def __init__(
        self,
        directory: StateDirectory,
        topology: Topology,
        lookup: Callable[[str, int], HostedPartition | None],
        committed: Callable[[], Committed] = dict,
    ) -> None:
        self._directory = directory
        self._topology = topology
        self._lookup, self._committed = lookup, committed
        self._numbers = topology.epoch_numbers()

    @property
    def handlers(self) -> Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {"snapshot": self.answer, "copy": self.answer, "backup": self.answer}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a server's request (`query.wire`), also for a failure.

        It is ``{"parts": […], "epochs": [[topic, partition, number] …]}``, or for a copy or a backup ``{"parts": […],
        "topics": {topic: topic id}, "offsets": {directory of a part: offset in its changelog}, "committed", "lacks":
        {task: reason}}``."""
        try:
            places = [(str(store), int(partition)) for store, partition in message["places"]]
            snapshot_id, kind = str(message["snapshot"]), message.get("type")
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"Not a snapshot and its places: {error!r}"}
        try:
            if kind in ("copy", "backup"):
                copied = (self.make_for_backup if kind == "backup" else self.make_for_copy)(snapshot_id, places)
                return {**copied._asdict(), "parts": [part.to_json() for part in copied.parts]}
            parts, epochs = self.make(snapshot_id, places), self._check_epochs(places)
        except StatelineError as error:
            # The plain kind has no name on the wire: files changed all the time, or the file system refuses.
            why = NotReadyError(str(error)) if type(error) is RetryLaterError else error
            return {"outcome": encode_outcome(Failure(why))}
        except Exception as error:  # noqa: BLE001 - whatever it is, a snapshot must not end the worker
            _log.exception("A snapshot failed")
            return {"outcome": encode_outcome(Failure(StatelineError(f"The snapshot failed: {error}")))}
        numbers = [[place.topic, place.partition, number] for place, number in epochs.items()]
        return {"parts": [part.to_json() for part in parts], "epochs": numbers}

    def make(self, snapshot_id: str, places: Iterable[Place]) -> list[CheckpointPart]:
        """Link these stores' files into the snapshot's existing directory. If the snapshot fails, its maker deletes
        them with the directory.

        Raises `NotPresentError` if a partition or the directory is not here, `NotActiveError` while a task restores,
        `InvalidArgumentError` for a store in memory, and `RetryLaterError` if the disk refuses."""
        places = list(places)
        self._check_epochs(places)
        return [self._link(snapshot_id, name, partition, self._hosted(name, partition)) for name, partition in places]

    def make_for_copy(self, snapshot_id: str, places: Iterable[Place]) -> CopiedParts:
        """Link these stores for another node. Leaves out stores without a changelog, or with nothing of it yet. Raises
        as `make`."""
        copied = CopiedParts([], {}, {}, {}, {})
        for name, partition in places:
            self._copy(copied, snapshot_id, name, partition, self._hosted(name, partition, _COPIED))
        return copied

    def make_for_backup(self, snapshot_id: str, places: Iterable[Place]) -> CopiedParts:
        """Link these stores. Leaves out stores that have nothing of their changelog yet, and tasks of which a store
        cannot be linked now. Raises as `make` if no task is left."""
        committed = dict(self._committed())
        copied, failed = CopiedParts([], {}, {}, committed, {}), list[StatelineError]()
        by_task: dict[str, list[Place]] = {}
        for name, partition in places:
            by_task.setdefault(self._task_id(name, partition), []).append((name, partition))
        for task, of_task in by_task.items():
            own = CopiedParts([], {}, {}, {}, {})
            try:
                for name, partition in of_task:
                    self._copy(own, snapshot_id, name, partition, self._hosted(name, partition), with_unlogged=True)
            except StatelineError as error:
                failed.append(error)
                copied.lacks[task] = str(error)
                committed.pop(task, None)
                continue
            copied.parts.extend(own.parts)
            copied.topics.update(own.topics)
            copied.offsets.update(own.offsets)
        if failed and not committed:
            raise failed[0]
        return copied

    def _copy(
        self,
        copied: CopiedParts,
        snapshot_id: str,
        name: str,
        partition: int,
        hosted: HostedPartition,
        *,
        with_unlogged: bool = False,
    ) -> None:
        changelog = self._topology.stores[name].changelog(self._topology.application_id)
        offset = None if changelog is None else hosted.store.committed_offset(TopicPartition(changelog, partition))
        if offset is None and not (with_unlogged and changelog is None):
            return
        part = self._link(snapshot_id, name, partition, hosted)
        copied.parts.append(part)
        copied.topics.update(known(self._directory.task(task_of(part))))
        if offset is not None:
            copied.offsets[part.directory] = offset

    def _task_id(self, name: str, partition: int) -> str:
        return str(self._topology.subtopology_of(name).task_id(partition))

    def _check_epochs(self, places: Iterable[Place]) -> dict[TopicPartition, int]:
        """Return the numbers of their epochs. Raises `NotReadyError` if stores of one pipeline have different ones."""
        seen: dict[TopicPartition, int] = {}
        for name, partition in places:
            store = self._hosted(name, partition).store
            for place in self._numbers.get(name, ()):
                number = store.committed_offset(place)
                if number in (None, LOADING) or seen.setdefault(place, number) != number:
                    raise NotReadyError(
                        f"Partition {partition} of {name!r} is not at the end of the micro-batch that the others are "
                        "at, and is to be seen whole: ask again in a moment."
                    )
        return seen

    def _link(self, snapshot_id: str, name: str, partition: int, hosted: HostedPartition) -> CheckpointPart:
        store = hosted.store
        task_id = self._task_id(name, partition)
        timestamped = self._topology.stores[name].timestamped
        database = self._directory.store(task_id, name, timestamped=timestamped)
        snapshot = self._directory.application / SNAPSHOTS / snapshot_id
        try:
            (snapshot / task_id).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError as error:
            raise NotPresentError(f"The snapshot {snapshot_id} was given up: make a new one.") from error
        except OSError as error:
            raise refused(snapshot / task_id, "created", error) from error
        lengths = link_database(database, snapshot / task_id / database.name)
        return CheckpointPart(
            name,
            partition,
            f"{task_id}/{database.name}",
            store.commit_number,
            store.committed_at_ms,
            store.position(IsolationLevel.READ_COMMITTED),
            lengths,
        )

    def _hosted(self, name: str, partition: int, states: Collection[StoreState] = _OWNED) -> HostedPartition:
        what = f"Partition {partition} of {name!r}"
        hosted = self._lookup(name, partition)
        if hosted is None or not hosted.store.is_open:
            raise NotPresentError(f"{what} is not on this worker now: ask again in a moment.")
        if not hosted.store.persistent:
            raise InvalidArgumentError(f"{name!r} is a store in memory: only stores on disk can be in a snapshot.")
        if hosted.state not in states:
            raise NotActiveError(f"{what} is being restored: ask again when it is active.")
        task = self._directory.task(self._task_id(name, partition))
        if self._topology.stores[name].timestamped and has_plain_files(task, name):
            raise NotActiveError(f"{what} is being upgraded to timestamps: ask again when that is done.")
        return hosted
