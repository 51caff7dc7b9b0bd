"""Records that a restore of a table needs are deleted while it runs: it goes on behind them, and says so. With their
topic: it begins anew with the one that was made since."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import Place, Watched, counting
from stateline import serdes, stores
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log, Record
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.restore import changelog_follower, store_restore
from stateline.worker.restore.store_restore import StoreRestore
from stateline_store import TopicPartition
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

Rows = list[tuple[bytes, bytes | None]]

BATCH = 20
# The next batch is asked for when this one is read, and no more than one at a time.
ONE_BY_ONE = {"consumer__queued__min__messages": 1, "consumer__max__partition__fetch__bytes": 500}


def application(name: str) -> App:
    """A table, and a store beside it, so that the group says where to go on."""
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.bytes)
    app.table(source, store="newest")
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

    @app.process(source, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def batches(log: Log, topic: str, values: list[Rows]) -> None:
    """One batch of records after the other, which the broker keeps and hands out as such."""
    for rows in values:
        produce(log, topic, [(key, value, 1_000) for key, value in rows])


@pytest.mark.parametrize("is_begun", [True, False], ids=["some-committed", "nothing-committed"])
def test_a_table_keeps_what_it_has_committed_and_goes_on_behind_what_was_deleted(
    kafka_broker: SharedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_begun: bool,
) -> None:
    name = f"deleted-{uuid4().hex[:8]}"
    app, topic = application(name), f"{name}-in"
    config = configured(app, tmp_path / "state", bootstrap__servers=kafka_broker.bootstrap_servers, **ONE_BY_ONE)
    keys, chance = [b"k%02d" % n for n in range(BATCH)], random.Random(1)
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        create(log, {topic: 1})
        # Of bytes that cannot be made smaller: a batch is larger than what is asked for.
        old: Rows = [(key, chance.randbytes(1_000)) for key in keys]
        gone: Rows = [(key, None if n < 10 else chance.randbytes(1_000)) for n, key in enumerate(keys)]
        new: Rows = [(key, chance.randbytes(1_000)) for key in keys[10:]]
        batches(log, topic, [old, gone, new])
        with closing(Stores(app, config, tmp_path / "before")) as found, running(app, config, log):
            eventually(lambda: found.offset("newest", topic, 0) == 49, "everything is committed")
        task = tmp_path / "state" / name / "0_0" / "rocksdb"
        counts = (task / "counts" / "IDENTITY").read_text()
        shutil.rmtree(task / "newest-v2")
        apply, handed = StoreRestore.apply, list[int]()

        def deleting(each: StoreRestore, records: list[Record]) -> None:
            apply(each, records)
            if records and not handed and each.of.table_of is not None:
                admin.delete_records({TopicPartition(topic, 0): 2 * BATCH})
            handed.extend(record.offset for record in records)

        monkeypatch.setattr(StoreRestore, "apply", deleting)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", BATCH // 2)
        if is_begun:
            monkeypatch.setattr(store_restore, "_BATCH_BYTES", 0)
        with closing(Stores(app, config, tmp_path / "after")) as found, running(app, config, log):
            eventually(lambda: found.offset("newest", topic, 0) == 49, "the table is restored")
            assert found.rows("newest", 1) == dict([*old[:10], *new] if is_begun else new)
            assert found.rows("counts", 1) == {
                key: (3 if n >= 10 else 2).to_bytes(8, "big") for n, key in enumerate(keys)
            }
    assert handed == [*range(BATCH), *range(2 * BATCH, 50)]
    assert (f"{topic}-0 offsets 20 to 39 (20)" in caplog.text) is is_begun
    assert (task / "counts" / "IDENTITY").read_text() == counts


def test_a_topic_that_is_deleted_and_made_anew_while_its_table_is_restored_is_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Place(tmp_path)) as place:
        app, rows = counting(table=True), [(f"old{n}".encode(), b"1", n) for n in range(10)]
        config = place.config(app)
        produce(place.log, "in", rows)
        place.work_off(app, config, 9)
        shutil.rmtree(tmp_path / "m" / "app")
        apply, left = StoreRestore.apply, ["in"]

        def deleting(each: StoreRestore, records: list[Record]) -> None:
            apply(each, records)
            if records and left and each.of.table_of is not None:
                place.admin.delete_topics([left.pop()])
                create(place.log, {"in": 1})
                produce(place.log, "in", [(b"new", b"2", 1)])

        monkeypatch.setattr(StoreRestore, "apply", deleting)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 5)
        found = place.stores(app, config)
        Watched(app, config, place.log, instance="after").reach(lambda: found.offset("newest", "in", 0) == 0)
        assert found.rows("newest", 1) == {b"new": b"2"}
