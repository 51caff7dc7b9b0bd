"""What a power cut can leave of a store's write-ahead logs: a store shows a commit that was made, whole, or refuses."""

import contextlib
import logging
import os
import random
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rocksdict import WriteOptions

from stateline_store import DamagedDataError, KeyValueStore, RetryLaterError, SecondaryReader
from stateline_store.errors import NewerFormatError, StatelineError, TopologyError
from stateline_store.layout import Layout
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.manifest import manifest_path, read_manifest
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.options import Tuning
from stateline_store.rocksdb.write_ahead_logs import find_damage, refuse_holes
from stateline_store.rows.log_records import crc32c, read_records
from stateline_store.scan import EVERY_KEY
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart, link_database
from stateline_store.state_store import StoreContext
from support.rocksdb import database_of, engine_of, offsets_of

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


def opened(task: Path, changelog: TopicPartition | None = CHANGELOG) -> KeyValueStore:
    store = KeyValueStore("s", tuning=SMALL)
    store.init(StoreContext("0_0", task, changelog))
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
            (database_of(store) if request.param == "default flushed" else offsets_of(store)).flush()
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


def garbage(which: int, start: int) -> Callable[[Copy], None]:
    """From here on what was in other files, or in none."""

    def write(copy: Copy) -> None:
        content = copy.logs[which].read_bytes()
        copy.logs[which].write_bytes(content[:start] + random.Random(start).randbytes(5000))

    return write


def overwritten(which: int, start: int) -> Callable[[Copy], None]:
    """The header that is here."""
    return changed(which, start, lambda header: b"\xff" * len(header))


def flipped(which: int, start: int) -> Callable[[Copy], None]:
    """A bit of the header that is here; of every other one that which makes a recycled log's of its type."""
    bit = random.Random(start).choice((50, random.Random(start).randrange(56)))
    return changed(which, start, lambda header: (int.from_bytes(header, "little") ^ 1 << bit).to_bytes(7, "little"))


