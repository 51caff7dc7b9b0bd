"""The directory of one snapshot: being made, whole, ended, or rubbish; and the disk space that it keeps.

What lies in it is described in `snapshot_directory`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from stateline_store.durable_files import FILE_MODE, refused
from stateline_store.errors import DamagedDataError, NewerFormatError, StatelineError
from stateline_store.snapshot import Snapshot

MANIFEST, MAKING = "snapshot.json", ".making"  # on disk: never change
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
        """Let go: without a manifest it is rubbish from now on. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _new_lock(path: Path) -> int:
    """A new file that is locked until its descriptor is closed, or this process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def caller_of(path: Path) -> str | None:
    """Whose snapshot this directory is, whole or being made; None where that was not said, or cannot be read."""
    with contextlib.suppress(OSError, StatelineError):
        return Snapshot.decode((path / MANIFEST).read_bytes()).caller
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (path / MAKING).read_text() or None
    return None


def is_rubbish(path: Path) -> bool:
    """Whether this will never be a snapshot: it has no manifest, and nobody makes it any more."""
    if (path / MANIFEST).exists():
        return False
    try:
        fd = os.open(path / MAKING, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # killed before it was locked; `begin` makes both under the lock that a sweep has
        return not (path / MANIFEST).exists()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return not (path / MANIFEST).exists()  # finished between the two looks


def read_manifest(path: Path) -> Snapshot:
    """The snapshot in this directory. Raises `FileNotFoundError` when it is none, another `OSError` when it cannot be
    read, and as `Snapshot.decode` does."""
    return Snapshot.decode((path / MANIFEST).read_bytes(), path / MANIFEST)


def has_ended(path: Path, now_ms: int) -> bool:
    """Whether its lease has ended. A manifest that cannot be read belongs to a newer version, or is damaged: a snapshot
    is a copy that nobody can read then, and what it keeps would be kept for ever."""
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
    """Whether a sweep deletes it."""
    return has_ended(path, now_ms) or is_rubbish(path)


def unshared_bytes(snapshots: Iterable[Path]) -> int:
    """The bytes on disk of files in these directories that have no link anywhere else."""
    links: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for path in snapshots:
        for found in _file_stats(path):
            file = (found.st_dev, found.st_ino)
            links[file] += 1
            sizes[file] = (found.st_nlink, found.st_blocks * _BLOCK_BYTES)
    return sum(size for file, (total, size) in sizes.items() if links[file] >= total)


def _file_stats(directory: Path) -> Iterator[os.stat_result]:
    """Of every file below it that is still there."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))
