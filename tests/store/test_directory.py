"""The state directory, its locks and its permissions."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stateline_store import (
    InvalidArgumentError,
    KeyValueStore,
    LockedError,
    NotPresentError,
    RetryLaterError,
    SecondaryReader,
    StateDirectory,
    StoreContext,
)


def test_paths_are_those_of_the_layout(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    assert state.store("0_1", "s", timestamped=False) == tmp_path / "app/0_1/rocksdb/s"
    assert state.store("0_1", "s", timestamped=True) == tmp_path / "app/0_1/rocksdb/s-v2"
    assert state.notice("0_1", "s", timestamped=False) == tmp_path / "app/0_1/s.notice"
    assert state.notice("0_1", "s", timestamped=True) == tmp_path / "app/0_1/s-v2.notice"


def test_directories_are_closed_to_strangers(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state", "app")
    state.lock_task("0_0").release()
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", state.task("0_0")))
    store.close()
    for folder in (state.application, state.task("0_0"), state.store("0_0", "s", timestamped=False)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_a_second_lock_in_this_process_conflicts_and_names_the_holder(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    lock = state.lock_task("0_1")
    with pytest.raises(LockedError, match=rf"0_1/\.lock is held by process {os.getpid()}"):
        state.lock_task("0_1")
    lock.release()
    lock.release()
    state.lock_task("0_1").release()


def test_another_process_is_kept_out_until_the_owner_dies(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from stateline_store import StateDirectory;"
        "lock = StateDirectory(Path(sys.argv[1]), 'app').lock_task('0_1'); print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=pipe, stdout=pipe)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"held\n"
    state = StateDirectory(tmp_path, "app")
    with pytest.raises(LockedError, match=str(owner.pid)):
        state.lock_task("0_1")
    owner.kill()
    owner.communicate()
    state.lock_task("0_1").release()


def test_tasks_are_listed_in_order_of_their_numbers(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    for task in ("0_10", "0_2", "1_0"):
        state.lock_task(task).release()
    (state.application / "topology.json").touch()
    (state.application / "instances").mkdir()
    assert state.tasks() == ["0_2", "0_10", "1_0"]


@pytest.mark.parametrize("task", ["..", "0", "0_x", "a/b", ""])
def test_another_form_of_task_id_is_refused(tmp_path: Path, task: str) -> None:
    with pytest.raises(InvalidArgumentError):
        StateDirectory(tmp_path, "app").task(task)


def test_a_deleted_task_leaves_no_data_and_tells_its_readers(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    lock = state.lock_task("0_0")
    store = KeyValueStore("s")
    context = StoreContext("0_0", state.task("0_0"))
    store.init(context)
    store.put(b"k", b"old")
    store.commit({})
    paths = state.store("0_0", "s", timestamped=False), state.notice("0_0", "s", timestamped=False)
    reader = SecondaryReader(*paths, tmp_path / "scratch")
    store.close()
    state.delete_task(lock)
    assert os.listdir(state.task("0_0")) == [".lock"]
    with pytest.raises(NotPresentError):
        reader.refresh()
    store.init(context)
    reader.refresh()
    assert reader.get(b"k") is None
    reader.close()
    store.close()
    lock.release()


def test_a_path_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((RetryLaterError, InvalidArgumentError), match="file"):
        StateDirectory(tmp_path / "file", "app")
