"""A small file system for a directory, which a test can fill or make read-only. Mounting takes root's rights."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_BALLAST = "ballast"
_REFILLED_S = 0.05  # a worker that closes its stores frees megabytes of their logs, and would go on with these


@contextmanager
def small_disk(where: Path, mib: int) -> Iterator[bool]:
    """Mount a file system of this size on the directory for the block. Yields whether that was allowed."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(where)]
    allowed = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:  # lazy: a test that failed has files open
            subprocess.run(["umount", "--lazy", str(where)], check=True)


@contextmanager
def new_small_disk(where: Path, mib: int) -> Iterator[Path]:
    """Make the directory, on a small file system. Skips the test where that is not allowed."""
    where.mkdir()
    with small_disk(where, mib) as allowed:
        if not allowed:
            pytest.skip("a tmpfs can only be mounted by root, where mounting is allowed")
        yield where


def fill(disk: Path) -> None:
    """Use up every byte that is left, until `free`."""
    with (disk / _BALLAST).open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass


def free(disk: Path) -> None:
    """Delete what `fill` has written."""
    (disk / _BALLAST).unlink()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Use up every byte for the block, and each byte that a program frees meanwhile."""
    is_over = threading.Event()

    def refill() -> None:
        while not is_over.wait(_REFILLED_S):
            fill(disk)

    fill(disk)
    refilling = threading.Thread(target=refill, name="refill")
    refilling.start()
    try:
        yield
    finally:
        is_over.set()
        refilling.join()
        free(disk)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Refuse writes to new and old paths for the block. Files that are open for writing stay usable."""
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
