"""Restore: which store reads what, from where, up to where; and which store is rebuilt."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import open_log
from stateline.log.embedded import EmbeddedAdmin, EmbeddedLog
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.loop.worker import Worker
from stateline_store import RecordError, SecondaryReader, TopicPartition, TopologyError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with closing(EmbeddedLog(tmp_path / "log.db")) as made:
        yield made


def counting(store: str = "counts", persistent: bool = True, table: bool = True) -> App:
    app = App("restores")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    if table:
        app.table(source, store="newest")
    counts = app.store(stores.key_value(store, key=serdes.string, value=serdes.json, persistent=persistent))

    @app.process(source, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def records(count: int) -> list[tuple[bytes, bytes, int]]:
    return [(b"k%d" % (n % 5), b"%d" % n, n) for n in range(count)]


def run_to(app: App, log: EmbeddedLog, tmp_path: Path, offset: int, store: str, **settings: str) -> dict[bytes, bytes]:
    """Run a worker until the store has come this far; its rows then."""
    config = configured(app, tmp_path / "state", **settings)
    found = Stores(app, config, tmp_path / "scratch")
    with running(app, config, log):
        eventually(lambda: found.offset(store, "in", 0) >= offset, f"{store} reaches {offset}")
        rows = found.rows(store, 1)
    found.close()
    return rows


def identities(tmp_path: Path) -> dict[str, str]:
    """What RocksDB calls each store on the disk: another name after it was deleted and made anew."""
    rocksdb = tmp_path / "state" / "restores" / "0_0" / "rocksdb"
    return {path.parent.name: path.read_text() for path in rocksdb.glob("*/IDENTITY")}


def test_a_deleted_changelog_is_refused_and_no_store_loses_anything(log: EmbeddedLog, tmp_path: Path) -> None:
    create(log, {"in": 1})
    produce(log, "in", records(50))
    app = counting()
    rows = run_to(app, log, tmp_path, 49, "counts")
    before = identities(tmp_path)
    with closing(log.admin()) as admin:  # somebody deletes the changelog; the next start makes it anew, empty
        admin.delete_topics(["restores-counts-changelog"])
    config = configured(app, tmp_path / "state")
    with pytest.raises(TopologyError, match="restores-counts-changelog is missing: the topic was deleted"):
        Worker(app, config, log, instance="one").run()
    with closing(Stores(app, config, tmp_path / "afterwards")) as found:
        assert found.rows("counts", 1) == rows == {b"k%d" % n: b"10" for n in range(5)}
        assert found.rows("newest", 1) == {b"k%d" % n: b"%d" % (45 + n) for n in range(5)}
    assert identities(tmp_path) == before


def test_a_store_behind_what_its_changelog_still_keeps_is_rebuilt_and_no_other(
    log: EmbeddedLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(log, {"in": 1})
    produce(log, "in", records(50))
    app = counting()
    run_to(app, log, tmp_path, 49, "counts")
    shutil.copytree(tmp_path / "state", tmp_path / "old")
    for end in (54, 59):  # two commits of five changelog records each
        produce(log, "in", records(5))
        run_to(app, log, tmp_path, end, "counts")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "old").rename(tmp_path / "state")
    before, changelog = identities(tmp_path), TopicPartition("restores-counts-changelog", 0)
    with closing(log.admin()) as admin:  # all but the last commit is gone
        admin.delete_records({changelog: admin.log_end(changelog) - 5})
    assert run_to(app, log, tmp_path, 59, "counts") == {b"k%d" % n: b"12" for n in range(5)}
    after = identities(tmp_path)
    assert after["newest-v2"] == before["newest-v2"]
    assert after["counts"] != before["counts"]
    assert "Store counts of task 0_0" in caplog.text


def test_an_in_memory_store_is_restored_from_the_start_of_its_changelog(log: EmbeddedLog, tmp_path: Path) -> None:
    create(log, {"in": 1})
    app = counting(persistent=False)
    produce(log, "in", records(50))
    run_to(app, log, tmp_path, 49, "newest")
    produce(log, "in", records(5))
    config = configured(app, tmp_path / "state")
    with running(app, config, log):
        eventually(lambda: read_changelog(log) == {b"k%d" % n: b"11" for n in range(5)}, "counts go on from 10")


def read_changelog(log: EmbeddedLog) -> dict[bytes, bytes]:
    with closing(log.consumer()) as consumer:
        consumer.assign({TopicPartition("restores-counts-changelog", 0): 0})
        return {r.key: r.value for r in consumer.poll(1_000, 1.0) if r.key is not None and r.value is not None}


def test_a_record_that_a_policy_skipped_stays_out_when_the_table_is_restored(log: EmbeddedLog, tmp_path: Path) -> None:
    create(log, {"in": 1})
    produce(log, "in", [(b"a", b"1", 1), (b"a", b"{half", 2), (None, b"3", 3), (b"b", b"4", 4)])
    skip = {"deserialization__exception__handler": "skip", "processing__exception__handler": "skip"}
    wanted = {b"a": b"1", b"b": b"4"}
    assert run_to(counting(), log, tmp_path, 3, "newest", **skip) == wanted
    (tmp_path / "state").rename(tmp_path / "lost")
    assert run_to(counting(), log, tmp_path, 3, "newest", **skip) == wanted


def test_a_worker_that_fails_on_a_record_has_kept_nothing_of_it_and_goes_on_once_it_can(
    log: EmbeddedLog, tmp_path: Path
) -> None:
    create(log, {"in": 1})
    produce(log, "in", [*records(30), (b"k0", b"{half", 30), *records(5)])
    config = configured(counting(), tmp_path / "state")
    with pytest.raises(RecordError, match="in-0 offset 30"):
        Worker(counting(), config, log, instance="one").run()
    rows = run_to(counting(), log, tmp_path, 35, "counts", deserialization__exception__handler="skip")
    assert rows == {b"k%d" % n: b"7" for n in range(5)}


def test_readers_are_served_what_was_committed_while_a_restore_goes_on(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, {"in": 1})
    produce(log, "in", records(50))
    app = counting(table=False)
    run_to(app, log, tmp_path, 49, "counts")
    monkeypatch.setattr("stateline.worker.restore.changelog_follower.SLICE_RECORDS", 1)
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 1)
    (tmp_path / "state").rename(tmp_path / "lost")
    config = configured(app, tmp_path / "state")
    found = Stores(app, config, tmp_path / "scratch")
    sizes: list[int] = []

    def restored() -> bool:
        reader: SecondaryReader | None = found.reader("counts", 0)
        if reader is not None:
            sizes.append(reader.approximate_num_entries())
        return found.offset("counts", "in", 0) >= 49

    with running(app, config, log):
        eventually(restored, "the restore ends")
    assert sizes == sorted(sizes)
    assert found.rows("counts", 1) == {b"k%d" % n: b"10" for n in range(5)}
    found.close()


def bounded(monkeypatch: pytest.MonkeyPatch, first: int, end: int | None = None) -> None:
    """Of the topic `in` there are these offsets alone, as if a broker had deleted the others."""
    bounds = EmbeddedAdmin.bounds

    def cut(admin: EmbeddedAdmin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        found = bounds(admin, partitions)
        return {tp: (first, end or b[1]) if tp.topic == "in" else b for tp, b in found.items()}

    monkeypatch.setattr(EmbeddedAdmin, "bounds", cut)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the worker has said; a slow broker is waited for aloud, too."""
    told = [each for each in caplog.records if each.name.startswith("stateline.worker")]
    return [each.getMessage() for each in told if each.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-a-processor"])
def test_a_table_keeps_the_rows_that_its_topic_has_lost_and_says_which_records_it_never_read(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, beside: bool
) -> None:
    app = App("restores")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    app.table(source, store="newest")
    if beside:
        app.process(source, name="see")(lambda record: None)
    create(log, {"in": 1})
    produce(log, "in", [(b"k%d" % n, b"%d" % n, n) for n in range(10)])
    run_to(app, log, tmp_path, 9, "newest")
    before = identities(tmp_path)
    produce(log, "in", [(b"k%d" % n, b"%d" % n, n) for n in range(10, 15)])
    bounded(monkeypatch, first=12)
    rows = run_to(app, log, tmp_path, 14, "newest")
    assert rows == {b"k%d" % n: b"%d" % n for n in (*range(10), 12, 13, 14)}
    assert identities(tmp_path) == before
    (lost,) = [each for each in warned(caplog) if "Table 'newest'" in each]
    assert "in-0 offsets 10 to 11 (2)" in lost
    assert "Write the keys of those records again" in lost
    caplog.clear()
    produce(log, "in", [(b"k0", b"15", 15)])
    assert run_to(app, log, tmp_path, 15, "newest") == {**rows, b"k0": b"15"}
    assert warned(caplog) == []


def test_a_table_that_is_rebuilt_of_a_topic_without_its_beginning_says_that_rows_are_lost(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("restores")
    app.table(app.topic("in", key=serdes.string, value=serdes.json), store="newest")
    create(log, {"in": 1})
    produce(log, "in", records(10))
    run_to(app, log, tmp_path, 9, "newest")
    produce(log, "in", records(1))
    bounded(monkeypatch, first=3, end=8)  # a broker lost its end as well
    run_to(app, log, tmp_path, 10, "newest")
    (lost,) = [each for each in warned(caplog) if "first records were deleted" in each]
    assert "in-0 begins at offset 3" in lost


def test_a_start_that_has_the_marker_of_the_last_commit_to_read_says_nothing_of_it(
    kafka_broker: SharedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = App(f"marked-{uuid4()}")
    numbers = app.topic(f"{app.application_id}-in", key=serdes.string, value=serdes.json)
    latest = app.store(stores.key_value("latest", key=serdes.string, value=serdes.json))

    @app.process(numbers, stores=[latest])
    def keep(record: InputRecord, latest: StoreView) -> None:
        latest.put(record.key, record.value)

    servers = kafka_broker.bootstrap_servers
    config = configured(app, tmp_path / "state", bootstrap__servers=servers, processing__guarantee="exactly_once_v2")
    with closing(open_log(config.bootstrap_servers, tmp_path)) as log:
        create(log, {numbers.name: 1})
        produce(log, numbers.name, records(5))
        for count in (5, 6):
            with closing(Stores(app, config, tmp_path / "scratch")) as found, running(app, config, log):
                eventually(lambda: found.offset("latest", numbers.name, 0) >= count - 1, "it is read")  # noqa: B023
            produce(log, numbers.name, records(1))
    assert "Restor" not in caplog.text
