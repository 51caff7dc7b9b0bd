"""What a power cut can leave of a store's write-ahead logs: a store shows a commit that was made, whole, or refuses."""

import contextlib
import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateline_store import DamagedDataError, KeyValueStore, RetryLaterError, SecondaryReader
from stateline_store.checkpoints import Checkpoint, CheckpointPart, link_database
from stateline_store.log_records import read_records
from stateline_store.manifest import manifest_path, read_manifest
from stateline_store.offline_store import OfflineStore
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb_engine import RocksDBEngine
from stateline_store.rocksdb_options import Tuning
from stateline_store.scan import EVERY_KEY
from stateline_store.state_store import StoreContext
from stateline_store.write_ahead_logs import refuse_holes

INPUT, CHANGELOG = TopicPartition("input", 0), TopicPartition("changelog", 0)
SMALL = Tuning(write_buffer_bytes=64 * 1024, level_base_bytes=256 * 1024)
Rows = dict[bytes, bytes]


@dataclass(frozen=True)
class Copy:
    """A copy of a live store's task, and what the store held after each commit."""

    task: Path
    history: list[Rows]

    @property
    def files(self) -> Path:
        return self.task / "rocksdb" / "s"

    @property
    def logs(self) -> list[Path]:
        return sorted(self.files.glob("*.log"))

    def again(self, path: Path) -> "Copy":
        shutil.copytree(self.task, path)
        return Copy(path, self.history)


def opened(task: Path, tuning: Tuning = SMALL) -> KeyValueStore:
    store = KeyValueStore("s", tuning=tuning)
    store.init(StoreContext("0_0", task, CHANGELOG))
    return store


def commit(store: KeyValueStore, history: list[Rows], rnd: random.Random) -> None:
    """One more commit, of rows, of rows and deletions, or of offsets alone."""
    rows: dict[bytes, bytes | None] = {
        b"k%02d" % key: rnd.randbytes(rnd.choice((300, 3000))) if rnd.random() < 0.9 else None
        for key in rnd.sample(range(30), rnd.choice((0, 3, 10)))
    }
    store.put_all(rows.items())
    number = len(history)
    store.commit({CHANGELOG: number}, position=Position.of({INPUT: number}))
    merged = history[-1] | rows
    history.append({key: value for key, value in merged.items() if value is not None})


def copied_live(store: KeyValueStore, task: Path, copy: Path) -> None:
    """What a kill would leave at this moment."""
    (copy / "rocksdb").mkdir(parents=True)
    lengths = link_database(task / "rocksdb" / "s", copy / "linked")
    shutil.copytree(copy / "linked", copy / "rocksdb" / "s")
    for name, length in lengths.items():
        os.truncate(copy / "rocksdb" / "s" / name, length)
    shutil.rmtree(copy / "linked")
    shutil.copy(task / "s.notice", copy)


