"""Sweeps while a writer writes pieces again that the sweep has listed as old: no manifest ever lacks a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from stateline.backup import retention, sweep_leases, writing
from stateline.backup.location import BackupLocation
from stateline.backup.retention import Swept, sweep
from stateline.backup.writing import BackupWriter, Written, digest_of
from stateline_store import Position, RetryLaterError
from stateline_store.snapshots.backup import Backup, backup_id
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.store_copies import StoreCopy
from support.processes.running_worker import eventually
from support.run.patience import HANGING_S

RETENTION_MS = 7 * 86_400_000
FILES = ("0_0/s/000001.sst", "0_0/s/000002.sst")


class Scene:
    """Pieces whose writer was killed before its manifest, four days ago."""

    def __init__(self, root: Path) -> None:
        self.linked, self.location = root, BackupLocation(str(root / "backups"), "app", create=True)
        self.digests = []
        for path in FILES:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(path.encode())
            self.digests.append(digest_of(root / path, len(path)))
            self.location.put_file(self.digests[-1], root / path, len(path))
            os.utime(self.piece(self.digests[-1]), (time.time() - 4 * 86_400,) * 2)

    def piece(self, digest: str) -> Path:
        return self.linked / "backups" / "app" / "files" / digest

    def write(self, stopped: Event | None = None) -> Written:
        now_ms = int(time.time() * 1000)
        part = CheckpointPart("s", 0, "0_0/s", 1, 1, Position(), {})
        copy = StoreCopy("x", {}, (part,), {path: len(path) for path in FILES})
        made = Backup(backup_id(now_ms), "a", "app", now_ms, "", {}, {}, {"0_0": {}}, {}, copy)
        return BackupWriter(self.location, "a", RETENTION_MS, -1).write(made, self.linked, stopped or Event())[1]

    def sweep(self) -> Swept:
        return sweep(self.location, RETENTION_MS, 3)

    def is_whole(self) -> bool:
        """Whether there is a manifest, and each file that it names."""
        ((id_, node),) = self.location.manifests()
        return self.location.read(id_, node).named == {file.digest for file in self.location.files()}

    @property
    def is_written_again(self) -> bool:
        times = [self.piece(digest).stat().st_mtime for digest in self.digests if self.piece(digest).exists()]
        return len(times) == len(FILES) and min(times) > time.time() - 3_600


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def at_step(monkeypatch: pytest.MonkeyPatch, module: object, step: str, do: Callable[[], object]) -> None:
    """Do this when the module first reaches the step."""
    left = [do]

    def reached(name: str) -> None:
        if name == step and left:
            left.pop()()

    monkeypatch.setattr(module, "reached", reached)


def test_a_writer_waits_for_a_sweep_and_writes_again_what_it_deleted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads:
        writing_ = []

        def begin_to_write() -> None:
            writing_.append(threads.submit(scene.write))
            eventually(lambda: scene.is_written_again, "the writer has written its pieces")

        at_step(monkeypatch, retention, "sweep:listed", begin_to_write)
        assert scene.sweep().files == len(FILES)
        writing_[0].result(HANGING_S)
    assert scene.is_whole()
    assert scene.sweep().files == 0


def test_a_writer_sees_what_a_sweep_deleted_that_began_and_ended_while_it_wrote(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads:
        listed, written, sweeping = Event(), Event(), threads.submit(bool)

        def let_listing_end() -> None:
            listed.set()
            assert written.wait(HANGING_S)

        def let_sweep_end() -> None:
            written.set()
            assert sweeping.result(HANGING_S)

        at_step(monkeypatch, retention, "sweep:listed", let_listing_end)
        at_step(monkeypatch, writing, "backup:file-written", let_sweep_end)
        sweeping = threads.submit(lambda: scene.sweep().files > 0)
        assert listed.wait(HANGING_S)
        scene.write()
    assert scene.is_whole()


def test_a_killed_sweep_delays_no_backup_longer_than_its_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = sweep_leases.SweepLease(scene.location)
    (lease,) = (scene.linked / "backups" / "app" / "leases" / "sweep").iterdir()
    os.utime(lease, (killed.now_s - sweep_leases.ENDS_AFTER_S - 1,) * 2)
    monkeypatch.setattr(sweep_leases, "_ASKED_EACH_S", HANGING_S)
    scene.write()
    assert scene.is_whole()


def test_a_sweep_that_lasts_delays_a_backup_for_a_bounded_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_leases, "_ASKED_EACH_S", 0.01)
    monkeypatch.setattr(sweep_leases, "_LONGEST_WAIT_S", 0.1)
    with sweep_leases.sweep_lease(scene.location), pytest.raises(RetryLaterError, match="because a sweep runs"):
        scene.write()
    assert scene.location.manifests() == []
    scene.write()
    assert scene.is_whole()


def test_a_backup_without_new_pieces_waits_for_no_sweep(scene: Scene) -> None:
    scene.write()
    stopped = Event()
    with sweep_leases.sweep_lease(scene.location):
        assert scene.write(stopped).files == 0


def test_a_sweep_deletes_nothing_once_its_lease_has_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    later_s = time.monotonic() + sweep_leases.ENDS_AFTER_S + 1
    at_step(monkeypatch, retention, "sweep:listed", lambda: monkeypatch.setattr(time, "monotonic", lambda: later_s))
    with pytest.raises(RetryLaterError, match="too slow for this sweep"):
        scene.sweep()
    assert {file.digest for file in scene.location.files()} == set(scene.digests)


def test_a_sweep_renews_its_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with sweep_leases.sweep_lease(scene.location) as lease:
        (file,) = (scene.linked / "backups" / "app" / "leases" / "sweep").iterdir()
        os.utime(file, (0, 0))
        lease.renew()
        assert file.stat().st_mtime == 0, "it is new"
        later_s = time.monotonic() + 60
        monkeypatch.setattr(time, "monotonic", lambda: later_s)
        lease.renew()
        assert file.stat().st_mtime > 0
    assert not file.exists()
