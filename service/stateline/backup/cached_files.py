"""Files of backups that several readers of a machine need, fetched once.

    <directory>/<digest>           a file, named by the digests of its pieces. Its time is that of the last use
    <directory>/<digest>.lock      held while the file is fetched, linked or deleted
    <directory>/part-<random>/     links to the files of one reader, until it ends

A reader first fetches the small files of its partition. RocksDB's manifest is among them and tells the keys of each
table, so the reader fetches only the tables that have its keys. Files without a reader are deleted when others need the
room: the file whose last use is longest ago first. The rest goes with the directory, which belongs to the caller. A
process keeps some parts open for its next readers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stateline.backup.cut import fetch_file, fetch_files, leased
from stateline.backup.location import BackupLocation
from stateline_store.reads.splits import TableFile
from stateline_store.rocksdb.manifest import manifest_path
from stateline_store.rocksdb.manifest_tables import LiveTable, drop_tables, live_tables
from stateline_store.rocksdb.rows import OFFSETS_FAMILY
from stateline_store.scan import KeyRange
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.checkpoints import Checkpoint

MOST_BYTES = 4 * 1024**3
"""Of all files. Those of readers and of kept parts take their room beyond, until they are closed."""
MOST_KEPT = 4
"""Opened parts without a reader that a process keeps, because an opening replays logs: as long as reading their rows.
Each takes the memory of a memtable (16 MiB)."""
_kept: dict[tuple[object, ...], Checkpoint] = {}  # the one whose last use is longest ago first
_keeping = threading.Lock()  # of `_kept`
_TABLE, _LOCK = ".sst", ".lock"


@dataclass(frozen=True, slots=True)
class CachedPart:
    """One part of a backup, whose small files are in `folder`. For one reader."""

    location: BackupLocation
    backup: Backup
    folder: Path
    live: Sequence[LiveTable]

    @property
    def tables(self) -> list[TableFile]:
        """The tables of the rows."""
        return [TableFile(each.first, each.last, each.size) for each in self.live if each.family == 0]

    @contextlib.contextmanager
    def open(self, ranges: Sequence[KeyRange]) -> Iterator[Checkpoint]:
        """Yield the part, opened with the tables that may have keys in these ranges. It shows all rows in these ranges.
        Other rows may be missing, and deleted ones may show. Once for each part. Raises as `fetch_files` and
        `Checkpoint`."""
        needed = self._needed(ranges)
        (part,) = self.backup.copy.parts
        location, backup = self.location, self.backup
        known = (location.url, backup.application_id, backup.id, backup.node, part.directory, frozenset(needed))
        with _keeping:
            checkpoint = _kept.pop(known, None)
        checkpoint = checkpoint or self._opened(needed)
        try:
            yield checkpoint
        finally:
            with _keeping:
                surplus = _kept.pop(known, None)  # of another thread
                if surplus is None and len(_kept) >= MOST_KEPT:
                    surplus = _kept.pop(next(iter(_kept)))
                _kept[known] = checkpoint
            if surplus is not None:
                surplus.close()

    def open_once(self, ranges: Sequence[KeyRange]) -> Checkpoint:
        """Return the same, which the caller closes. The process does not keep it."""
        return self._opened(self._needed(ranges))

    def _needed(self, ranges: Sequence[KeyRange]) -> list[LiveTable]:
        """Return the tables of commits, and of the rows in these ranges. Reads need no index of expiries."""
        rows = [each for each in self.live if each.family == 0 and any(map(each.has_keys_in, ranges))]
        return [*(each for each in self.live if each.family_name == OFFSETS_FAMILY), *rows]

    def _opened(self, needed: Sequence[LiveTable]) -> Checkpoint:
        (part,) = self.backup.copy.parts
        directory = self.folder / part.directory
        _fetch(self.location, self.backup, self.folder, [f"{part.directory}/{each.name}" for each in needed])
        manifest = manifest_path(directory)
        content = manifest.read_bytes()
        manifest.unlink()  # a link to the file that others read
        manifest.write_bytes(content)
        drop_tables(directory, set(self.live).difference(needed))
        lengths = {**part.lengths, manifest.name: manifest.stat().st_size}
        return Checkpoint(self.folder, replace(part, lengths=lengths))


@contextlib.contextmanager
def cached_part(location: BackupLocation, backup: Backup, directory: Path) -> Iterator[CachedPart]:
    """Yield this part of a backup, with its small files fetched unless they are in the directory, which need not exist.
    Raises as `fetch_files`. For any number of threads and processes."""
    directory.mkdir(mode=0o700, exist_ok=True)
    (part,) = backup.copy.parts
    with leased(location, backup.id), tempfile.TemporaryDirectory(prefix="part-", dir=directory) as folder:
        _fetch(location, backup, Path(folder), [path for path in backup.copy.files if not path.endswith(_TABLE)])
        yield CachedPart(location, backup, Path(folder), live_tables(Path(folder) / part.directory))


def _fetch(location: BackupLocation, backup: Backup, folder: Path, paths: Sequence[str]) -> None:
    fetch_files(location, backup, folder, paths, partial(_fetch_once, folder.parent))


def _fetch_once(cache: Path, location: BackupLocation, backup: Backup, path: str, target: Path) -> None:
    """Link this file to `target`. It is fetched unless it is in the cache."""
    cached = cache / hashlib.blake2b("".join(backup.digests[path]).encode(), digest_size=32).hexdigest()
    with _locked(cached):
        if cached.exists():
            os.utime(cached)
        else:
            _make_room(cache, MOST_BYTES - backup.copy.files[path])
            fetch_file(location, backup, path, target)
            target.rename(cached)
        os.link(cached, target)


def _make_room(cache: Path, most_bytes: int) -> None:
    """Delete files until the others have at most so many bytes. Files that somebody fetches or links just now stay."""
    found = []
    for file in cache.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deletes it just now
            if file.is_file() and file.suffix != _LOCK:
                found.append((file.stat().st_mtime_ns, file, file.stat().st_size))
    total = sum(size for _, _, size in found)
    for _, file, size in sorted(found):
        if total <= most_bytes:
            return
        with contextlib.suppress(BlockingIOError), _locked(file, fcntl.LOCK_NB):
            file.unlink(missing_ok=True)
            total -= size


@contextlib.contextmanager
def _locked(file: Path, flags: int = 0) -> Iterator[None]:
    handle = os.open(f"{file}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(handle)