@pytest.fixture(scope="module", params=["a memtable switch", "default flushed", "offsets flushed"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of a store that was written to, with two logs that are needed and have commits both."""
    base, rnd, history = tmp_path_factory.mktemp("live"), random.Random(5), [Rows()]
    store = opened(base / "0_0")
    for attempt in range(5000):
        commit(store, history, rnd)
        if len(history) % 40 == 0 and request.param != "a memtable switch":  # as when a store is closed
            engine = store._engine
            assert isinstance(engine, RocksDBEngine)
            (engine._db if request.param == "default flushed" else engine._offsets).flush()
            del engine
            for _ in range(3):
                commit(store, history, rnd)
        if len(history) > 40 and len(list((base / "0_0" / "rocksdb" / "s").glob("*.log"))) == 2:
            copy = Copy(base / f"copy-{attempt}", history)
            copied_live(store, base / "0_0", copy.task)
            needed = read_manifest(manifest_path(copy.files)).first_log
            if [needed <= int(log.stem) and len(ends(log)) > 2 for log in copy.logs] == [True, True]:
                store.close()
                return copy
    raise AssertionError("no two logs were seen")


def ends(log: Path) -> list[int]:
    """Where records can begin: 0, and the end of each."""
    return [0, *(end for _, end in read_records(log))]


def cut(which: int, length: int) -> Callable[[Copy], None]:
    return lambda copy: os.truncate(copy.logs[which], length)


def zeros(which: int, start: int) -> Callable[[Copy], None]:
    """From here to the end of the block, which RocksDB skips."""

    def write(copy: Copy) -> None:
        content, end = copy.logs[which].read_bytes(), (start // 32768 + 1) * 32768
        copy.logs[which].write_bytes((content[:start] + bytes(end - start) + content[end:])[: len(content)])

    return write


def removed(*which: int) -> Callable[[Copy], None]:
    def remove(copy: Copy) -> None:
        for log in [copy.logs[each] for each in which]:
            log.unlink()

    return remove


def ways(copy: Copy) -> Iterator[tuple[str, Callable[[Copy], None], int, int]]:
    """Everything that is done to the logs: its name, how, the commit that is left, and the log where it begins."""
    older, newer = (ends(log) for log in copy.logs)
    first = len(copy.history) - (len(older) - 1) - (len(newer) - 1)  # the first commit in them
    yield "the older removed", removed(0), first - 1, 0
    yield "both removed", removed(0, 1), first - 1, 0
    yield "the newer removed", removed(1), first - 1 + len(older) - 1, 1
    for which, name, starts, before in (0, "older", older, first - 1), (1, "newer", newer, first - 2 + len(older)):
        for records, start in enumerate(starts[:-1]):
            left = before + records
            yield f"{name} cut at {start}", cut(which, start), left, which
            yield f"{name} cut within the record at {start}", cut(which, start + 9), left, which
            yield f"{name} zeros from {start}", zeros(which, start), left, which


def shown(copy: Copy, read: Callable[[Copy], tuple[int, Rows]]) -> int | None:
    """The commit that a reader shows, whose rows must be those of that commit; None when it refuses."""
    try:
        number, rows = read(copy)
    except (DamagedDataError, RetryLaterError):
        return None
    assert rows == copy.history[number]
    return number


def by_inspection(copy: Copy) -> tuple[int, Rows]:
    with OfflineStore(copy.files) as store, store.scan(EVERY_KEY) as rows:
        return store.commit.number, dict(rows)


def by_secondary(copy: Copy) -> tuple[int, Rows]:
    reader = SecondaryReader(copy.files, copy.task / "s.notice", copy.task.parent / "scratch")
    try:
        with reader.range(None, None) as rows:
            return reader.commit_number, dict(rows)
    finally:
        reader.close()


def by_snapshot(copy: Copy) -> tuple[int, Rows]:
    snapshot, number = copy.task.parent / "snapshot", len(copy.history) - 1
    shutil.rmtree(snapshot, ignore_errors=True)
    shutil.copytree(copy.files, snapshot / "s")
    lengths = {path.name: path.stat().st_size for path in (snapshot / "s").iterdir() if path.suffix != ".sst"}
    with (
        Checkpoint(
            snapshot, CheckpointPart("s", 0, "s", number, 0, Position.of({INPUT: number}), lengths)
        ) as checkpoint,
        checkpoint.scan(EVERY_KEY) as rows,
    ):
        return checkpoint.commit.number, dict(rows)


def by_owner(copy: Copy) -> tuple[int, Rows]:
    store = opened(copy.task)
    try:
        with store.range(None, None) as rows:
            return store.commit_number, dict(rows)
    finally:
        store.close()


READERS = (by_inspection, by_secondary, by_snapshot)


def test_whatever_is_left_of_the_logs_every_reader_shows_a_whole_commit_or_refuses(live: Copy, tmp_path: Path) -> None:
    """The owner opens at the newest commit before the damage; where tables hold a part of a later one, it refuses."""
    ahead = read_manifest(manifest_path(live.files)).flushed_log == int(live.logs[1].stem)
    for at, (name, damage, left, log) in enumerate(ways(live)):
        copy = live.again(tmp_path / f"{at}" / "0_0")
        damage(copy)
        before = {shown(copy, read) for read in READERS}
        kept = shown(copy, by_owner)
        assert kept == (None if ahead and log == 0 else left), name
        assert before <= {None, kept}, name
        if kept is not None:
            assert [shown(copy, read) for read in (by_inspection, by_secondary, by_owner)] == [kept] * 3, name
        shutil.rmtree(copy.task.parent)


@pytest.mark.parametrize("live", ["a memtable switch"], indirect=True)
def test_what_is_lost_is_said(live: Copy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = live.again(tmp_path / "0_0")
    removed(0)(copy)
    with caplog.at_level(logging.WARNING):
        opened(copy.task).close()
    assert f"up to commit {len(live.history) - 1}, are dropped" in caplog.text


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_missed_in_sound_logs(tmp_path: Path, seed: int) -> None:
    """Through commits, flushes of both kinds, compactions, reopenings, kills, and power cuts that take the newest."""
    rnd, history = random.Random(seed), [Rows()]
    task = tmp_path / "0" / "0_0"
    store = opened(task)
    for step in range(1, 60):
        for _ in range(rnd.choice((0, 1, 5, 30))):
            commit(store, history, rnd)
        what = rnd.choice(("nothing", "flush one", "flush the other", "compact", "reopen", "kill", "cut"))
        engine = store._engine
        assert isinstance(engine, RocksDBEngine)
        if what.startswith("flush"):
            (engine._db if what == "flush one" else engine._offsets).flush()
        elif what == "compact":
            engine._db.compact_range(None, None)
        with contextlib.suppress(RetryLaterError):  # it was flushed just then
            refuse_holes(engine.directory)
        del engine
        if what in ("kill", "cut"):
            copied_live(store, task, tmp_path / f"{step}" / "0_0")
        if what in ("reopen", "kill", "cut"):
            store.close()
        if what in ("kill", "cut"):
            task = tmp_path / f"{step}" / "0_0"
        if what == "cut":
            newest = Copy(task, history).logs[-1]
            os.truncate(newest, rnd.randrange(newest.stat().st_size + 1))
        if not store.is_open:
            refuse_holes(task / "rocksdb" / "s")
            store = opened(task)
            del history[store.commit_number + 1 :]
            with store.range(None, None) as rows:
                assert dict(rows) == history[-1]
    store.close()


def test_nothing_is_missed_while_an_owner_writes(tmp_path: Path) -> None:
    task, rnd, history, done = tmp_path / "0_0", random.Random(1), [Rows()], threading.Event()
    store, found = opened(task), []

    def look() -> None:
        while not done.is_set():
            try:
                refuse_holes(task / "rocksdb" / "s")
                found.append("sound")
            except RetryLaterError:
                found.append("busy")
            except DamagedDataError as error:
                found.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    while found.count("sound") < 100:
        commit(store, history, rnd)
    done.set()
    thread.join()
    store.close()
    assert set(found) <= {"sound", "busy"}
