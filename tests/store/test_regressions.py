"""What went wrong in Kafka Streams as shipped, so that it does not here: each item, and the test that holds it.

Tests without a file name are in this file.

| item | test |
|---|---|
| a commit that timed out wiped the store | service/worker/loop/test_worker_faults.py, next line |
| | test_a_transaction_of_unknown_outcome_is_settled_and_every_record_counts_once |
| a late put was lost in a crash, its offset kept | test_a_late_put_survives_a_kill_with_its_offset |
| a scan over segments was of several moments | test_segments.py, next line |
| | test_all_segments_are_seen_at_the_moment_the_scan_is_made |
| queries wrote what they migrated | test_a_query_changes_no_byte_on_disk |
| a commit was not on disk | test_crashes.py: test_a_killed_writer_loses_nothing_it_acknowledged |
| committed reads saw the record cache | test_queries.py: test_every_answer_is_the_plain_oracles_at_its_position |
| readers elsewhere had no Position | test_secondary.py: test_a_refresh_reflects_the_newest_commit_and_nothing_staged |
| requireActive threw the bound away | service/query/test_execution.py, next line |
| | test_require_active_refuses_every_other_copy |
| an unknown column family crashed a downgrade | test_rocksdb_engine.py: test_an_unknown_column_family_is_refused |
| `.position` was merged at every start | service/worker/tasks/test_task_stores.py, next line |
| | test_a_position_file_is_taken_into_a_store_with_rows_and_goes |
| KAFKA-20749, offset rows in data scans | test_offset_rows_are_in_no_scan_of_any_kind |
| KAFKA-20753, a discarded marker, wiped for ever | test_closing_over_staged_records_again_and_again_empties_nothing |
| KAFKA-20760, Position and offsets apart | test_a_log_that_ends_anywhere_shows_whole_commits |
| KAFKA-20933, putAll bypassed the buffer | test_key_value_contract.py, next line |
| | test_put_all_goes_through_the_buffer_and_a_null_key_stages_nothing |
| #22141, commits skipped the flush | test_a_late_put_survives_a_kill_with_its_offset |
| #21795, wrappers forgot managesOffsets | test_every_kind_manages_its_offsets_on_disk_whatever_its_format |
| #22648, range tombstones under an iterator | test_window_contract.py, next line |
| | test_an_open_iterator_keeps_what_it_saw_when_a_commit_drops_its_segment |
| KAFKA-20805, live tasks were cleaned | test_cleaning.py: test_a_live_task_is_left_alone_before_its_lock_is_taken |
| KAFKA-20808, what failed to open stayed cached | test_a_store_that_failed_to_open_is_closed_and_opens_later |
| #22490, a failed start kept the task's lock | test_a_task_that_failed_to_open_lets_go_of_its_lock_and_its_stores |
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.processing.failures import FailureHandler
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.tasks.task import Task, TaskState
from stateline.worker.tasks.task_settings import TaskSettings
from stateline.worker.tasks.task_stores import TaskStores
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyQuery,
    KeyValueStore,
    LockedError,
    MultiVersionedKeyQuery,
    Position,
    Query,
    RangeQuery,
    Reader,
    RetryLaterError,
    SecondaryReader,
    StateDirectory,
    StoreContext,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    TopicPartition,
    TransactionalStore,
    UnknownQueryTypeError,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    notice_path,
    queries,
    store_path,
)
from stateline_store.scan import EVERY_KEY
from stateline_store.task_id import TaskId
from store.query_oracles import KINDS, RETENTION, Put, materialized, random_puts, random_query, write
from support.rocksdb import database_of
from support.run.patience import HANGING_S

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
STAMPED = [kind for kind in KINDS if KINDS[kind](True).timestamped]
QUERIES: list[type[Any]] = [
    KeyQuery,
    TimestampedKeyQuery,
    RangeQuery,
    TimestampedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    VersionedKeyQuery,
    MultiVersionedKeyQuery,
]


@pytest.fixture
def cleared() -> Iterator[ExitStack]:
    """Closes what it is given, however the test ends."""
    with ExitStack() as stack:
        yield stack


def opened(cleared: ExitStack, kind: str, context: StoreContext, *, persistent: bool = True) -> TransactionalStore:
    store = KINDS[kind](persistent)
    cleared.callback(store.close)
    store.init(context)
    return store


def secondary(cleared: ExitStack, store: TransactionalStore, context: StoreContext, scratch: Path) -> SecondaryReader:
    stamped = store.timestamped and not context.plain_format
    task = context.directory
    return cleared.enter_context(
        closing(
            SecondaryReader(
                store_path(task, "s", timestamped=stamped), notice_path(task, "s", timestamped=stamped), scratch
            )
        )
    )


def at(offset: int) -> Position:
    return Position.of({INPUT: offset})


def puts(seed: str, count: int) -> list[Put]:
    """Two minutes of writes: several segments."""
    return list(random_puts(Random(seed), count, first_ms=RETENTION, last_ms=RETENTION + 120_000))


def raw(reader: Reader) -> dict[bytes, bytes]:
    """Every stored row that a scan can reach."""
    return dict(reader.scan(EVERY_KEY))


def staged(store: TransactionalStore) -> dict[bytes, bytes]:
    return {key: value for key, value in store.staged() if value is not None}


# -- rows and offsets -----------------------------------------------------------------------------------


@EVERY_KIND
@pytest.mark.parametrize("persistent", [True, False])
def test_offset_rows_are_in_no_scan_of_any_kind(
    cleared: ExitStack, context: StoreContext, tmp_path: Path, kind: str, persistent: bool
) -> None:
    store = opened(cleared, kind, context, persistent=persistent)
    store.commit({CHANGELOG: 1}, position=at(1))
    assert raw(store.reader(COMMITTED)) == {}
    assert store.is_empty()
    for number in range(3):
        write(store, Put(b"key%d" % number, b"value", RETENTION, 0, number))
    rows = staged(store)
    assert len(rows) >= 3
    store.commit({CHANGELOG: 7, TopicPartition("other", 3): 9}, position=at(7))
    readers: list[Reader] = [store.reader(COMMITTED), store.reader(UNCOMMITTED)]
    if persistent:
        readers.append(secondary(cleared, store, context, tmp_path / "scratch"))
    for reader in readers:
        assert raw(reader) == dict(reader.scan(EVERY_KEY, reverse=True)) == rows
        assert dict(reader.prefix_scan(b"")) == dict(reader.range(None, None)) == rows
        assert reader.approximate_num_entries() == len(rows)
        assert [reader.get(key) for key in (b"position", b"commit_number", b"changelog-0")] == [None] * 3


@EVERY_KIND
def test_a_log_that_ends_anywhere_shows_whole_commits(
    cleared: ExitStack, context: StoreContext, tmp_path: Path, kind: str
) -> None:
    store = opened(cleared, kind, context)
    expected = [raw(store.reader(COMMITTED))]
    written = puts(kind, 60)
    for number in range(1, 7):
        for put in written[number * 10 - 10 : number * 10]:
            write(store, put._replace(time=put.time + number * 40_000))  # time goes on: segments expire
        store.commit({CHANGELOG: number}, position=at(number))
        expected.append(raw(store.reader(COMMITTED)))
    (log,) = store_path(context.directory, "s", timestamped=store.timestamped).glob("*.log")
    size, found = log.stat().st_size, set()
    for cut in sorted(Random(kind).sample(range(size), 30)):
        task = tmp_path / str(cut)
        shutil.copytree(context.directory, task)
        os.truncate(task / log.relative_to(context.directory), cut)
        with ExitStack() as shown:
            other = opened(shown, kind, StoreContext("0_0", task, CHANGELOG))
            number = other.commit_number
            assert raw(other.reader(COMMITTED)) == expected[number]
            assert other.position(COMMITTED) == (at(number) if number else Position())
            assert other.committed_offset(CHANGELOG) == (number or None)
        found.add(number)
        shutil.rmtree(task)
    assert len(found) > 3


LATE_PUT = """
import os, signal, sys
from pathlib import Path
from stateline_store import StoreContext, TopicPartition
from store.query_oracles import KINDS, RETENTION, Put, write
from support.rocksdb import database_of