def changed(which: int, start: int, change: Callable[[bytes], bytes]) -> Callable[[Copy], None]:
    def write(copy: Copy) -> None:
        content = copy.logs[which].read_bytes()
        at = start if start % 32768 <= 32768 - 7 else (start // 32768 + 1) * 32768  # behind a block's trailer
        copy.logs[which].write_bytes(content[:at] + change(content[at : at + 7]) + content[at + 7 :])

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
            others = (
                ("cut within the record at", cut(which, start + 9)),
                ("zeros from", zeros(which, start)),
                ("garbage from", garbage(which, start)),
                ("header overwritten at", overwritten(which, start)),
                ("bit flipped in the header at", flipped(which, start)),
                ("garbage within the record at", garbage(which, start + 9)),
            )
            for what, damage in others[records % 3 :: 3]:  # each at every third record
                yield f"{name} {what} {start}", damage, left, which


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


def contents(copy: Copy) -> dict[str, bytes]:
    return {log.name: log.read_bytes() for log in copy.logs}


READERS = (by_inspection, by_secondary, by_snapshot)


def test_whatever_is_left_of_the_logs_every_reader_shows_a_whole_commit_or_refuses(live: Copy, tmp_path: Path) -> None:
    """The owner opens at the newest commit before the damage; where tables hold a part of a later one, it refuses."""
    ahead = read_manifest(manifest_path(live.files)).flushed_log == int(live.logs[1].stem)
    for at, (name, damage, left, log) in enumerate(ways(live)):
        copy = live.again(tmp_path / f"{at}" / "0_0")
        damage(copy)
        before, logs = {shown(copy, read) for read in READERS}, contents(copy)
        kept = shown(copy, by_owner)
        assert kept == (None if ahead and log == 0 else left), name
        assert before <= {None, kept}, name
        if kept is None:
            assert contents(copy) == logs, f"refused, and its logs were touched: {name}"
        else:
            assert [shown(copy, read) for read in (by_inspection, by_secondary, by_owner)] == [kept] * 3, name
        shutil.rmtree(copy.task.parent)


@pytest.mark.parametrize(
    "tail", [random.Random(0).randbytes(5000), struct.pack("<IHBQI", 0, 12, 1, 1 << 40, 1)], ids=["bytes", "a record"]
)
def test_garbage_behind_all_of_a_log_costs_no_commit(live: Copy, tmp_path: Path, tail: bytes) -> None:
    copy = live.again(tmp_path / "0_0")
    with copy.logs[0].open("ab") as older:
        older.write(tail)
    assert {shown(copy, read) for read in READERS} == {None}
    assert [shown(copy, read) for read in (by_owner, by_inspection, by_secondary)] == [len(live.history) - 1] * 3


@pytest.mark.parametrize("live", ["a memtable switch"], indirect=True)
@pytest.mark.parametrize("changelog", [CHANGELOG, None])
def test_what_is_lost_is_said_and_kept_aside(
    live: Copy, tmp_path: Path, caplog: pytest.LogCaptureFixture, changelog: TopicPartition | None
) -> None:
    copy, (older, newer) = live.again(tmp_path / "0_0"), live.logs
    os.truncate(copy.logs[0], ends(older)[-2])
    with caplog.at_level(logging.WARNING):
        opened(copy.task, changelog=changelog).close()
    (aside,) = copy.files.glob("lost-*")
    assert {log.name: log.read_bytes() for log in aside.iterdir()} == {newer.name: newer.read_bytes()}
    brought = "come again from changelog-0" if changelog else "are lost for good: nothing brings them again"
    assert f"behind it, up to commit {len(live.history) - 1}, {brought}. Their logs are kept in {aside}" in caplog.text


@pytest.mark.parametrize(("version", "refusal"), [(2, NewerFormatError), (1, TopologyError)])
def test_nothing_is_changed_in_a_store_of_another_format_or_kind(
    tmp_path: Path, version: int, refusal: type[Exception]
) -> None:
    """It may have writes that were never in a log, which looks like a hole."""
    task, history, options = tmp_path / "0_0", [Rows()], WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stub says
    store = opened(task)
    commit(store, history, random.Random(0))
    engine = engine_of(store)
    database_of(engine).put(b"in no log", b"", options)
    engine._mark([(b"format_version", version.to_bytes(4, "big"))])
    copy = Copy(tmp_path / "copy" / "0_0", history)
    copied_live(store, task, copy.task)
    del engine
    store.close()
    logs = contents(copy)
    with pytest.raises(refusal):
        RocksDBEngine(copy.files, layout=Layout("session"))
    assert contents(copy) == logs


@pytest.mark.parametrize("live", ["a memtable switch"], indirect=True)
def test_records_of_a_newer_rocksdb_are_no_hole_for_the_owner_and_no_answer_for_a_reader(
    live: Copy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = live.again(tmp_path / "0_0")
    length = ends(copy.logs[0])[-2]
    type_and_rest = bytes((130, 1, 2, 3))
    checksum = crc32c(type_and_rest)
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    content = copy.logs[0].read_bytes()[:length]
    copy.logs[0].write_bytes(content + masked.to_bytes(4, "little") + b"\x03\x00" + type_and_rest)
    with pytest.raises(NewerFormatError, match="type that this version does not know"):
        refuse_holes(copy.files)
    assert find_damage(copy.files) is None
    assert "cannot be told" in caplog.text


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_missed_in_sound_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    """Through commits, flushes of both kinds, compactions, reopenings, kills, and power cuts that take the newest."""
    rnd, history = random.Random(seed), [Rows()]
    task = tmp_path / "0" / "0_0"
    store = opened(task)
    for step in range(1, 60):
        for _ in range(rnd.choice((0, 1, 5, 30))):
            commit(store, history, rnd)
        what = rnd.choice(("nothing", "flush one", "flush the other", "compact", "reopen", "kill", "cut"))
        engine = engine_of(store)
        if what.startswith("flush"):
            (database_of(engine) if what == "flush one" else offsets_of(engine)).flush()
        elif what == "compact":
            database_of(engine).compact_range(None, None)
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
    assert "cannot be told" not in caplog.text


def test_nothing_is_missed_while_an_owner_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task, rnd, history, done = tmp_path / "0_0", random.Random(1), [Rows()], threading.Event()
    store, found = opened(task), []

    def look() -> None:
        while not done.is_set():
            try:
                refuse_holes(task / "rocksdb" / "s")
                found.append("sound")
            except RetryLaterError:
                found.append("busy")
            except StatelineError as error:
                found.append(str(error))
                return

    thread = threading.Thread(target=look)
    thread.start()
    while found.count("sound") < 100 and thread.is_alive():
        commit(store, history, rnd)
    done.set()
    thread.join()
    store.close()
    assert set(found) <= {"sound", "busy"}
    assert "cannot be told" not in caplog.text
