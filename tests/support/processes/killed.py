"""What `kill -9` leaves of a directory with open databases."""

from __future__ import annotations

import shutil
from pathlib import Path

_ATTEMPTS = 20


def as_killed(directory: Path, copy: Path) -> Path:
    """A copy of the directory as it is at some moment: made anew when RocksDB has deleted a file meanwhile."""
    for _ in range(_ATTEMPTS):
        try:
            return Path(shutil.copytree(directory, copy))
        except shutil.Error:
            shutil.rmtree(copy)
    raise AssertionError(f"{directory} changes all the time")