kind, task, flushed = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "True"
store = KINDS[kind](True)
store.init(StoreContext("0_0", task))
for number, late in enumerate([0, -60_000, -90_000]):  # ms: two are in older segments
    write(store, Put(b"key%d" % number, b"value", 2 * RETENTION + late, 0, number))
    store.commit({TopicPartition("changelog", 0): number})
    if flushed and number < 2:
        database_of(store).flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@EVERY_KIND
@pytest.mark.parametrize("flushed", [True, False])
def test_a_late_put_survives_a_kill_with_its_offset(
    cleared: ExitStack, context: StoreContext, kind: str, flushed: bool
) -> None:
    command = [sys.executable, "-c", LATE_PUT, kind, str(context.directory), str(flushed)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[1], check=False, timeout=HANGING_S)
    assert killed.returncode == -signal.SIGKILL
    store = opened(cleared, kind, context)
    assert (store.commit_number, store.committed_offset(CHANGELOG)) == (3, 2)
    untroubled = opened(cleared, kind, StoreContext("0_0", context.directory / "other"))
    for number, late in enumerate([0, -60_000, -90_000]):
        write(untroubled, Put(b"key%d" % number, b"value", 2 * RETENTION + late, 0, number))
        untroubled.commit({})
    rows = raw(store.reader(COMMITTED))
    assert rows == raw(untroubled.reader(COMMITTED))
    assert len(rows) >= 3


