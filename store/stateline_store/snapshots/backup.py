"""`Backup`: what one node wrote of its stores to a backup location, as its manifest has it.

    manifest := {"format": 1, "id", "node", "application_id", "created_at_ms", "topology": digest,
                 "stores": {store: {"kind", "key_type", "value_type", "timestamped", "changelog", "retention_ms",
                                    "window_size_ms", "headers", "partitions", "subtopology"}},
                 "offsets": {directory of a part: offset in its changelog},
                 "committed": {task: {topic: [next offset, partition time or null, parts of the note or null]}},
                 "digests": {path: [digest …]}, "reset_epoch": epoch, "copy": as in `store_copies`}

`stores` has all stores on disk that the application declares, also those of other nodes. A task in `committed` has no
part of a store that had nothing yet. `reset_epoch` is that of the newest reset that the node's directory had followed,
0 without one. Older manifests tell no `subtopology`, no `reset_epoch`, and only stores with parts.

A path is `<task>/<store>/<file>`. A file lies at the location in pieces: a table whole, a file that grows in pieces of
`PIECE_BYTES`, so that what was appended since the last backup is all that is written. A piece is named by its digest,
BLAKE2b of 32 bytes in hexadecimal digits. Only the bytes that count (`StoreCopy.files`) are there. On disk: never
change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from stateline_store.errors import DamagedDataError, NewerFormatError
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.store_copies import StoreCopy

_FORMAT = 1  # on disk: never change what 1 means
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"\d+_\d+/(?!\.{1,2}$)[^/\\\0]+")
PIECE_BYTES = 4 * 1024 * 1024  # on disk: never change


def backup_id(at_ms: int) -> str:
    """Return the id of backups of this moment (milliseconds since the epoch): ids order as times do."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{at_ms % 1000:03}Z"


def piece_sizes(path: str, size: int) -> list[int]:
    """Return the bytes of each piece of a file of this size, in order. An empty file is one empty piece."""
    if path.endswith(".sst") or size <= PIECE_BYTES:
        return [size]
    return [min(PIECE_BYTES, size - begin) for begin in range(0, size, PIECE_BYTES)]


