"""What a standby claims to have of a changelog that was compacted underneath it, against a dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from service.worker.faults import Place, table_only
from stateline.log import Record
from stateline.model.topic import Topic
from stateline.processing.changelog import position_headers
from stateline.processing.failures import FailureHandler
from stateline.processing.reading import readable
from stateline.worker.loop.worker import Worker
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.standbys import standby_tasks
from stateline.worker.standbys.standby_store import StandbyStore
from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    Position,
    StateDirectory,
    StoreContext,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.errors import SchemaRegistryUnavailableError
from stateline_store.files.commit_notice import NoticeView
from stateline_store.task_id import TaskId
from support.processes.running_worker import eventually
from support.run.patience import HANGING_S

LOG, IN = TopicPartition("log", 0), TopicPartition("in", 0)


def written(
    chance: random.Random, commits: int, *, markers: bool
) -> tuple[list[Record], dict[int, dict[bytes, bytes]]]:
    """A changelog of so many commits, some transactions of which were aborted, and what holds at each Position."""
    records: list[Record] = []
    offset, rows, at = 0, dict[bytes, bytes](), dict[int, dict[bytes, bytes]]()
    for number in range(commits):
        if markers and chance.random() < 0.1:
            offset += chance.randrange(1, 5) + 1
        keys = chance.sample([b"%d" % n for n in range(12)], chance.randrange(1, 5))
        for n, key in enumerate(keys):
            headers = position_headers(Position.of({IN: number})) if n == len(keys) - 1 else ()
            value = None if chance.random() < 0.2 else b"%d" % offset
            records.append(Record(*LOG, offset, 1, key, value, headers))
            rows = {k: v for k, v in rows.items() if k != key} | ({} if value is None else {key: value})
            offset += 1
        at[number] = rows
        offset += markers
    return records, at


def compacted(records: list[Record], chance: random.Random) -> list[Record]:
    """Without some of those that a later record of their key replaces."""
    newest = {record.key: record.offset for record in records}
    return [r for r in records if r.offset == newest[r.key] or chance.random() < 0.5]


def rows_of(store: KeyValueStore) -> dict[bytes, bytes]:
    with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
        return dict(rows)


def put(offset: int) -> Record:
    return Record(*LOG, offset, 1, b"%d" % offset, b"v", position_headers(Position.of({IN: offset})))


@pytest.mark.parametrize("follows", [StandbyStore, StoreRestore])
def test_rows_without_their_position_are_never_there_before_it_is_said_that_something_is_missing(
    tmp_path: Path, follows: type[StoreRestore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 1)
    task = StateDirectory(tmp_path, "app").task("0_0")
    store = KeyValueStore("kept")
    store.init(StoreContext("0_0", task))
    seen: list[tuple[bool, bool]] = []

    def commit(offsets: Mapping[TopicPartition, int]) -> None:
        store.commit(offsets)
        with closing(NoticeView(StateDirectory(tmp_path, "app").notice("0_0", "kept", timestamped=False))) as notice:
            has_position = store.position(IsolationLevel.READ_COMMITTED).get(*IN) == max(offsets.values())
            seen.append((has_position, notice.restore_remaining > 0))

    restore = follows(RestoredStore(store, commit, LOG), 0, 8)
    for offset in (1, 3, 7):
        records = [put(offset)]
        if isinstance(restore, StandbyStore):
            restore.read(records, offset + 1, 8)
            restore.commit_whole()
        else:
            restore.apply(records)
    if not isinstance(restore, StandbyStore):
        restore.finish(0)
    store.close()
    assert seen[0] == (False, True)
    assert (False, False) not in seen
    assert seen[-1][0]


def test_what_begins_with_rows_without_their_position_is_whole_when_it_has_that_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 1)
    store = KeyValueStore("kept")
    store.init(StoreContext("0_0", StateDirectory(tmp_path, "app").task("0_0")))
    of = RestoredStore(store, lambda offsets: store.commit(offsets), LOG)
    killed = StandbyStore(of, 0, 10, has_markers=True)
    killed.read([put(8)], 9, 10)  # all but the marker behind it
    assert (store.committed_offset(LOG), store.position(IsolationLevel.READ_COMMITTED)) == (8, Position())
    standby = StandbyStore(of, 9, 10, has_markers=True)
    standby.read([], 10, 10)
    standby.commit_whole()
    standby.commit_whole()
    assert not standby.is_whole
    standby.read([put(10)], 11, 11)
    standby.commit_whole()
    assert standby.is_whole
    store.close()


def test_behind_a_gap_whose_end_is_not_known_yet_it_waits_for_that_end_and_no_longer(tmp_path: Path) -> None:
    store = KeyValueStore("kept")
    store.init(StoreContext("0_0", StateDirectory(tmp_path, "app").task("0_0")))
    standby = StandbyStore(RestoredStore(store, lambda offsets: store.commit(offsets), LOG), 0, 0)
    standby.read([put(3)], 4, None)
    standby.commit_whole()
    assert store.position(IsolationLevel.READ_COMMITTED) == Position(), "what came before it may be missing"
    standby.read([], 4, 5)
    standby.commit_whole()
    assert store.position(IsolationLevel.READ_COMMITTED) == Position()
    standby.read([put(4)], 5, 6)
    standby.commit_whole()
    assert (standby.is_whole, store.position(IsolationLevel.READ_COMMITTED)) == (True, Position.of({IN: 4}))
    store.close()


def copied(store: KeyValueStore, full: list[Record], at: dict[int, dict[bytes, bytes]], number: int) -> int:
    """Have the store begin as a copy of another node's at this commit; the offset from which it reads on."""
    ends = [record.offset for record in full if record.headers]
    store.restore((key, value, 1) for key, value in at[number].items())
    store.advance(Position.of({IN: number}))
    store.commit({LOG: ends[number]})
    return ends[number] + 1


