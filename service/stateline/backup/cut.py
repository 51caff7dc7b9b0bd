"""`BackupCut`: a backup as its readers see it, with the parts of all nodes. No server and no application is needed.

The manifests tell the kind, the types and the retention of each store. Ready-made serdes are known by their names.
Values of a Schema Registry and of serdes of one's own stay the stored bytes, unless the reader gives the declaration.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from threading import Event
from typing import Any

from stateline import serdes
from stateline.backup.applications import location_at
from stateline.backup.location import BackupLocation, check_id
from stateline.backup.writing import digest_of
from stateline.model.store_definition import StoreDefinition
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.plain import BytesSerde, JsonSerde, Serde, shown
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    InvalidArgumentError,
    NewerFormatError,
    Position,
    RetryLaterError,
    TopologyError,
)
from stateline_store.files.durable_files import FILE_MODE, refused
from stateline_store.layout import is_timestamped
from stateline_store.snapshots.backup import Backup, backup_id, settled, task_of
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z", re.ASCII)
_FOREVER_MS = 2**62  # the retention of manifests that tell none
_SHOWN = 3
_FETCHED_AT_ONCE = 4  # files: an object store answers each slowly
_SERDES: Mapping[str, Serde] = {
    each.name: each
    for each in (
        *(serdes.string, serdes.json, serdes.bytes, serdes.int32, serdes.int64, serdes.float64),
        *(serdes.uuid, serdes.datetime, serdes.msgpack),
    )
}


@dataclass(frozen=True, slots=True)
class BackupCut:
    """The manifests of all nodes with one id. Picklable, thread-safe."""

    url: str
    application_id: str
    manifests: tuple[Backup, ...]

    @property
    def id(self) -> str:
        """The backup's id, the time at which it was made."""
        return self.manifests[0].id

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of its stores."""
        return tuple(sorted({name for each in self.manifests for name in each.stores}))

    def parts(self, store: str) -> dict[int, Backup]:
        """Return each partition of this store, as a backup of this part alone. Partitions that had nothing yet are not
        there.

        Raises `DoesNotExistError` for an unknown store, `DamagedDataError` if a partition is missing."""
        return {partition: backup.of_parts([part]) for partition, (part, backup) in self._placed(store).items()}

    def of_store(self, store: str) -> BackupCut:
        """Return the same cut with the files of this store alone. Raises as `parts`."""
        self._placed(store)
        of_store = (backup.of_parts([p for p in backup.copy.parts if p.store == store]) for backup in self.manifests)
        return replace(self, manifests=tuple(of_store))

    def position(self, store: str) -> Position:
        """Return the input that the rows of this store reflect. Raises as `parts`."""
        return reduce(Position.merge, (part.position for part, _ in self._placed(store).values()), Position())

    def check_whole(self) -> None:
        """Raise `DamagedDataError` if a partition of a store is missing."""
        for store in self.stores:
            self._placed(store)

    def missing(self, store: str) -> set[int]:
        """Return the partitions of this store that no node has. Raises `DoesNotExistError` for an unknown store."""
        return self._missing(store, self._found(store))

    def subtopology(self, store: str) -> int:
        """Return the subtopology of this store, by which its tasks are named. Raises `DoesNotExistError` for an unknown
        store."""
        told = self._described(store)
        for part, _ in self._found(store).values():
            return TaskId.parse(task_of(part)).subtopology
        return int(told.get("subtopology", 0))

    def _missing(self, store: str, found: Mapping[int, object]) -> set[int]:
        told = self._described(store)
        return set(range(told.get("partitions") or 0)) - found.keys() - self._empty(told)

    def _found(self, store: str) -> dict[int, tuple[CheckpointPart, Backup]]:
        every = [(part, each) for each in self.manifests for part in each.copy.parts]
        return {part.partition: (part, each) for part, each in every if part.store == store}

    def _placed(self, store: str) -> dict[int, tuple[CheckpointPart, Backup]]:
        found = self._found(store)
        if missing := self._missing(store, found):
            raise DamagedDataError(
                f"The backup {self.id} has no partition {', '.join(map(str, sorted(missing)))} of {store!r}: another "
                "node had it, or it was just moving. Take another backup."
            )
        return dict(sorted(found.items()))

    def definition(self, store: str, declared: StoreDefinition | None = None) -> StoreDefinition:
        """Return the store's declaration, as far as the manifest tells it, or `declared`. Raises `DoesNotExistError`,
        and `TopologyError` if `declared` has another kind or other types."""
        told = self._described(store)
        kind, retention_ms = told["kind"], int(told.get("retention_ms", _FOREVER_MS))
        headers = is_timestamped(kind) and bool(told.get("headers"))
        types = serde_named(str(told["key_type"])), serde_named(str(told["value_type"]))
        window_size_ms = int(told.get("window_size_ms", 0))
        known = StoreDefinition(
            store, kind, *types, retention_ms=retention_ms, window_size_ms=window_size_ms, headers=headers
        )
        if declared is not None and _bytes_of(declared) != _bytes_of(known):
            raise TopologyError(
                f"The backup {self.id} has {store!r} as {_bytes_of(known)}, and it is declared as "
                f"{_bytes_of(declared)}: give the declaration that it was written with."
            )
        return known if declared is None else declared

    def _empty(self, told: Mapping[str, Any]) -> set[int]:
        """Return the partitions whose task a node ran. If they are in no manifest, they had nothing yet."""
        tasks = [TaskId.parse(task) for each in self.manifests for task in each.committed]
        return {task.partition for task in tasks if task.subtopology == told.get("subtopology")}

    def _described(self, store: str) -> Mapping[str, Any]:
        if told := [each.stores[store] for each in self.manifests if store in each.stores]:
            return max(told, key=lambda each: (each.get("partitions") or 0, "subtopology" in each))
        near = difflib.get_close_matches(store, self.stores, n=_SHOWN) or self.stores
        names = ", ".join(near) or "none"
        raise DoesNotExistError(f"The backup {self.id} has no store {shown(store)}; there are: {names}.")


def find_cut(url: str, as_of: str | int | datetime | None = None, application_id: str | None = None) -> BackupCut:
    """Return the newest backup that has every partition; with `as_of`, the backup of this id, or the newest up to this
    time (ISO 8601, `datetime`, or milliseconds since the epoch). `application_id` may be left out if the location has
    backups of one application.

    Raises `DoesNotExistError` if there is none, `DamagedDataError` if the one of this id is unreadable,
    `ConfigurationError` without the extra `backup`, and `RetryLaterError` when the location refuses."""
    location = location_at(url, application_id)
    application_id = location.application_id
    nodes: dict[str, list[str]] = {}
    for id_, node in location.manifests():
        nodes.setdefault(id_, []).append(node)
    if not nodes:
        raise DoesNotExistError(f"{url} has no backup of {application_id}: make one with stateline backup now.")
    if isinstance(as_of, str) and _ID.fullmatch(as_of):
        check_id(location, as_of, nodes)
        return _cut(location, as_of, nodes[as_of])
    until = None if as_of is None else backup_id(_time_ms(as_of))
    why = f"the oldest is {min(nodes)}"
    for id_ in sorted(nodes, reverse=True):
        if until is None or id_ <= until:
            try:
                found = _cut(location, id_, nodes[id_])
                found.check_whole()
                return found
            except (DoesNotExistError, DamagedDataError, NewerFormatError) as error:
                why = str(error)
                _log.warning("The backup %s is not read: %s", id_, error)
    asked = "" if until is None else f" up to {until}"
    raise DoesNotExistError(f"{url} has no whole backup of {application_id}{asked}: {why}")


def _cut(location: BackupLocation, backup_id: str, nodes: Iterable[str]) -> BackupCut:
    manifests = settled([location.read(backup_id, node) for node in nodes])
    return BackupCut(location.url, location.application_id, tuple(manifests))


@contextlib.contextmanager
def leased(location: BackupLocation, backup_id: str) -> Iterator[None]:
    """Let the sweep spare this backup during the block, if leases may be written."""
    with contextlib.ExitStack() as lease:
        with contextlib.suppress(RetryLaterError):  # a caller who may only read
            lease.enter_context(location.lease(backup_id))
        yield


def fetch_part(location: BackupLocation, backup: Backup, directory: Path) -> None:
    """Fetch the files of `backup` into this directory, in which `Checkpoint` opens each part. Raises as
    `fetch_files`."""
    with leased(location, backup.id):
        fetch_files(location, backup, directory, backup.copy.files)


def fetch_file(location: BackupLocation, backup: Backup, path: str, target: Path, stopped: Event | None = None) -> None:
    """Fetch this file of `backup` as `target`. Its first pieces are kept if they are there already. Raises as
    `fetch_files`, `OSError` for the disk, and `RetryLaterError` once `stopped` is set."""
    pieces = backup.pieces(path)
    with os.fdopen(os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE), "r+b") as file:
        there, begin = os.fstat(file.fileno()).st_size, 0
        while pieces and begin + pieces[0][1] <= there and digest_of(target, pieces[0][1], begin) == pieces[0][0]:
            begin += pieces.pop(0)[1]
        file.truncate(begin)
        file.seek(begin)
        for digest, length in pieces:
            refuse_stopped(stopped)
            for part in location.checked_piece(digest, length, path):
                refuse_stopped(stopped)
                file.write(part)


def refuse_stopped(stopped: Event | None) -> None:
    """Raise `RetryLaterError` once `stopped` is set."""
    if stopped is not None and stopped.is_set():
        raise RetryLaterError("The worker has lost the task, or it ends: its backup is not fetched any more.")


def fetch_files(
    location: BackupLocation,
    backup: Backup,
    directory: Path,
    paths: Iterable[str],
    fetch: Callable[[BackupLocation, Backup, str, Path], None] = fetch_file,
) -> None:
    """Fetch these files of `backup` into this directory, several at once, each by `fetch`.

    Raises `DamagedDataError` for a file that is not what was written, `DoesNotExistError` for one that is gone, and
    `RetryLaterError` when the location or the disk refuses."""
    try:
        for part in backup.copy.parts:
            (directory / part.directory).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_FETCHED_AT_ONCE) as threads:
            list(threads.map(lambda path: fetch(location, backup, path, directory / path), paths))
    except OSError as error:
        raise refused(directory, "written", error) from error


def serde_named(name: str) -> Serde:
    """Return the serde with this name in a manifest. It has the Arrow type of the values over HTTP, except for serdes
    that only the application has: those give the stored bytes."""
    if name in _SERDES:
        return _SERDES[name]
    made: BytesSerde | JsonSerde = JsonSerde() if name.startswith("model(") else BytesSerde()
    made.name = name
    return made


def _bytes_of(definition: StoreDefinition) -> str:
    """Return what decides the meaning of a store's bytes."""
    return f"{definition.form} of {definition.types.key} and {definition.types.value}"


def _time_ms(at: str | int | datetime) -> int:
    if isinstance(at, int):
        return at
    if isinstance(at, datetime) and at.tzinfo is None:
        raise InvalidArgumentError(f"as_of={at} has no time zone: give it one.")
    try:
        return epoch_ms(iso_time(at, UTC) if isinstance(at, str) else at)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"as_of (on the command line: --as-of) is {shown(at)}: give the id of a backup, or a time of ISO 8601 such "
            "as 2026-11-29T08:53:00Z."
        ) from error