@pytest.mark.parametrize(("kind", "plain"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in STAMPED)])
@pytest.mark.parametrize("persistent", [True, False])
def test_every_kind_manages_its_offsets_on_disk_whatever_its_format(
    tmp_path: Path, kind: str, plain: bool, persistent: bool
) -> None:
    context = StoreContext("0_0", tmp_path, CHANGELOG, plain_format=plain)
    for offset in (None, 7, 8):
        with ExitStack() as cleared:
            store = opened(cleared, kind, context, persistent=persistent)
            assert (store.manages_offsets, store.transactional) == (persistent, True)
            assert store.committed_offset(CHANGELOG) == (offset if persistent else None)
            write(store, Put(b"key", b"value", RETENTION, 0, 1))
            store.commit({CHANGELOG: 7 if offset is None else 8}, position=at(3))


# -- queries --------------------------------------------------------------------------------------------


def on_disk(task: Path) -> dict[str, bytes]:
    """Every file of the task but RocksDB's diary."""
    files = (path for path in task.rglob("*") if path.is_file() and not path.name.startswith("LOG"))
    return {str(path.relative_to(task)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("kind", "plain"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in STAMPED)])
def test_a_query_changes_no_byte_on_disk(cleared: ExitStack, tmp_path: Path, kind: str, plain: bool) -> None:
    context = StoreContext("0_0", tmp_path / "0_0", CHANGELOG, plain_format=plain)
    store = opened(cleared, kind, context)
    written = puts(kind, 80)
    for number, put in enumerate(written, 1):
        write(store, put)
        if number in (30, 60):
            store.commit({CHANGELOG: number}, position=at(number))
    readers: list[Reader] = [store.reader(COMMITTED), store.reader(UNCOMMITTED)]
    if not plain:  # another process asks plain files through a reader of its own
        readers.append(secondary(cleared, store, context, tmp_path / "scratch"))
    before = (on_disk(context.directory), database_of(store).latest_sequence_number(), dict(store.staged()))
    rnd, answered = Random(kind), set()
    for reader in readers:
        for query_type in QUERIES:
            for _ in range(20):
                query: Query[Any] = random_query(
                    rnd, query_type, [put.time for put in written], sessions=store.kind == "session"
                )
                with suppress(UnknownQueryTypeError):
                    materialized(queries.run(query, reader, store.schema).result)
                    answered.add(query_type)
        raw(reader)
    assert answered
    assert (on_disk(context.directory), database_of(store).latest_sequence_number(), dict(store.staged())) == before