@dataclass(frozen=True, slots=True)
class Backup:
    """One node's stores at one moment. `id` orders backups by time, and nodes may share it. `created_at_ms` is in
    milliseconds since the epoch. `topology` is the application's digest. `offsets` has by a part's directory the last
    applied offset of its changelog; a store without one has none. `committed` has what the group had committed for each
    task by then, also for tasks without stores: a worker that has the stores goes on from there. Stores of resets after
    `reset_epoch` are stale in it. Thread-safe: it never changes."""

    id: str
    node: str
    application_id: str
    created_at_ms: int
    topology: str
    stores: Mapping[str, Mapping[str, Any]]
    offsets: Mapping[str, int]
    committed: Mapping[str, Mapping[str, Sequence[Any]]]
    digests: Mapping[str, Sequence[str]]
    copy: StoreCopy
    reset_epoch: int = 0

    def of_task(self, task_id: str) -> Backup:
        """Return the same backup with the stores of this task alone. It has no parts if it lacks the task."""
        return self.of_parts([part for part in self.copy.parts if task_of(part) == task_id])

    def of_parts(self, parts: Sequence[CheckpointPart]) -> Backup:
        """Return the same backup with these of its parts alone, and their files."""
        directories = {part.directory for part in parts}
        files = {path: size for path, size in self.copy.files.items() if path.rpartition("/")[0] in directories}
        digests = {path: self.digests[path] for path in files if path in self.digests}
        return replace(self, digests=digests, copy=replace(self.copy, parts=tuple(parts), files=files))

    def pieces(self, path: str) -> list[tuple[str, int]]:
        """Return the digest and the bytes of each piece of this file, in order."""
        return list(zip(self.digests[path], piece_sizes(path, self.copy.files[path]), strict=True))

    def encode(self) -> bytes:
        """Return the bytes of the manifest."""
        told = {
            "format": _FORMAT,
            "id": self.id,
            "node": self.node,
            "application_id": self.application_id,
            "created_at_ms": self.created_at_ms,
            "topology": self.topology,
            "stores": {name: dict(each) for name, each in self.stores.items()},
            "offsets": dict(self.offsets),
            "committed": {
                task: {topic: list(at) for topic, at in each.items()} for task, each in self.committed.items()
            },
            "digests": {path: list(digests) for path, digests in self.digests.items()},
            "reset_epoch": self.reset_epoch,
            "copy": self.copy.to_json(),
        }
        return json.dumps(told).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Backup:
        """Read the manifest at `where`. Raises `NewerFormatError` for a newer version, `DamagedDataError` for anything
        else."""
        try:
            told = json.loads(data)
            if int(told["format"]) > _FORMAT:
                raise NewerFormatError.of(where, f"format {told['format']!r:.200}", f"up to {_FORMAT}")
            found = cls(
                str(told["id"]),
                str(told["node"]),
                str(told["application_id"]),
                int(told["created_at_ms"]),
                str(told["topology"]),
                {str(name): dict(each) for name, each in told["stores"].items()},
                {str(directory): int(offset) for directory, offset in told["offsets"].items()},
                {
                    str(task): {str(topic): _committed(*at) for topic, at in topics.items()}
                    for task, topics in told["committed"].items()
                },
                {str(path): tuple(map(str, digests)) for path, digests in told["digests"].items()},
                StoreCopy.from_json(told["copy"]),
                int(told.get("reset_epoch", told["created_at_ms"])),  # epochs are milliseconds too
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedDataError(f"{where} is no manifest of a backup: {error!r}.") from error
        expected = {path: len(piece_sizes(path, size)) for path, size in found.copy.files.items()}
        told_counts = {path: len(digests) for path, digests in found.digests.items()}
        places = [part.directory for part in found.copy.parts] + [path.rpartition("/")[0] for path in expected]
        names = {path.rpartition("/")[2] for path in expected}
        if not all(map(_PART.fullmatch, places)) or names & {"", ".", ".."}:  # a reader would write anywhere
            raise DamagedDataError(f"{where} has a path that is none of a store's files.")
        if told_counts != expected or not all(map(_DIGEST.fullmatch, found.named)):
            raise DamagedDataError(f"{where} has files without digests, or digests that are none.")
        return found

    @property
    def named(self) -> set[str]:
        """The digests of all pieces."""
        return {digest for digests in self.digests.values() for digest in digests}


def settled(manifests: Sequence[Backup]) -> list[Backup]:
    """Return these manifests of one id, each task in one of them alone. If a task moved meanwhile and two nodes have
    it, that of the node that read more of its input counts: clocks of nodes differ. So all stores of a task are of one
    commit."""
    having: dict[str, list[Backup]] = {}
    for backup in manifests:
        for task in {*backup.committed, *map(task_of, backup.copy.parts)}:
            having.setdefault(task, []).append(backup)
    moved = {task: those for task, those in having.items() if len(those) > 1}
    taken = {task: max(those, key=lambda each: (_progress(each, task), each.node)) for task, those in moved.items()}
    return [_without(backup, {task for task, owner in taken.items() if owner is not backup}) for backup in manifests]


def _progress(backup: Backup, task: str) -> tuple[int, ...]:
    """Return numbers that grow with each commit of the task: has it stores, then its input, then its changelogs."""
    parts = [part for part in backup.copy.parts if task_of(part) == task]
    read = sum(offset + 1 for part in parts for _, offset in part.position)
    written = sum(backup.offsets.get(part.directory, -1) + 1 for part in parts)
    return len(parts), read, sum(at for at, *_ in backup.committed.get(task, {}).values()), written


def _without(backup: Backup, tasks: Collection[str]) -> Backup:
    if not tasks:
        return backup
    left = backup.of_parts([part for part in backup.copy.parts if task_of(part) not in tasks])
    return replace(left, committed={task: at for task, at in backup.committed.items() if task not in tasks})


def _committed(next_offset: Any, time_ms: Any, fed: Any) -> tuple[int, int | None, str | None]:
    return int(next_offset), None if time_ms is None else int(time_ms), None if fed is None else str(fed)


def task_of(part: CheckpointPart) -> str:
    """Return the task that had this part."""
    return part.directory.partition("/")[0]
