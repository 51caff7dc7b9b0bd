"""Delete old backups, and files that no manifest names. Any node may do it, also several at once.

A manifest is deleted when it is older than ``backup.retention.ms``, unless one of its store partitions has fewer than
``backup.keep`` newer ones, or somebody reads that backup. A file is deleted when no manifest names it and it was
written `LEFT_ALONE_S` ago: a backup that is being written names its files last.

Files are listed before manifests, and manifests until two listings are equal. So a manifest that replaces another
while this runs is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from stateline.backup.location import BackupLocation
from stateline_store import DamagedDataError, DoesNotExistError
from stateline_store.snapshots.backup import Backup

LEFT_ALONE_S = 3 * 24 * 60 * 60
_ID_OF_THE_SWEEP = "sweep"
_AT_ONCE = 1_000  # paths of one request, S3's limit


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: (id, node) of deleted manifests, and the number and bytes of deleted files."""

    manifests: tuple[tuple[str, str], ...]
    files: int
    bytes: int


def expired(backups: Iterable[Backup], now_ms: float, retention_ms: int, keep: int) -> list[Backup]:
    """Return the backups to delete, oldest last. Pure."""
    newer: Counter[tuple[str, int]] = Counter()
    found = []
    for backup in sorted(backups, key=lambda each: (each.created_at_ms, each.id, each.node), reverse=True):
        places = [(part.store, part.partition) for part in backup.copy.parts]
        is_needed = any(newer[place] < keep for place in places)
        newer.update(places)
        if not is_needed and backup.created_at_ms < now_ms - retention_ms:
            found.append(backup)
    return found


def sweep(location: BackupLocation, retention_ms: int, keep: int, left_alone_s: float = LEFT_ALONE_S) -> Swept:
    """Delete what the rules above allow. Raises `DamagedDataError` for an unreadable manifest: files of it may be
    needed. Raises as the location."""
    with location.lease(_ID_OF_THE_SWEEP) as now_s:
        files = location.files()
        backups = _all(location)
        leased = location.leased(now_s)
        ended = [each for each in expired(backups, now_s * 1000, retention_ms, keep) if each.id not in leased]
        for each in ended:
            location.delete_manifest(each.id, each.node)
        gone = {(each.id, each.node) for each in ended}
        named = {digest for each in backups if (each.id, each.node) not in gone for digest in each.named}
        rubbish = [file for file in files if file.digest not in named and file.written_at_s < now_s - left_alone_s]
        for begin in range(0, len(rubbish), _AT_ONCE):
            location.delete_files([file.digest for file in rubbish[begin : begin + _AT_ONCE]])
    return Swept(tuple(sorted(gone)), len(rubbish), sum(file.size for file in rubbish))


def _all(location: BackupLocation) -> list[Backup]:
    """Return every backup, from two listings that are equal."""
    known: dict[tuple[str, str], Backup] = {}
    names = location.manifests()
    while True:
        for name in names:
            if name not in known:
                try:
                    known[name] = location.read(*name)
                except DoesNotExistError:
                    pass  # it was deleted since
                except DamagedDataError as error:
                    raise DamagedDataError(f"{error} Nothing is deleted while it is there: delete it.") from error
        before, names = names, location.manifests()
        if names == before:
            return list(known.values())
