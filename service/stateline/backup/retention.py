"""Delete old backups, and files that no manifest names. Any node may do it, also several at once.

A manifest is deleted when it is older than ``backup.retention.ms``, unless one of its store partitions has fewer than
``backup.keep`` newer ones, or somebody reads that backup. A file is deleted when no manifest names it and it was
written `LEFT_ALONE_S` ago: a backup that is being written names its files last.

Files are listed before manifests, and manifests until two listings are equal. So a manifest that replaces another
while this runs is seen.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from stateline.backup.location import BackupLocation, StoredFile
from stateline_store import DamagedDataError, DoesNotExistError
from stateline_store.snapshots.backup import Backup
from stateline_store.steps import reached

LEFT_ALONE_S = 3 * 24 * 60 * 60
_ID_OF_THE_SWEEP = "sweep"
_AT_ONCE = 1_000  # paths of one request, S3's limit
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: (id, node) of deleted manifests, and the number and bytes of deleted files."""

    manifests: tuple[tuple[str, str], ...]
    files: int
    bytes: int


@dataclass(frozen=True)
class Retention:
    """Decides which backups go, one by one from the newest to the oldest. Times are in milliseconds since the epoch."""

    now_ms: float
    retention_ms: int
    keep: int
    _newer: Counter[tuple[str, int]] = field(default_factory=Counter)  # by store and partition: how many it has seen

    def has_ended(self, backup: Backup) -> bool:
        """Return whether this backup, the next older one, is to be deleted."""
        places = [(part.store, part.partition) for part in backup.copy.parts]
        is_needed = any(self._newer[place] < self.keep for place in places)
        self._newer.update(places)
        return not is_needed and backup.created_at_ms < self.now_ms - self.retention_ms


def sweep(location: BackupLocation, retention_ms: int, keep: int, left_alone_s: float = LEFT_ALONE_S) -> Swept:
    """Delete what the rules above allow, and the rests of killed processes. Raises `DamagedDataError` for an unreadable
    manifest: files of it may be needed. Raises as the location.

    Memory holds 32 bytes for each file at the location, and one manifest at a time."""
    with location.lease(_ID_OF_THE_SWEEP) as now_s:
        reached("sweep:leased")
        files, others = dict[bytes, int](), list[StoredFile]()
        for file in location.files():
            if file.written_at_s < now_s - left_alone_s:
                if _DIGEST.fullmatch(file.digest):
                    files[bytes.fromhex(file.digest)] = file.size
                else:
                    others.append(file)  # a writer was killed, and its store shows half files
        ended, named = _ended(location, Retention(now_s * 1000, retention_ms, keep))
        leased = location.leased(now_s)
        for name in [name for name in ended if name[0] in leased]:
            ended.remove(name)
            if (backup := _read(location, name)) is not None:
                named.update(map(bytes.fromhex, backup.named))
        reached("sweep:listed")
        for backup_id, node in ended:
            location.delete_manifest(backup_id, node)
            reached("sweep:manifest-deleted")
        rubbish = [digest for digest in files if digest not in named]
        gone = [*(digest.hex() for digest in rubbish), *(file.digest for file in others)]
        for begin in range(0, len(gone), _AT_ONCE):
            location.delete_files(gone[begin : begin + _AT_ONCE])
            reached("sweep:files-deleted")
        location.tidy(now_s, left_alone_s)
    size = sum(files[digest] for digest in rubbish) + sum(file.size for file in others)
    return Swept(tuple(sorted(ended)), len(gone), size)


def _ended(location: BackupLocation, retention: Retention) -> tuple[list[tuple[str, str]], set[bytes]]:
    """Return the manifests to delete, and the digests that the others name, from two listings that are equal."""
    ended, named, seen = list[tuple[str, str]](), set[bytes](), set[tuple[str, str]]()
    names, before = location.manifests(), None
    while names != before:
        for name in reversed(names):
            if name not in seen:
                seen.add(name)
                backup = _read(location, name)
                if backup is not None and retention.has_ended(backup):
                    ended.append(name)
                elif backup is not None:
                    named.update(map(bytes.fromhex, backup.named))
        before, names = names, location.manifests()
    return ended, named


def _read(location: BackupLocation, name: tuple[str, str]) -> Backup | None:
    """Return this manifest, None if it was deleted since."""
    try:
        return location.read(*name)
    except DoesNotExistError:
        return None
    except DamagedDataError as error:
        raise DamagedDataError(f"{error} Nothing is deleted while it is there: delete it.") from error
