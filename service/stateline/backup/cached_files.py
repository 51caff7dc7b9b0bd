"""Files of backups that several readers of a machine need, fetched once.

    <directory>/<digest>/          the files of one part of a backup
    <directory>/<digest>/whole     empty: they are there, and were checked. Its time is that of the last opening
    <directory>/<digest>.lock      held while they are fetched, opened or deleted

An opened part holds its files open, so they may be deleted then. They are deleted when others need the room: the part
whose last opening is longest ago first. The rest goes with the directory, which belongs to the caller.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from stateline.backup.cut import fetch_part
from stateline.backup.location import BackupLocation
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.checkpoints import Checkpoint

MOST_BYTES = 4 * 1024**3
"""Of the files of all parts. A larger part is alone."""
_WHOLE = "whole"


def opened_part(location: BackupLocation, backup: Backup, directory: Path) -> Checkpoint:
    """Open this backup of one part. Its files are fetched unless they are in the directory, which need not exist.
    Raises as `fetch_part` and `Checkpoint`. For any number of threads and processes."""
    (part,) = backup.copy.parts
    names = (location.url, location.application_id, backup.id, backup.node, part.directory)
    folder = directory / hashlib.blake2b(repr(names).encode(), digest_size=16).hexdigest()
    directory.mkdir(mode=0o700, exist_ok=True)
    with _locked(folder):
        if not (folder / _WHOLE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make_room(directory, MOST_BYTES - backup.copy.size_bytes)
            fetch_part(location, backup, folder)
        (folder / _WHOLE).touch()
        return Checkpoint(folder, part)


def _make_room(directory: Path, most_bytes: int) -> None:
    """Delete parts until the others have at most so many bytes. Parts that somebody opens just now stay."""
    found = []
    for whole in directory.glob(f"*/{_WHOLE}"):
        with contextlib.suppress(FileNotFoundError):  # another process deletes it just now
            size = sum(file.stat().st_size for file in whole.parent.glob("*/*/*"))
            found.append((whole.stat().st_mtime, whole.parent, size))
    total = sum(size for _, _, size in found)
    for _, folder, size in sorted(found):
        if total > most_bytes:
            with contextlib.suppress(BlockingIOError), _locked(folder, fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)
                total -= size


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    handle = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(handle)