@pytest.mark.parametrize("begins", ["with nothing", "as a copy"])
@pytest.mark.parametrize("markers", [False, True])
def test_a_position_is_claimed_only_with_the_rows_that_held_there(
    tmp_path: Path, markers: bool, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = 0
    for seed in range(300):
        chance = random.Random(seed)
        monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", chance.choice([1, 300, 10_000_000]))
        full, at = written(chance, 40, markers=markers)
        store = KeyValueStore("kept", persistent=False)
        store.init(StoreContext("0_0", tmp_path))
        seen: list[tuple[Position, dict[bytes, bytes]]] = []

        def commit(offsets: Mapping[TopicPartition, int], store: KeyValueStore = store) -> None:
            store.commit(offsets)

        end_at_start = full[chance.randrange(len(full))].offset + 1
        first = copied(store, full, at, chance.randrange(30)) if begins == "as a copy" else 0
        of = RestoredStore(store, commit, LOG)
        standby = StandbyStore(of, first, end_at_start, has_commits=first > 0, has_markers=markers)
        log, left, end = list(full), first, end_at_start
        while left < full[-1].offset + 1:
            # What the log has now: it ends somewhere further on, and was compacted up to a place before that.
            end = min(full[-1].offset + 1, max(left, end) + chance.randrange(30))
            cleaned = chance.randrange(end + 1) if chance.random() < 0.5 else 0
            log = compacted([r for r in log if r.offset < cleaned], chance) + [r for r in log if r.offset >= cleaned]
            slice_ = [r for r in log if left <= r.offset < end][: chance.randrange(1, 20)]
            left = slice_[-1].offset + 1 if slice_ else end
            standby.read(slice_, left, end if chance.random() < 0.8 else None)
            if chance.random() < 0.7:
                standby.commit_whole()
            position = store.position(IsolationLevel.READ_COMMITTED)
            if standby.is_whole and position:
                seen.append((position, rows_of(store)))
        standby.let_go()
        for position, rows in seen:
            number = position.get(*IN)
            assert number is not None
            assert rows == at[number], f"seed {seed}, at {number}"
            claimed += 1
        assert rows_of(store) == at[39]
        store.close()
    assert claimed > 500, "it claims often"


def test_a_standby_that_cannot_read_its_records_reads_them_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []

    def fail_once(topic: Topic, records: Sequence[Record], failures: FailureHandler | None) -> Sequence[Record]:
        if records[-1].offset == 1 and not failed:
            failed.append(records[-1].offset)
            raise SchemaRegistryUnavailableError("the Schema Registry does not answer")
        return readable(topic, records, failures)

    monkeypatch.setattr("stateline.worker.restore.store_restore.readable", fail_once)
    monkeypatch.setattr(standby_tasks, "_RETRY_S", 0.0)
    app = table_only()
    place.send([(b"a", b"1", 1)])
    worker = place.worker(app, place.config(app))
    worker.begin()
    followed, task_id = worker.standbys.followed, TaskId(0, 0)

    def has_read(offset: int) -> bool:
        if task_id not in followed.ids:
            assert followed.add(task_id)
        followed.advance(beside_work=False)
        return [task.stores.offsets.committed("newest") for task in followed.tasks] == [offset]

    eventually(lambda: has_read(0), "it has the first record")
    place.send([(b"b", b"2", 2)])
    eventually(lambda: has_read(1) and bool(failed), "it has the second record")
    store = followed.tasks[0].stores.by_name["newest"]
    assert isinstance(store, TransactionalStore)
    with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
        assert [key for key, _ in rows] == [b"a", b"b"]
    worker.leave()


def test_a_standby_whose_records_a_serde_cannot_read_commits_none_of_them_as_its_worker_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(topic: Topic, records: Sequence[Record], failures: FailureHandler | None) -> Sequence[Record]:
        if records[-1].offset == 1:
            raise ValueError("a defect of the application's serde")
        return readable(topic, records, failures)

    app, task_id = table_only(), TaskId(0, 0)

    def followed_until(reads: Callable[[list[int | None]], bool]) -> tuple[Worker, TransactionalStore]:
        worker = place.worker(app, place.config(app))
        worker.begin()
        followed = worker.standbys.followed
        assert followed.add(task_id)
        store = followed.tasks[0].stores.by_name["newest"]
        assert isinstance(store, TransactionalStore)

        def is_so() -> bool:
            followed.advance(beside_work=False)
            return reads([task.stores.offsets.committed("newest") for task in followed.tasks])

        try:
            eventually(is_so, "it has read so far")
        except ValueError:
            worker.leave()
        return worker, store

    place.send([(b"a", b"1", 1)])
    sent: list[int] = []

    def sends_another(_: list[int | None]) -> bool:
        if not sent:  # the first record is staged
            place.send([(b"b", b"2", 2)])
            sent.append(1)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(standby_tasks, "_COMMIT_INTERVAL_S", HANGING_S)
        patch.setattr("stateline.worker.restore.store_restore.readable", fail)
        followed_until(sends_another)
    place.send([(b"c", b"3", 3)])
    worker, store = followed_until(lambda offsets: offsets == [2])
    with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
        assert [key for key, _ in rows] == [b"a", b"b", b"c"]
    worker.leave()
