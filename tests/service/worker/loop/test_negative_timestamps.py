"""Records with negative timestamps in the log: on both logs, in tables that are rebuilt, in the changes of a table."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import Place
from stateline import serdes
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log
from stateline.server.changes.feed import changes_of
from stateline_store import RecordError
from support.processes.running_worker import Stores, configured, create, eventually, read_all, running

TIMES = {b"a": 1000, b"b": -1, b"c": -62_135_596_800_000, b"d": 2000}
HOUR = timedelta(hours=1)


def table(name: str = "in", versioned: timedelta | None = None) -> App:
    app = App("app")
    app.table(app.topic(name, key=serdes.string, value=serdes.string), store="kept", versioned=versioned)
    return app


def send(log: Log, topic: str = "in") -> None:
    with closing(log.producer()) as producer:
        for key, at in TIMES.items():
            producer.produce(topic, key, b"v", timestamp_ms=at, partition=0, is_copy=True)
        producer.flush()


@pytest.mark.parametrize("versioned", [None, HOUR], ids=["newest", "versioned"])
def test_they_are_set_aside_with_a_time_that_the_log_takes(
    log: Log, bootstrap: str, tmp_path: Path, versioned: timedelta | None
) -> None:
    name = f"in-{uuid4().hex[:8]}"
    create(log, {name: 1, f"{name}-dead": 1})
    send(log, name)
    policy = {"deserialization__exception__handler": "dead-letter"}
    dead = {"errors__dead__letter__queue__topic__name": f"{name}-dead"}
    app = table(name, versioned)
    config = configured(app, tmp_path, bootstrap__servers=bootstrap, **policy, **dead)
    found = Stores(app, config, tmp_path / "scratch")
    with closing(found), running(app, config, log):
        eventually(lambda: found.offset("kept", name, 0) >= 3, "all is committed")
    letters = read_all(log, f"{name}-dead", 1)
    headers = [dict(letter.headers)["__streams.errors.timestamp"] for letter in letters]
    assert [(letter.key, letter.value) for letter in letters] == [(b"b", b"v"), (b"c", b"v")]
    assert headers == [b"-1", b"-62135596800000"]
    assert all(abs(letter.timestamp_ms - time.time_ns() // 1_000_000) < 3_600_000 for letter in letters)


def test_a_table_that_is_rebuilt_leaves_them_out_again_or_fails_as_its_policy_says(place: Place) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    app.table(source, store="kept")
    app.process(source, name="beside")(lambda record: None)  # so that the group says where to go on
    send(place.log)
    config = place.config(app, deserialization__exception__handler="skip")
    assert place.work_off(app, config, 3, "kept").rows("kept", 1).keys() == {b"a", b"d"}
    place.lose_disk(config)
    found = place.stores(app, config)
    place.worker(app, config).reach(lambda: len(found.rows("kept", 1)) >= 2)
    assert found.rows("kept", 1).keys() == {b"a", b"d"}
    place.lose_disk(config)
    with pytest.raises(RecordError, match=r"in-0 offset 1 key b'b'.*timestamp in the log is -1"):
        place.worker(app, place.config(app)).reach(lambda: False)


def test_the_changes_of_a_table_are_without_them_as_the_table_is(place: Place) -> None:
    send(place.log)
    records = read_all(place.log, "in", 1)
    definition = table().topology().stores["kept"]
    skip = place.config(table(), deserialization__exception__handler="skip")
    assert [record.key for record in changes_of(definition, records, skip)] == [b"a", b"d"]
    fail: Config = place.config(table())
    with pytest.raises(RecordError, match="in-0 offset 1"):
        changes_of(definition, records, fail)
