"""Partitions are added to a topic: no worker runs stores made of it, and servers answer their last committed state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stateline import serdes, stores
from stateline.cli.main import explained
from stateline.deployment.partition_counts import PartitionsChangedError
from stateline.deployment.stores.topology_file import read_counted
from stateline.dsl.app import App
from stateline.log import Log, open_log
from stateline.log.kafka import KafkaLog
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord, Output
from stateline.worker.loop.worker import Worker
from stateline_store import RetryLaterError, StatelineError
from support.kafka.shared_broker import SharedBroker
from support.processes.query_server import wait_until
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.processes.served_here import served_here

TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
KEYS = [b"%d" % n for n in range(40)]


@pytest.fixture
def log(kafka_broker: SharedBroker) -> Iterator[KafkaLog]:
    # So that a group hears soon of partitions that were added.
    soon = {"topic.metadata.refresh.interval.ms": "300"}
    with closing(KafkaLog(kafka_broker.bootstrap_servers, consumer=soon)) as made:
        yield made


def add_partitions(log: KafkaLog, topic: str, total: int) -> None:
    client = AdminClient({"bootstrap.servers": log.bootstrap_servers})
    client.create_partitions([NewPartitions(topic, total)])[topic].result()

    def there() -> bool:
        with closing(log.admin()) as admin:
            return admin.topics()[topic].partitions == total

    eventually(there, "the partitions are there")


def counting(topic: str, name: str, *, table: bool = True, counts: bool = True) -> App:
    app = App(name)
    source = app.topic(topic, **TEXT)
    if table:
        app.table(source, store="newest")
    if counts:
        kept = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

        @app.process(source, stores=[kept])
        def count(record: InputRecord, counts: StoreView) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def assert_answers_the_last_state(client: httpx.Client, moved: str, why: str) -> None:
    assert why in client.get("/readyz").json()["stopped"]
    found = {
        path: client.get(f"/v1/stores/{path}").json()
        for path in (f"newest/keys/{moved}", f"counts/keys/{moved}", "counts/range", "newest/count")
    }
    assert [answer.get("value") for answer in found.values()] == ["1", 1, None, None]
    assert len(found["counts/range"]["entries"]) == len(KEYS)
    for answer in found.values():
        assert why in answer["stopped"]
        assert {each["served_by"] for each in answer["partitions"].values()} == {"standby"}
    stream = client.get("/v1/stores/counts/range", headers={"Accept": "application/x-ndjson"})
    assert (len(stream.text.splitlines()), why in stream.headers["Stateline-Stopped"]) == (len(KEYS), True)
    described = client.get("/v1/stores").json()["stores"]
    assert {why in store["stopped"] and "not_ready" not in store for store in described} == {True}


@contextmanager
def ended(*, why: str) -> Iterator[None]:
    """Around a worker that ends with exit code 3, and says this."""
    with pytest.raises(PartitionsChangedError, match=why) as caught:
        yield
    said, code = explained(caught.value)
    assert code == 3
    assert "run `stateline reset MODULE:APP` or set a new application.id" in said
    assert "Old records stay in their old partitions" in said
    assert said.count(". ") == 2, "three sentences"


def test_where_keys_are_kept_the_worker_ends_and_servers_answer_the_last_committed_state(
    log: KafkaLog, tmp_path: Path
) -> None:
    topic = f"in-{uuid4().hex[:8]}"
    app, why = counting(topic, f"app-{topic}"), f"Topic {topic} has 4 partitions, and had 2 when newest, counts began"
    config = configured(app, tmp_path / "state")
    create(log, {topic: 2})
    with served_here(config.state_dir, app=app, until_ready=False) as here:
        client = here.client
        with ended(why=why), running(app, config, log):
            produce(log, topic, [(key, b"1", 1) for key in KEYS])
            wait_until(lambda: client.get("/v1/stores/counts/range").json().get("entries", [])[39:] != [])
            wait_until(lambda: client.get(f"/v1/stores/newest/keys/{KEYS[-1].decode()}").status_code == 200)
            assert "stopped" not in client.get("/v1/stores/counts/range").json()
            add_partitions(log, topic, 4)
            moved = next(key for key in KEYS if murmur2(key, 4) >= 2)
            written = produce(log, topic, [(moved, b"2", 2)])
            wait_until(lambda: "stopped" in client.get("/readyz").json())
        for _ in range(2):
            assert_answers_the_last_state(client, moved.decode(), why)
            bound = json.dumps({topic: {str(place.partition): offset for place, offset in written.items()}})
            for demand in (f"position_bound={bound}", "require_active=true", "isolation_level=read_uncommitted"):
                answer = client.get(f"/v1/stores/newest/keys/1?{demand}&wait_ms=30000")
                assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY"), demand
                assert why in answer.json()["detail"]
            with ended(why=why):  # and it does not start again
                Worker(app, config, log, instance="worker-0").run()
    another = counting(topic, f"new-{topic}", table=False)
    settings = configured(another, tmp_path / "state")
    with running(another, settings, log), closing(Stores(another, settings, tmp_path / "scratch")) as found:
        eventually(lambda: found.rows("counts", 4).keys() == {*KEYS}, "a new application counts anew")


@pytest.mark.parametrize("kept", ["newest", "counts"])
def test_partitions_that_were_added_while_nothing_ran_are_noticed_at_the_start(
    log: KafkaLog, tmp_path: Path, kept: str
) -> None:
    topic = f"in-{uuid4().hex[:8]}"
    app = counting(topic, f"app-{topic}", table=kept == "newest", counts=kept == "counts")
    create(log, {topic: 2})
    config = configured(app, tmp_path / "state")
    with running(app, config, log), closing(Stores(app, config, tmp_path / "scratch")) as found:
        produce(log, topic, [(key, b"1", 1) for key in KEYS])
        eventually(lambda: found.rows(kept, 2).keys() == {*KEYS}, "all is read")
    add_partitions(log, topic, 3)
    with ended(why=f"Topic {topic} has 3 partitions, and had 2 when {kept} began"):
        Worker(app, config, log, instance="worker-0").run()
    if kept == "counts":  # the disk is lost; the changelog knows
        elsewhere = configured(app, tmp_path / "elsewhere")
        why = f"Changelog app-{topic}-counts-changelog has 2 partitions, and {topic}, which its store follows, 3"
        with ended(why=why):
            Worker(app, elsewhere, log, instance="worker-0").run()
        with served_here(elsewhere.state_dir, app=app, until_ready=False) as here:
            assert why in here.client.get("/readyz").json()["reasons"][0]
            answer = here.client.get(f"/v1/stores/{kept}/keys/1").json()
            assert (answer["reason"], why in answer["detail"]) == ("NOT_READY", True)


def test_what_keeps_nothing_goes_on_with_the_new_partitions(log: KafkaLog, tmp_path: Path) -> None:
    topic, out = f"in-{uuid4().hex[:8]}", f"out-{uuid4().hex[:8]}"
    app = App(f"app-{topic}")
    source, moved = app.topic(topic, **TEXT), app.repartition("moved", **TEXT)
    written = app.topic(out, **TEXT)
    kept = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

    @app.process(source, forwards=[written, moved])
    def forward(record: InputRecord, written: Output, moved: Output) -> None:
        written.forward(record.key, record.value)
        moved.forward(record.key, record.value)

    @app.process(moved, stores=[kept])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    create(log, {topic: 2, out: 1})
    config = configured(app, tmp_path / "state")
    with closing(Stores(app, config, tmp_path / "scratch")) as found:
        with running(app, config, log):
            produce(log, topic, [(key, b"1", 1) for key in KEYS])
            eventually(lambda: found.rows("counts", 2).keys() == {*KEYS}, "all is counted")
            add_partitions(log, topic, 5)
            produce(log, topic, [(key, b"2", 2) for key in KEYS])
            eventually(lambda: len(read_all(log, out, 1)) == 2 * len(KEYS), "the new partitions are read")
        with running(app, config, log):
            produce(log, topic, [(key, b"3", 3) for key in KEYS])
            three = serdes.int64.serialize(3)
            eventually(lambda: {*found.rows("counts", 2).values()} == {three}, "each key is counted in one place")


def test_a_start_that_is_refused_before_repartition_topics_were_ever_made_says_why(tmp_path: Path) -> None:
    app = counting("in", "app", table=False)
    moved = app.repartition("moved", **TEXT)
    app.process("in", forwards=[moved], name="forward")(lambda record, moved: None)
    app.table(moved, store="kept")
    config = configured(app, tmp_path / "state")
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, {"in": 4, "app-counts-changelog": 2})
        why = "Changelog app-counts-changelog has 2 partitions, and in, which its store follows, 4"
        with ended(why=why):
            Worker(app, config, log, instance="worker-0").run()
    said = json.loads((tmp_path / "state" / "app" / "topology.json").read_text())
    assert why in said["stopped"]
    assert not any("refused" in store for store in said["stores"].values())
    assert [each["partitions"] for each in said["subtopologies"]] == [4, 4]


@pytest.mark.parametrize(
    ("member", "value", "why"),
    [
        ("subtopologies", "damaged", "Topic in has 2 partitions, and had 1 when newest began"),
        ("topics", {"in": {"partitions": "one"}}, "topology.json does not say how many partitions topics had"),
    ],
)
def test_what_is_damaged_in_the_file_does_not_let_a_topic_grow(
    tmp_path: Path, member: str, value: object, why: str
) -> None:
    app = counting("in", "app", counts=False)
    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        create(log, {"in": 2})
        counted = {"in": {"partitions": 1, "topic_id": admin.topics()["in"].topic_id}}
        file = tmp_path / "state" / "app" / "topology.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"topics": counted, member: value}))
        for _ in range(2):  # the first one says so to servers, and may write the file anew
            with pytest.raises(StatelineError, match=why), running(app, configured(app, tmp_path / "state"), log):
                pass


def test_where_the_file_cannot_be_read_no_worker_starts(tmp_path: Path) -> None:
    (tmp_path / "topology.json").symlink_to("topology.json")
    with pytest.raises(RetryLaterError, match=r"topology.json cannot be read \(.*no worker starts .*state.dir"):
        read_counted(tmp_path)


def test_a_file_that_a_power_cut_left_empty_is_written_anew_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "topology.json").touch()
    assert read_counted(tmp_path) == {}
    assert "Were partitions added to a table's topic" in caplog.text


def test_a_topic_that_was_made_anew_with_other_partitions_is_another_one_to_its_tables(tmp_path: Path) -> None:
    def made_anew(log: Log, partitions: int) -> dict[bytes, bytes]:
        with closing(log.admin()) as admin:
            admin.delete_topics(["in"])
        create(log, {"in": partitions})
        produce(log, "in", [(key, b"%d" % partitions, 1) for key in KEYS])
        return dict.fromkeys(KEYS, b"%d" % partitions)

    def read(app: App, log: Log, store: str, partitions: int, rows: dict[bytes, bytes]) -> None:
        config = configured(app, tmp_path / "state")
        with running(app, config, log), closing(Stores(app, config, tmp_path / f"{store}-{partitions}")) as found:
            eventually(lambda: found.rows(store, partitions) == rows, "the store has what the topic says")

    with closing(open_log("embedded", tmp_path)) as log:
        tables, counts = counting("in", "tables", counts=False), counting("in", "app", table=False)
        for partitions in (2, 3):
            read(tables, log, "newest", partitions, made_anew(log, partitions))
        read(counts, log, "counts", 3, dict.fromkeys(KEYS, serdes.int64.serialize(1)))
        made_anew(log, 4)
        why = "Changelog app-counts-changelog has 3 partitions, and in, which its store follows, 4"
        with ended(why=why):
            Worker(counts, configured(counts, tmp_path / "state"), log, instance="worker-0").run()
    with served_here(tmp_path / "state", app=counts) as here:  # ready, since all is there to be read
        answer = here.client.get("/v1/stores/counts/range").json()
        assert (len(answer["entries"]), why in answer["stopped"]) == (len(KEYS), True)
