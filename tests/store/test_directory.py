"""The state directory, its locks, its permissions, its id and its global stores."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from uuid import UUID

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
    TopicPartition,
)
from stateline_store.files.directory import global_task


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
    directory, lock = StateDirectory(tmp_path / "state", "app"), state.task("0_0") / ".lock"
    directory.process_id()
    for file in (lock, directory.application / "kafka-streams-process-metadata"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640


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


def test_a_deleted_store_leaves_the_others_of_its_task_and_tells_its_readers(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    lock = state.lock_task("0_0")
    for name in ("s", "other"):
        store = KeyValueStore(name)
        store.init(StoreContext("0_0", state.task("0_0")))
        store.put(b"k", b"old")
        store.commit({})
        store.close()
    (state.task("0_0") / "s.position").touch()
    paths = state.store("0_0", "s", timestamped=False), state.notice("0_0", "s", timestamped=False)
    reader = SecondaryReader(*paths, tmp_path / "scratch")
    assert state.delete_store(lock, "s")
    assert sorted(os.listdir(state.task("0_0"))) == [".lock", "other.notice", "rocksdb", "s.notice"]
    assert os.listdir(state.task("0_0") / "rocksdb") == ["other"]
    with pytest.raises(NotPresentError):
        reader.refresh()
    reader.close()
    assert not state.delete_store(lock, "s")
    lock.release()


def test_a_path_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((RetryLaterError, InvalidArgumentError), match="file"):
        StateDirectory(tmp_path / "file", "app")


def test_a_lock_says_when_the_task_was_last_used_before(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    state.lock_task("0_0").release()
    path = state.task("0_0") / ".lock"
    os.utime(path, ns=(5_000_000, 5_000_000))
    with state.lock_task("0_0") as lock:
        assert lock.last_used_ms == 5
        os.utime(path, ns=(6_000_000, 6_000_000))
    assert path.stat().st_mtime_ns > 6_000_000


def test_a_deletion_lets_go_of_offsets_before_data(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from stateline_store import StateDirectory\n"
        "state = StateDirectory(Path(sys.argv[1]), 'app'); rename = os.rename; left = [2]\n"
        "def dying(*paths):\n"
        "    left[0] or os._exit(3); left[0] -= 1; rename(*paths)\n"
        "os.rename = dying; state.delete_task(state.lock_task('0_0'))\n"
    )
    state = StateDirectory(tmp_path, "app")
    task = state.task("0_0")
    state.lock_task("0_0").release()
    for name in (".checkpoint", "s.position", "topics.json"):
        (task / name).touch()
    (task / "rocksdb").mkdir()
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 3
    assert {".checkpoint", "s.position"}.isdisjoint(os.listdir(task))
    assert {"rocksdb", "topics.json"} <= set(os.listdir(task))


def test_the_id_of_the_directory_is_made_once_as_kafka_streams_writes_it(tmp_path: Path) -> None:
    made = StateDirectory(tmp_path, "app").process_id()
    path = tmp_path / "app/kafka-streams-process-metadata"
    assert path.read_text() == f'{{"processId":"{made}"}}'
    assert StateDirectory(tmp_path, "app").process_id() == made
    assert StateDirectory(tmp_path, "other").process_id() != made


def test_fields_of_a_newer_kafka_streams_are_ignored_and_kept(tmp_path: Path) -> None:
    state, known = StateDirectory(tmp_path, "app"), UUID(int=7)
    path = state.application / "kafka-streams-process-metadata"
    content = json.dumps({"future": [1], "processId": str(known)})
    path.write_text(content)
    assert state.process_id() == known
    assert path.read_text() == content


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"{}", b'{"processId": null}', b'{"processId": "x"}', b'{"processId": 5}', b"\xff"],
)
def test_an_id_that_cannot_be_read_is_made_anew_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDirectory(tmp_path, "app")
    path = state.application / "kafka-streams-process-metadata"
    path.write_bytes(content)
    made = state.process_id()
    assert f"{path} holds no process id" in caplog.text
    assert json.loads(path.read_bytes()) == {"processId": str(made)}
    assert state.process_id() == made


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_start_at_once_agree_on_the_id(tmp_path: Path, damaged: bool) -> None:
    state = StateDirectory(tmp_path, "app")
    if damaged:
        (state.application / "kafka-streams-process-metadata").write_bytes(b"{")
    script = (
        "import sys; from pathlib import Path; from stateline_store import StateDirectory\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        "print(StateDirectory(Path(sys.argv[1]), 'app').process_id())\n"
    )
    command, pipe = [sys.executable, "-c", script, str(tmp_path)], subprocess.PIPE
    starts = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) for _ in range(4)]
    for start in starts:
        assert start.stdout is not None
        assert start.stdout.readline() == b"ready\n"
    ids = set()
    for start in starts:
        assert start.stdin is not None
        start.stdin.write(b"x")
        start.stdin.flush()
    for start in starts:
        ids.add(start.communicate()[0].strip().decode())
    assert ids == {str(state.process_id())}
    assert os.listdir(state.application) == ["kafka-streams-process-metadata"]


def test_global_stores_have_a_place_and_a_lock_of_their_own(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    assert state.global_tasks() == []
    place = global_task("worker-0")
    assert state.task(place) == tmp_path / "app/global/worker-0"
    with state.lock_task(place) as lock:
        assert lock.path == tmp_path / "app/global/worker-0/.lock"
        with pytest.raises(LockedError, match=r"global/worker-0/\.lock is held"):
            state.lock_task(place)
        state.lock_task("0_0").release()
        state.lock_task(global_task("worker-1")).release()
    state.lock_task(place).release()
    assert (state.tasks(), state.global_tasks()) == (["0_0"], ["global/worker-0", "global/worker-1"])
    for other in ("global", "global/", "global/..", "global/a/b", "other/worker-0"):
        with pytest.raises(InvalidArgumentError, match="is not a task id"):
            state.task(other)


def test_a_global_store_keeps_one_offset_per_partition(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "app")
    partitions = [TopicPartition("topic-1", n) for n in (0, 1, 2, 10)]
    place = global_task("worker-0")
    lock, store = state.lock_task(place), KeyValueStore("g")
    context = StoreContext(place, state.task(place))
    store.init(context)
    store.put(b"a", b"1")
    store.commit({tp: 100 + tp.partition for tp in partitions})
    store.put(b"b", b"2")
    store.commit({partitions[1]: 200})
    for _ in range(2):
        assert [store.committed_offset(tp) for tp in partitions] == [100, 200, 102, 110]
        assert store.committed_offset(TopicPartition("topic-1", 3)) is None
        assert dict(store.all()) == {b"a": b"1", b"b": b"2"}
        store.close()
        store.init(context)
    store.close()
    lock.release()
