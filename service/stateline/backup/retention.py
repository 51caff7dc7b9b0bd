"""Delete old backups, and files that no manifest names. Any node may do it, also several at once.

A manifest is deleted when it is older than ``backup.retention.ms``. It stays if

- one of its store partitions or tasks is in fewer than ``backup.keep`` newer ones,
- its id is one of the newest ``backup.keep`` ids with every partition of every store,
- or somebody reads that backup.

A file is deleted when no manifest names it and it was written `LEFT_ALONE_S` ago: a backup that is being written names
its files last.

Manifests are read before files are listed, because that may take long. Then manifests are listed again, until two
listings are equal. A manifest that was overwritten under its own name is not read again: its new files are young. From
the listing of files to the end of deletes the sweep has a lease, for which writers wait (`sweep_leases`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from stateline.backup.cut import BackupCut
from stateline.backup.location import BackupLocation, StoredFile
from stateline.backup.sweep_leases import LEFT_ALONE_S, sweep_lease
from stateline_store import DamagedDataError, DoesNotExistError
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import Backup, settled
from stateline_store.steps import reached

_AT_ONCE = 100  # paths of one request, which ends before the lease
_WHOLE_TASK = -1  # no partition
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: (id, node) of deleted manifests, and the number and bytes of deleted files."""

    manifests: tuple[tuple[str, str], ...]
    files: int
    bytes: int


@dataclass
class Retention:
    """Decides which backups go, an id at a time from the newest to the oldest. Times are in milliseconds since the
    epoch."""

    now_ms: float
    retention_ms: int
    keep: int
    _newer: Counter[tuple[str, int]] = field(default_factory=Counter)  # by store and partition, and by task
    _whole: int = 0  # ids

    def ended(self, manifests: Sequence[Backup]) -> list[bool]:
        """Return for each manifest of the next older id whether it is to be deleted."""
        is_kept = self._whole < self.keep and _is_whole(manifests)
        self._whole += is_kept
        return [self._is_surplus(backup) and not is_kept for backup in manifests]

    def _is_surplus(self, backup: Backup) -> bool:
        places = {(part.store, part.partition) for part in backup.copy.parts}
        places |= {(task, _WHOLE_TASK) for task in backup.committed}
        is_needed = any(self._newer[place] < self.keep for place in places)
        self._newer.update(places)
        return not is_needed and backup.created_at_ms < self.now_ms - self.retention_ms


def _is_whole(manifests: Sequence[Backup]) -> bool:
    """Return whether readers find every partition of every store."""
    try:
        BackupCut("", manifests[0].application_id, tuple(settled(manifests))).check_whole()
    except DamagedDataError:
        return False
    return True


def sweep(location: BackupLocation, retention_ms: int, keep: int, left_alone_s: float = LEFT_ALONE_S) -> Swept:
    """Delete what the rules above allow, and the rests of killed processes. Raises `DamagedDataError` for an unreadable
    manifest: files of it may be needed. Raises as the location.

    Memory holds 32 bytes for each file at the location, and one manifest at a time with its files."""
    with sweep_lease(location) as lease:
        now_s = lease.now_s
    manifests = _Manifests(location, Retention(now_s * 1000, retention_ms, keep))
    manifests.read()
    with sweep_lease(location) as lease:
        reached("sweep:leased")
        gone, swept = _surplus(location, manifests, now_s, left_alone_s, lease.renew)
        reached("sweep:listed")
        for backup_id, node in swept.manifests:
            lease.renew()
            location.delete_manifest(backup_id, node)
            reached("sweep:manifest-deleted")
        for begin in range(0, len(gone), _AT_ONCE):
            lease.renew()
            location.delete_files(gone[begin : begin + _AT_ONCE])
            reached("sweep:files-deleted")
    location.tidy(now_s, left_alone_s)
    return swept


def surplus(location: BackupLocation, retention_ms: int, keep: int, left_alone_s: float = LEFT_ALONE_S) -> Swept:
    """Return what a sweep would delete now, by the clock of this machine. Changes nothing. Raises as `sweep`."""
    now_s = now_ms() / 1000
    manifests = _Manifests(location, Retention(now_s * 1000, retention_ms, keep))
    manifests.read()
    return _surplus(location, manifests, now_s, left_alone_s, lambda: None)[1]


def _surplus(
    location: BackupLocation, manifests: _Manifests, now_s: float, left_alone_s: float, renew: Callable[[], None]
) -> tuple[list[str], Swept]:
    """Return the digests of the files to delete, and what a sweep deletes in all. `renew` is called before each
    request."""
    files, others = dict[bytes, int](), list[StoredFile]()
    for file in location.files():
        renew()
        if file.written_at_s < now_s - left_alone_s:
            if _DIGEST.fullmatch(file.digest):
                files[bytes.fromhex(file.digest)] = file.size
            else:
                others.append(file)  # a writer was killed, and its store shows half files
    manifests.read(renew)
    manifests.spare(location.leased(now_s))
    rubbish = [digest for digest in files if digest not in manifests.named]
    size = sum(files[digest] for digest in rubbish) + sum(file.size for file in others)
    gone = [*(digest.hex() for digest in rubbish), *(file.digest for file in others)]
    return gone, Swept(tuple(sorted(manifests.ended)), len(gone), size)


class _Manifests:
    """Those of a location: `ended` are to be deleted, and the others name the digests `named`."""

    def __init__(self, location: BackupLocation, retention: Retention) -> None:
        self._location, self._retention = location, retention
        self._seen = set[tuple[str, str]]()
        self.ended = list[tuple[str, str]]()
        self.named = set[bytes]()

    def read(self, renew: Callable[[], None] = lambda: None) -> None:
        """Read the manifests that were not read yet, until two listings are equal."""
        names, before = self._location.manifests(), None
        while names != before:
            for _, of_id in groupby(reversed(names), key=itemgetter(0)):
                self._decide([name for name in of_id if name not in self._seen], renew)
            before, names = names, self._location.manifests()

    def _decide(self, names: Sequence[tuple[str, str]], renew: Callable[[], None]) -> None:
        """Read these manifests of one id."""
        found, digests = list[tuple[tuple[str, str], Backup]](), list[set[bytes]]()
        for name in names:
            self._seen.add(name)
            renew()
            if (backup := _read(self._location, name)) is not None:
                found.append((name, _without_files(backup)))
                digests.append(set(map(bytes.fromhex, backup.named)))
        if not found:
            return
        ended = self._retention.ended([backup for _, backup in found])
        for (name, _), of_manifest, has_ended in zip(found, digests, ended, strict=True):
            if has_ended:
                self.ended.append(name)
            else:
                self.named |= of_manifest

    def spare(self, ids: Collection[str]) -> None:
        """Keep the backups of these ids."""
        for name in [name for name in self.ended if name[0] in ids]:
            self.ended.remove(name)
            if (backup := _read(self._location, name)) is not None:
                self.named.update(map(bytes.fromhex, backup.named))


def _without_files(backup: Backup) -> Backup:
    """Return the backup without its largest members."""
    parts = tuple(replace(part, lengths={}) for part in backup.copy.parts)
    return replace(backup, digests={}, copy=replace(backup.copy, files={}, parts=parts))


def _read(location: BackupLocation, name: tuple[str, str]) -> Backup | None:
    """Return this manifest, None if it was deleted since."""
    try:
        return location.read(*name)
    except DoesNotExistError:
        return None
    except DamagedDataError as error:
        raise DamagedDataError(f"{error} Nothing is deleted while it is there: delete it.") from error
