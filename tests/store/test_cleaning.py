"""The cleaner deletes what nobody has used for a long time, and never what somebody has, had lately, or must keep."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from stateline_store import (
    KeyValueStore,
    LockedError,
    NotPresentError,
    SecondaryReader,
    StateDirectory,
    StoreContext,
    clean,
)
from stateline_store.files.directory import global_task
from stateline_store.files.relocation_journal import journal_path

DELAY_MS = 600_000
LONG_AGO_MS = 1_000_000_000_000
NOW_MS = LONG_AGO_MS + DELAY_MS + 1


def nothing(task: str) -> bool:
    return False


def age(folder: Path, at_ms: int = LONG_AGO_MS) -> None:
    """Everything in it was touched then and not since."""
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def fill(directory: StateDirectory, task: str) -> None:
    with directory.lock_task(task):
        store = KeyValueStore("s")
        store.init(StoreContext(task, directory.task(task)))
        store.put(b"k", task.encode())
        store.commit({})
        store.close()
    age(directory.task(task))


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    """Two tasks that nobody has used for longer than the delay."""
    directory = StateDirectory(tmp_path, "app")
    for task in ("0_0", "0_1"):
        fill(directory, task)
    return directory


def run(
    directory: StateDirectory, live: Collection[str] = (), now_ms: int = NOW_MS, keep: Callable[[str], bool] = nothing
) -> list[str]:
    return clean(directory, live, DELAY_MS, now_ms, keep)


def full(directory: StateDirectory) -> list[str]:
    return [task for task in directory.tasks() if directory.store(task, "s", timestamped=False).exists()]


def test_what_is_older_than_the_delay_goes_and_the_lock_file_stays(directory: StateDirectory) -> None:
    assert run(directory, now_ms=NOW_MS - 1) == []
    assert full(directory) == ["0_0", "0_1"]
    assert run(directory) == ["0_0", "0_1"]
    assert [os.listdir(directory.task(task)) for task in ("0_0", "0_1")] == [[".lock"]] * 2
    assert run(directory, now_ms=2**50) == []


@pytest.mark.parametrize("touched", [".lock", "rocksdb/s/CURRENT", "rocksdb", "s.notice"])
def test_anything_that_was_touched_since_protects_the_task(directory: StateDirectory, touched: str) -> None:
    at_ns = (LONG_AGO_MS + 1) * 1_000_000
    os.utime(directory.task("0_0") / touched, ns=(at_ns, at_ns))
    assert run(directory) == ["0_1"]


def test_what_must_be_kept_is_asked_for_by_task(directory: StateDirectory) -> None:
    assert run(directory, keep=lambda task: task == "0_1") == ["0_0"]
    assert full(directory) == ["0_1"]


def test_files_outside_of_tasks_are_never_touched(directory: StateDirectory) -> None:
    (directory.application / "snapshots").mkdir()
    (directory.application / "snapshots/file").touch()
    (directory.application / "topology.json").touch()
    age(directory.application)
    run(directory)
    assert (directory.application / "snapshots/file").exists()
    assert (directory.application / "topology.json").exists()


def test_global_stores_of_a_worker_that_is_gone_are_deleted_like_a_task(directory: StateDirectory) -> None:
    for instance in ("here", "gone"):
        with directory.lock_task(global_task(instance)) as lock:
            (lock.path.parent / "file").touch()
    age(directory.application)
    with directory.lock_task(global_task("here")):
        assert global_task("gone") in run(directory)
    assert (directory.task(global_task("here")) / "file").exists()


@pytest.mark.parametrize("held_here", [True, False])
def test_a_task_in_use_is_left_alone_and_protected_for_a_delay_from_now(
    directory: StateDirectory, held_here: bool
) -> None:
    lock = directory.lock_task("0_0")
    age(directory.task("0_0"))
    assert run(directory, live=["0_0", "7_7"] if held_here else []) == ["0_1"]
    os.close(lock._fd)  # killed: nothing says that it was used until now
    lock._fd = -1
    assert run(directory, now_ms=NOW_MS + DELAY_MS) == []
    assert run(directory, now_ms=NOW_MS + DELAY_MS + 1) == ["0_0"]


def test_a_live_task_is_left_alone_before_its_lock_is_taken(directory: StateDirectory) -> None:
    assert run(directory, live=["0_1"]) == ["0_0"]
    assert run(directory, now_ms=NOW_MS + DELAY_MS) == []
    assert full(directory) == ["0_1"]


def test_an_owner_that_comes_and_goes_after_the_first_look_saves_the_task(directory: StateDirectory) -> None:
    def keep(task: str) -> bool:
        directory.lock_task(task).release()
        return False

    assert run(directory, keep=keep) == []
    assert full(directory) == ["0_0", "0_1"]


def test_an_owner_that_comes_after_the_first_look_saves_the_task(directory: StateDirectory) -> None:
    locks = []

    def keep(task: str) -> bool:
        locks.append(directory.lock_task(task))
        return False

    assert run(directory, keep=keep) == []
    assert full(directory) == ["0_0", "0_1"]
    for lock in locks:
        lock.release()


def test_readers_of_a_cleaned_task_are_told(directory: StateDirectory, tmp_path: Path) -> None:
    paths = directory.store("0_0", "s", timestamped=False), directory.notice("0_0", "s", timestamped=False)
    reader = SecondaryReader(*paths, tmp_path / "scratch")
    assert reader.get(b"k") == b"0_0"
    age(directory.task("0_0"))
    assert "0_0" in run(directory)
    with pytest.raises(NotPresentError):
        reader.refresh()
    reader.close()


def test_a_task_that_cannot_be_cleaned_is_logged_and_the_others_are(
    directory: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    (directory.task("0_0") / ".lock").unlink()
    (directory.task("0_0") / ".lock").mkdir()
    age(directory.task("0_0"))
    assert run(directory) == ["0_1"]
    assert "Task 0_0 is not cleaned" in caplog.text
    assert full(directory) == ["0_0"]


def test_the_rest_of_an_interrupted_deletion_goes_with_the_next_owner(directory: StateDirectory) -> None:
    task = directory.task("0_0")
    (task / "rocksdb").rename(task / ".deleted-rocksdb")
    directory.lock_task("0_0").release()
    assert sorted(os.listdir(task)) == [".lock", "s.notice"]


RACE_DELAY_MS = 150

_CLEANER = """
import sys, time; from pathlib import Path
from stateline_store import StateDirectory, clean
directory = StateDirectory(Path(sys.argv[1]), "app")
while True:
    clean(directory, [], int(sys.argv[2]), time.time_ns() // 1_000_000, lambda task: False)
    time.sleep(0.002)
"""


def _owner(state_dir: Path, task: str, seed: int) -> None:
    """Opens and closes its task; now and then it stays away until the cleaner has come."""
    directory, rnd = StateDirectory(state_dir, "app"), random.Random(seed)
    opened = cleaned = count = 0
    released_ms = 0.0
    while cleaned < 3 or opened < 40:
        try:
            lock = directory.lock_task(task)
        except LockedError:
            continue  # the cleaner has it: a moment
        away_ms = time.time_ns() / 1e6 - released_ms
        store = KeyValueStore("s")
        store.init(StoreContext(task, directory.task(task)))
        found = store.get(b"count")
        assert found == str(count).encode() or (found is None and away_ms >= RACE_DELAY_MS), (found, count, away_ms)
        opened, count = opened + 1, count + 1
        store.put(b"count", str(count).encode())
        store.commit({})
        store.close()
        released_ms = time.time_ns() / 1e6
        lock.release()
        if rnd.random() < 0.1:
            while directory.store(task, "s", timestamped=False).exists():
                time.sleep(0.001)
            assert time.time_ns() / 1e6 - released_ms >= RACE_DELAY_MS
            cleaned += 1


def test_nothing_is_ever_gone_that_was_used_within_the_delay(tmp_path: Path) -> None:
    cleaners = [subprocess.Popen([sys.executable, "-c", _CLEANER, str(tmp_path), str(RACE_DELAY_MS)]) for _ in range(2)]
    owners = [subprocess.Popen([sys.executable, __file__, str(tmp_path), f"0_{n}", str(n)]) for n in range(2)]
    assert [owner.wait() for owner in owners] == [0, 0]
    for cleaner in cleaners:
        assert cleaner.poll() is None
        cleaner.kill()
        cleaner.wait()


if __name__ == "__main__":
    _owner(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


def test_nothing_is_deleted_while_a_relocation_is_to_be_finished(directory: StateDirectory) -> None:
    journal_path(directory).write_text("{}")
    assert run(directory) == []
    journal_path(directory).unlink()
    age(directory.task("0_0"))
    age(directory.task("0_1"))
    assert run(directory) == ["0_0", "0_1"]
