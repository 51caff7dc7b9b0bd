"""A sweep of an object store that is killed at each of its steps: no manifest ever lacks a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stateline.backup.location import BackupLocation
from stateline.backup.retention import sweep
from stateline_store.snapshots.backup import piece_sizes
from support.run.length import long_or_short
from support.run.patience import HANGING_S
from support.written_backups import write_backup

APPLICATION = "app"
BACKUPS = 4
STEPS = (
    "sweep:leased",
    "sweep:listed",
    "sweep:manifest-deleted",
    f"sweep:manifest-deleted#{BACKUPS - 1}",
    "sweep:files-deleted",
    "sweep:files-deleted#3",
)
ON_S3 = long_or_short(STEPS, (f"sweep:manifest-deleted#{BACKUPS - 1}", "sweep:files-deleted"))
# All but the newest are old enough, by a clock that tells whole seconds. Two files are deleted at a time.
SWEEP = """
import sys
from stateline.backup import retention
from stateline.backup.location import BackupLocation
retention._AT_ONCE = 2
retention.sweep(BackupLocation(sys.argv[1], "app"), -5_000, 1, -5.0)
"""


@pytest.fixture
def location(tmp_path: Path, url: str) -> BackupLocation:
    """Some backups of a store, which share a file."""
    for number in range(BACKUPS):
        rows = [(b"k%d" % n, b"%d" % (n * number)) for n in range(200)]
        write_backup(tmp_path / f"node-{number}", url, "kept", {0: rows, 1: rows[:9]})
    return BackupLocation(url, APPLICATION)


def is_whole(location: BackupLocation) -> None:
    """Read every file that a manifest names."""
    for name in location.manifests():
        backup = location.read(*name)
        for path, digests in backup.digests.items():
            for digest, size in zip(digests, piece_sizes(path, backup.copy.files[path]), strict=True):
                list(location.checked_piece(digest, size, path))


@pytest.mark.parametrize(
    ("url", "step"),
    [*(("directory", step) for step in STEPS), *(("s3", step) for step in ON_S3)],
    indirect=["url"],
)
def test_a_sweep_that_is_killed_leaves_backups_whole_and_the_next_one_completes_it(
    location: BackupLocation, url: str, step: str
) -> None:
    newest = location.manifests()[-1]
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, url], env={**os.environ, "STATELINE_CRASH_AT": step}, capture_output=True,
        text=True, check=False, timeout=HANGING_S,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert newest in location.manifests()
    is_whole(location)
    sweep(location, -5_000, 1, -5.0)
    assert location.manifests() == [newest]
    is_whole(location)
    assert {file.digest for file in location.files()} == location.read(*newest).named
