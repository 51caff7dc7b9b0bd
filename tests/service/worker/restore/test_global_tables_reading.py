"""A worker's global tables while they read: where each goes on, at which time, and when they commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stateline import App, serdes
from stateline.log.embedded import EmbeddedLog
from stateline.worker.loop.worker import Worker
from stateline.worker.restore import changelog_follower
from stateline.worker.restore.global_tables import GlobalTables
from stateline_store import IsolationLevel, TimestampedKeyValueStore
from support.processes.running_worker import configured, create, produce


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log.db") as made:
        create(made, {"codes": 1})
        yield made


@contextmanager
def opened(app: App, log: EmbeddedLog, root: Path, **settings: Any) -> Iterator[GlobalTables]:
    """As one worker after the other has them."""
    worker = Worker(app, configured(app, root / "state", **settings), log, instance="worker-0")
    try:
        with closing(GlobalTables(worker.context)) as tables:
            tables.open()
            yield tables
    finally:
        worker.leave()


def read_all(tables: GlobalTables) -> None:
    while not tables.advance(1.0):
        pass


def store(tables: GlobalTables, name: str) -> TimestampedKeyValueStore:
    found = tables.stores[name]
    assert isinstance(found, TimestampedKeyValueStore)
    return found


def of_codes(*names: str) -> App:
    app = App("app")
    for name in names:
        app.global_table("codes", key=serdes.string, value=serdes.string, store=name)
    return app


def test_a_record_without_a_time_has_that_of_its_partition_also_when_another_worker_has_read_what_went_before(
    log: EmbeddedLog, tmp_path: Path
) -> None:
    app = App("app")
    options: dict[str, Any] = {"timestamp": "at", "on_invalid_timestamp": "partition_time"}
    app.global_table(app.topic("codes", key=serdes.string, value=serdes.json, **options))
    for key, value in ((b"a", b'{"at": 500}'), (b"b", b"{}")):
        produce(log, "codes", [(key, value, 9)])
        with opened(app, log, tmp_path) as tables:
            read_all(tables)
            found = store(tables, "codes").get_with_timestamp(key)
            assert found is not None
            assert found.timestamp == 500


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_a_new_table_of_a_topic_reads_it_all_and_the_one_that_has_read_it_stays_as_it_is(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 2)
    produce(log, "codes", [(b"a", b"%d" % n, n) for n in range(9)])
    with opened(of_codes("first"), log, tmp_path) as tables:
        read_all(tables)
    produce(log, "codes", [(b"b", b"9", 9)])
    with opened(of_codes(*names), log, tmp_path) as tables:
        first, second = store(tables, "first"), store(tables, "second")
        before, seen = first.commit_number, list[bytes | None]()
        while not tables.advance(1.0):
            seen.append(second.get(b"a"))
            assert (first.get(b"a"), first.commit_number) == (b"8", before)
        assert seen == [b"1", b"3", b"5", b"7"]
        assert [(each.get(b"a"), each.get(b"b")) for each in (first, second)] == [(b"8", b"9")] * 2


@pytest.mark.parametrize(("limit", "committed"), [(1, b"new"), (-1, b"old")])
def test_tables_that_hold_more_than_is_allowed_are_committed_before_the_interval_is_over(
    log: EmbeddedLog, tmp_path: Path, limit: int, committed: bytes
) -> None:
    settings = {"commit__interval__ms": 2**31 - 1, "statestore__uncommitted__max__bytes": limit}
    produce(log, "codes", [(b"a", b"old", 1)])
    with opened(of_codes("codes"), log, tmp_path, **settings) as tables:
        read_all(tables)
        produce(log, "codes", [(b"a", b"new", 2)])
        codes = store(tables, "codes")
        while codes.get(b"a") != b"new":
            tables.look_now()
            tables.advance(1.0)
        with codes.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
            assert [value[8:] for _, value in rows] == [committed]
