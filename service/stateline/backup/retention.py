"""Delete old backups, and files that no manifest names. Any node may do it, also several at once.

A manifest is deleted when it is older than ``backup.retention.ms``, unless one of its store partitions has fewer than
``backup.keep`` newer ones, or somebody reads that backup. A file is deleted when no manifest names it and it was
written `LEFT_ALONE_S` ago: a backup that is being written names its files last.

Manifests are read before files are listed, because that may take long. Then manifests are listed again, until two
listings are equal. A manifest that was overwritten under its own name is not read again: its new files are young. From
the listing of files to the end of deletes the sweep has a lease, for which writers wait (`sweep_leases`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from stateline.backup.location import BackupLocation, StoredFile
from stateline.backup.sweep_leases import SweepLease, sweep_lease
from stateline_store import DamagedDataError, DoesNotExistError
from stateline_store.snapshots.backup import Backup
from stateline_store.steps import reached

LEFT_ALONE_S = 3 * 24 * 60 * 60
_AT_ONCE = 100  # paths of one request, which ends before the lease
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
    with sweep_lease(location) as lease:
        now_s = lease.now_s
    manifests = _Manifests(location, Retention(now_s * 1000, retention_ms, keep))
    manifests.read()
    with sweep_lease(location) as lease:
        reached("sweep:leased")
        files, others = dict[bytes, int](), list[StoredFile]()
        for file in location.files():
            lease.renew()
            if file.written_at_s < now_s - left_alone_s:
                if _DIGEST.fullmatch(file.digest):
                    files[bytes.fromhex(file.digest)] = file.size
                else:
                    others.append(file)  # a writer was killed, and its store shows half files
        manifests.read(lease)
        manifests.spare(location.leased(now_s))
        reached("sweep:listed")
        for backup_id, node in manifests.ended:
            lease.renew()
            location.delete_manifest(backup_id, node)
            reached("sweep:manifest-deleted")
        rubbish = [digest for digest in files if digest not in manifests.named]
        gone = [*(digest.hex() for digest in rubbish), *(file.digest for file in others)]
        for begin in range(0, len(gone), _AT_ONCE):
            lease.renew()
            location.delete_files(gone[begin : begin + _AT_ONCE])
            reached("sweep:files-deleted")
    location.tidy(now_s, left_alone_s)
    size = sum(files[digest] for digest in rubbish) + sum(file.size for file in others)
    return Swept(tuple(sorted(manifests.ended)), len(gone), size)


class _Manifests:
    """Those of a location: `ended` are to be deleted, and the others name the digests `named`."""

    def __init__(self, location: BackupLocation, retention: Retention) -> None:
        self._location, self._retention = location, retention
        self._seen = set[tuple[str, str]]()
        self.ended = list[tuple[str, str]]()
        self.named = set[bytes]()

    def read(self, lease: SweepLease | None = None) -> None:
        """Read the manifests that were not read yet, until two listings are equal."""
        names, before = self._location.manifests(), None
        while names != before:
            for name in reversed(names):
                if name not in self._seen:
                    self._seen.add(name)
                    if lease is not None:
                        lease.renew()
                    backup = _read(self._location, name)
                    if backup is not None and self._retention.has_ended(backup):
                        self.ended.append(name)
                    elif backup is not None:
                        self._name(backup)
            before, names = names, self._location.manifests()

    def spare(self, ids: Collection[str]) -> None:
        """Keep the backups of these ids."""
        for name in [name for name in self.ended if name[0] in ids]:
            self.ended.remove(name)
            if (backup := _read(self._location, name)) is not None:
                self._name(backup)

    def _name(self, backup: Backup) -> None:
        self.named.update(map(bytes.fromhex, backup.named))


def _read(location: BackupLocation, name: tuple[str, str]) -> Backup | None:
    """Return this manifest, None if it was deleted since."""
    try:
        return location.read(*name)
    except DoesNotExistError:
        return None
    except DamagedDataError as error:
        raise DamagedDataError(f"{error} Nothing is deleted while it is there: delete it.") from error
