"""Write a node's linked stores to a backup location: files that it lacks, then the manifest.

| a crash or an error                    | leaves                                                                    |
|----------------------------------------|---------------------------------------------------------------------------|
| before or while files are written      | files that no manifest names; the sweep (`retention`) deletes them later  |
| before the manifest is written         | the same                                                                  |
| afterwards                             | a whole backup                                                            |

A piece counts as there if the node's newest manifest names it, or if this process wrote it. That manifest must be
younger than the retention: an older one may be deleted at any moment, and its pieces with it. The first backup of a
process lists the location, and later ones once an hour. Listed pieces that are missing or have another size are written
again. Other damage is not seen: a full backup writes every piece again.

Before the manifest, it writes the pieces again that a sweep has deleted meanwhile (`sweep_leases`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Event

from stateline.backup.location import BackupLocation
from stateline.backup.sweep_leases import LEFT_ALONE_S, wait_for_sweeps
from stateline_store import DamagedDataError, DoesNotExistError, NewerFormatError, RetryLaterError
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import Backup, piece_sizes
from stateline_store.steps import reached

_log = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024
# A manifest this much younger than the retention is a base: a backup must end before it is deleted.
_MARGIN_MS = 60 * 60 * 1000
_NO_REST_S = 0.001
_LISTED_EACH_S = 60 * 60


@dataclass(slots=True)
class Written:
    """The pieces and bytes that a backup has written, and all files and bytes that it names."""

    files: int = 0
    bytes: int = 0
    all_files: int = 0
    all_bytes: int = 0


@dataclass
class BackupWriter:
    """One per process and location, for one thread at a time, which it makes slow: it sleeps as long as it works, also
    while it computes digests, and `bytes_per_second` (-1: no limit) bounds what it writes."""

    location: BackupLocation
    node: str
    retention_ms: int
    bytes_per_second: int
    _digests: dict[tuple[int, int, int, int], str] = field(default_factory=dict)  # of unchanging files, by `_identity`
    _wrote: dict[str, float] = field(default_factory=dict)  # digest → when this process began to write it
    _base_id: str | None = None
    _listed_at_s: float = -math.inf

    def write(self, backup: Backup, linked: Path, stopped: Event, *, full: bool = False) -> tuple[Backup, Written]:
        """Write the backup whose files are linked below this directory. Returns it with its digests. `full` writes all
        pieces, also those that are there.

        Raises `RetryLaterError` when the location refuses, when `stopped` is set, or if writing took so long that the
        first files may be deleted."""
        base = self._base()
        with nullcontext() if base is None else self.location.lease(base.id):  # it stays until this one names its files
            return self._write(backup, linked, stopped, set() if full else self._there(base))

    def _write(self, backup: Backup, linked: Path, stopped: Event, there: set[str]) -> tuple[Backup, Written]:
        began_s, done = time.monotonic(), Written()
        digests: dict[str, list[str]] = {}
        for path, size in backup.copy.files.items():
            done.all_files, done.all_bytes, begin = done.all_files + 1, done.all_bytes + size, 0
            digests[path] = []
            for piece in piece_sizes(path, size):
                if stopped.is_set():
                    raise RetryLaterError(f"The backup {backup.id} ends with its process: the next one is whole again.")
                began_piece_s, worked_s = time.monotonic(), time.thread_time()
                digest = self._digest(linked / path, begin, piece)
                digests[path].append(digest)
                is_new = digest not in there
                if is_new:
                    self._wrote[digest] = began_s
                    self.location.put_file(digest, linked / path, piece, begin)
                    reached("backup:file-written")
                    there.add(digest)
                    done.files, done.bytes = done.files + 1, done.bytes + piece
                self._rest(piece if is_new else 0, began_piece_s, time.thread_time() - worked_s, stopped)
                begin += piece
        if time.monotonic() - began_s > LEFT_ALONE_S / 2:
            self._wrote.clear()
            raise RetryLaterError(f"The backup {backup.id} took so long that its first files may be deleted again.")
        whole = replace(backup, digests=digests)
        self._restore_swept(whole, linked, stopped)
        reached("backup:files-written")
        self.location.write(whole)
        reached("backup:manifest-written")
        self._base_id = whole.id
        self._forget(whole.named)
        return whole, done

    def _restore_swept(self, whole: Backup, linked: Path, stopped: Event) -> None:
        """Write again what a sweep has deleted of the pieces that this process wrote: it had listed them as old."""
        sizes = {digest: size for digest, size in _sizes(whole).items() if digest in self._wrote}
        if not sizes:
            return
        wait_for_sweeps(self.location, whole.id, stopped)
        if lost := self.location.lacks(sizes):
            _log.info("A sweep deleted %d pieces of the backup %s: they are written again.", len(lost), whole.id)
        for path in whole.copy.files:
            begin = 0
            for digest, piece in whole.pieces(path):
                if digest in lost:
                    self.location.put_file(digest, linked / path, piece, begin)
                    lost.remove(digest)
                begin += piece

    def _there(self, base: Backup | None) -> set[str]:
        """Return the digests that the location has, as far as manifests and listings tell."""
        at_s = time.monotonic()
        wrote = {digest for digest, began_s in self._wrote.items() if began_s > at_s - LEFT_ALONE_S / 2}
        if base is None:
            return wrote
        if at_s < self._listed_at_s + _LISTED_EACH_S:
            return wrote | base.named
        sizes = _sizes(base)
        if lost := self.location.lacks(sizes):
            _log.warning(
                "%s has lost %d of %d pieces of the backup %s. Those that the stores still have are written again.",
                *(self.location.url, len(lost), len(sizes), base.id),
            )
        else:  # a backup that fails now leaves the lost pieces to the next one
            self._listed_at_s = at_s
        return wrote | (sizes.keys() - lost)

    def _base(self) -> Backup | None:
        """Return this node's newest manifest, unless it may be deleted soon."""
        base = self._newest() if self._base_id is None else self._known(self._base_id)
        margin_ms = min(_MARGIN_MS, self.retention_ms // 2)
        return None if base is None or base.created_at_ms < now_ms() - self.retention_ms + margin_ms else base

    def _newest(self) -> Backup | None:
        """Return this node's newest readable manifest."""
        own = (backup_id for backup_id, node in reversed(self.location.manifests()) if node == self.node)
        return next((found for backup_id in own if (found := self._known(backup_id)) is not None), None)

    def _known(self, backup_id: str) -> Backup | None:
        """Return this manifest of this node, if it is still there and readable."""
        try:
            return self.location.read(backup_id, self.node)
        except DoesNotExistError:
            _log.info("The last backup (%s) was deleted. The next one is made without it.", backup_id)
        except (DamagedDataError, NewerFormatError) as error:
            _log.warning("The next backup is made without the last one (%s): %s", backup_id, error)
        return None

    def _digest(self, path: Path, begin: int, size: int) -> str:
        if path.suffix != ".sst":
            return digest_of(path, size, begin)
        found = os.stat(path)
        identity = found.st_dev, found.st_ino, size, found.st_mtime_ns
        if identity not in self._digests:
            self._digests[identity] = digest_of(path, size)
        return self._digests[identity]

    def _rest(self, size: int, began_s: float, worked_s: float, stopped: Event) -> None:
        took_s = time.monotonic() - began_s
        at_least_s = size / self.bytes_per_second if self.bytes_per_second > 0 else 0.0
        if (rest_s := max(worked_s, at_least_s - took_s)) > _NO_REST_S:
            stopped.wait(rest_s)

    def _forget(self, named: Collection[str]) -> None:
        """Keep what the newest manifest has, so that memory does not grow."""
        self._digests = {identity: digest for identity, digest in self._digests.items() if digest in named}
        self._wrote.clear()


def _sizes(backup: Backup) -> dict[str, int]:
    """Return the bytes of each piece by its digest."""
    return dict(chain.from_iterable(map(backup.pieces, backup.copy.files)))


def digest_of(path: Path, size: int, begin: int = 0) -> str:
    """Return the digest of so many bytes of the file from `begin` on. Raises `DamagedDataError` if it is shorter,
    `OSError` if it cannot be read."""
    digest, left = hashlib.blake2b(digest_size=32), size
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while left and (piece := file.read(min(left, _READ_BYTES))):
            digest.update(piece)
            left -= len(piece)
    if left:
        raise DamagedDataError(f"{path} is shorter than it was when it was linked.")
    return digest.hexdigest()
