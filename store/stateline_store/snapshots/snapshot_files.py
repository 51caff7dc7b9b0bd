"""The directory of one snapshot: its state (unfinished, whole, ended or rubbish), and the disk space that it keeps.

`snapshot_directory` describes its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from stateline_store.errors import DamagedDataError, NewerFormatError, StatelineError
from stateline_store.files.durable_files import FILE_MODE, refused
from stateline_store.snapshots.snapshot import Snapshot

MANIFEST, MAKING = "snapshot.json", ".making"  # on disk: never change
BACKUP = "backup"  # in place of a caller, who is a token or an address. On disk: never change
_BLOCK_BYTES = 512  # POSIX: st_blocks counts these

_log = logging.getLogger(__name__)


class UnfinishedSnapshot:
    """A snapshot that is being made; this process holds it until `SnapshotDirectory.finish` or `close`."""

    def __init__(self, path: Path, caller: str | None) -> None:
        self.path = path
        self.id = path.name
        self.caller = caller
        self._fd = _new_lock(path / MAKING)
        os.write(self._fd, (caller or "").encode())

    def close(self) -> None:
        """Release the lock. Without a manifest the directory is rubbish then. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _new_lock(path: Path) -> int:
    """Return a new file that is locked until its descriptor is closed, or this process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def caller_of(path: Path) -> str | None:
    """Return the caller of a whole or unfinished snapshot, None if it has none or cannot be read."""
    with contextlib.suppress(OSError, StatelineError):
        return Snapshot.decode((path / MANIFEST).read_bytes()).caller
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (path / MAKING).read_text() or None
    return None


def is_rubbish(path: Path) -> bool:
    """Return whether this will never be a snapshot: it has no manifest, and no process makes it."""
    if (path / MANIFEST).exists():
        return False
    try:
        fd = os.open(path / MAKING, os.O_RDWR | os.O_CLOEXEC)
    except (
        FileNotFoundError
    ):  # its maker was killed before the lock; `begin` makes directory and lock under the sweep's lock
        return not (path / MANIFEST).exists()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return not (path / MANIFEST).exists()  # finished between the two looks


def read_manifest(path: Path) -> Snapshot:
    """Read the snapshot in this directory. Raises `FileNotFoundError` without a manifest, another `OSError` if it
    cannot be read, and like `Snapshot.decode`."""
    return Snapshot.decode((path / MANIFEST).read_bytes(), path / MANIFEST)


def has_ended(path: Path, now_ms: int) -> bool:
    """Return whether its lease has ended. A damaged manifest counts as ended, because such a snapshot is unreadable,
    and would keep its files for ever. A manifest of a newer version does not."""
    try:
        return read_manifest(path).expires_at_ms <= now_ms
    except FileNotFoundError:
        return False
    except NewerFormatError:
        return False  # the newer version sweeps it
    except DamagedDataError as error:
        _log.warning("The snapshot %s is deleted: %s", path.name, error)
        return True
    except OSError as error:
        raise refused(path / MANIFEST, "read", error) from error


def is_over(path: Path, now_ms: int) -> bool:
    """Return whether a sweep deletes it."""
    return has_ended(path, now_ms) or is_rubbish(path)


def unshared_bytes(snapshots: Iterable[Path]) -> int:
    """Return the bytes on disk of files in these directories that have no link anywhere else. Files that only backups
    have do not count."""
    links: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for path in snapshots:
        is_backup = caller_of(path) == BACKUP
        for found in _file_stats(path):
            file = (found.st_dev, found.st_ino)
            links[file] += 1
            if not is_backup:
                sizes[file] = (found.st_nlink, found.st_blocks * _BLOCK_BYTES)
    return sum(size for file, (total, size) in sizes.items() if links[file] >= total)


def _file_stats(directory: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))