# -- openings and closings ------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", [True, False])
def test_closing_over_staged_records_again_and_again_empties_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exactly_once: bool
) -> None:
    def of(made: TaskStores) -> KeyValueStore:
        store = made.by_name["s"]
        assert isinstance(store, KeyValueStore)
        return store

    declared = {"s": stores.key_value("s", key=serdes.bytes, value=serdes.bytes)}
    for number in range(4):
        made = TaskStores(TaskId(0, 0), tmp_path, declared, {"s": CHANGELOG}, exactly_once=exactly_once, sync=False)
        made.open()
        try:
            store = of(made)
            assert made.offsets.committed("s") == (7 if number else None)
            assert dict(store.all()) == ({b"kept": b"1"} if number else {})
            if number == 0:
                store.put(b"kept", b"1")
                made.commit({"s": {CHANGELOG: 7}})
            store.put(b"staged", b"%d" % number)
            if number == 2:
                store.rollback()
        finally:
            made.close(clean=number == 3)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@EVERY_KIND
@pytest.mark.parametrize(
    "obstacle",
    [
        "another owner",
        "the notice",
        "the Position",
    ],
)
def test_a_store_that_failed_to_open_is_closed_and_opens_later(
    cleared: ExitStack, context: StoreContext, kind: str, obstacle: str
) -> None:
    first = opened(cleared, kind, context)
    write(first, Put(b"key", b"value", RETENTION, 0, 1))
    first.commit({CHANGELOG: 7})
    rows = raw(first.reader(COMMITTED))
    in_the_way = notice_path(context.directory, "s", timestamped=first.timestamped)
    if obstacle == "the Position":
        in_the_way = context.directory / "s.position"
    if obstacle != "another owner":
        first.close()
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir()  # a file system that refuses, whoever the user is
    store = KINDS[kind](True)
    cleared.callback(store.close)
    for _ in range(2):
        with pytest.raises((LockedError, RetryLaterError)):
            store.init(context)
        assert not store.is_open
    if obstacle == "another owner":
        first.close()
    else:
        in_the_way.rmdir()
    store.init(context)
    assert (raw(store.reader(COMMITTED)), store.committed_offset(CHANGELOG)) == (rows, 7)


def counting() -> App:
    """Two stores that nothing can rebuild."""
    app = App("app")
    names = ["counts", "again"]
    made = [app.store(stores.key_value(n, key=serdes.bytes, value=serdes.bytes, logged=False)) for n in names]

    @app.process(app.topic("in", key=serdes.bytes, value=serdes.bytes), stores=made)
    def count(record: InputRecord, counts: StoreView, again: StoreView) -> None: ...

    return app


@pytest.mark.parametrize("damaged", ["counts", "again"])
def test_a_task_that_failed_to_open_lets_go_of_its_lock_and_its_stores(tmp_path: Path, damaged: str) -> None:
    places = StateDirectory(tmp_path, "app")
    (subtopology,) = counting().topology().subtopologies
    task = Task(subtopology, 0, TaskSettings("app", places, FailureHandler("fail", "fail", None)))
    task.open()
    task.close()
    current = store_path(task.directory, damaged, timestamped=False) / "CURRENT"
    whole = current.read_bytes()
    current.write_bytes(b"garbage\n")
    task = Task(subtopology, 0, TaskSettings("app", places, FailureHandler("fail", "fail", None)))
    for _ in range(2):
        with pytest.raises(DamagedDataError):
            task.open()
        assert task.state is TaskState.CREATED
        assert not any(store.is_open for store in task.stores.by_name.values())
        places.lock_task(str(task.id)).release()
    current.write_bytes(whole)
    task.open()
    with pytest.raises(LockedError):
        places.lock_task(str(task.id))
    task.close()
    places.lock_task(str(task.id)).release()
