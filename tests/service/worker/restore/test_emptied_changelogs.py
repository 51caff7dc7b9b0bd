"""Logs that have deleted what their stores have read already: the stores keep their rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import GUARANTEES, Watched, fail_commit_of_stores
from stateline import SessionWindows, TumblingWindows, serdes, stores
from stateline.cli.check.run import check
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline_store import IsolationLevel, TopicPartition, TransactionalStore
from stateline_store.rows.windowed_keys import session_key, window_key
from support.kafka.shared_broker import SharedBroker
from support.kafka.topic_configs import delete_records
from support.processes.running_worker import configured, create, produce
from support.run.length import long_only

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MINUTE_MS = 60_000
BASE_MS = time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS - 30 * MINUTE_MS  # a broker deletes old windows itself
LOGGED = ("windows", "sessions", "counts")
ON_KAFKA = long_only("stores without a table of windows are emptied on Kafka")
Rows = dict[str, list[tuple[bytes, bytes]]]


@dataclass
class Scene:
    """One application, its log and its directory. A topic `in` of one partition feeds its stores."""

    servers: str
    app: App
    root: Path
    guarantee: str
    at_ms: int
    log: Log = field(init=False)

    @property
    def topic(self) -> str:
        return f"{self.app.application_id}-in"

    def changelog(self, store: str) -> TopicPartition:
        return TopicPartition(f"{self.app.application_id}-{store}-changelog", 0)

    def send(self, count: int) -> None:
        """So many records of two keys, a minute apart."""
        records = [(b"k%d" % (n % 2), b"v", self.at_ms + n * MINUTE_MS) for n in range(count)]
        self.at_ms += count * MINUTE_MS
        produce(self.log, self.topic, records)

    @property
    def config(self) -> Config:
        of_log = {"bootstrap__servers": self.servers} if self.servers else {}
        return configured(self.app, self.root / "state", processing__guarantee=self.guarantee, **of_log)

    def work_off(self, next_offset: int) -> Rows:
        """Run a worker until it has committed this far; the rows of its stores then."""
        worker, found = Watched(self.app, self.config, self.log, instance="one"), Rows()

        def is_committed() -> bool:
            for task in worker.tasks.running:
                if task.processing.committed_next_offsets[TopicPartition(self.topic, 0)] >= next_offset:
                    found.update({name: rows_of(store) for name, store in task.stores.transactional})
            return bool(found)

        worker.reach(is_committed)
        return found

    def empty(self, *places: TopicPartition) -> None:
        """Delete every record, as retention does."""
        with closing(self.log.admin()) as admin:
            ends = {place: admin.log_end(place) for place in places}
            if self.servers:
                delete_records(self.servers, admin, ends)
            else:
                admin.delete_records(ends)
            assert admin.bounds(places) == {place: (end, end) for place, end in ends.items()}


def rows_of(store: TransactionalStore) -> list[tuple[bytes, bytes]]:
    return list(store.reader(IsolationLevel.READ_COMMITTED).range(None, None))


def counting(name: str) -> App:
    app = App(name)
    grouped = app.stream(f"{name}-in", key=serdes.string, value=serdes.string).group_by_key()
    grouped.windowed_by(TumblingWindows(MINUTE)).count("windows", retention=HOUR)
    grouped.windowed_by(SessionWindows(MINUTE / 2)).count("sessions", retention=HOUR)
    grouped.count("counts")
    return app


@pytest.fixture(params=GUARANTEES)
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["embedded", "kafka"])
def scene(request: pytest.FixtureRequest, guarantee: str, tmp_path: Path) -> Iterator[Scene]:
    app, servers = counting(f"emptied-{uuid4().hex[:8]}"), ""
    if request.param == "kafka":
        broker: SharedBroker = request.getfixturevalue("kafka_broker")
        servers = broker.bootstrap_servers
    made = Scene(servers, app, tmp_path, guarantee, BASE_MS)
    with closing(configured_log(made.config)) as made.log:
        create(made.log, {made.topic: 1})
        yield made


def said(caplog: pytest.LogCaptureFixture, level: str = "WARNING") -> list[str]:
    """What the worker's own modules have said; a broker is waited for aloud, too."""
    own = [each for each in caplog.records if each.name.startswith("stateline.worker")]
    return [each.getMessage() for each in own if each.levelname == level]


@pytest.mark.parametrize(
    ("scene", "guarantee"),
    [
        *(("embedded", guarantee) for guarantee in GUARANTEES),
        pytest.param("kafka", "at_least_once", marks=long_only("on Kafka, transactions end in markers as well")),
        ("kafka", "exactly_once_v2"),
    ],
    indirect=True,
)
def test_stores_that_have_everything_keep_their_rows_when_their_changelogs_are_emptied(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scene.send(6)
    before = scene.work_off(6)
    assert [len(before[name]) for name in LOGGED] == [6, 6, 2]
    scene.empty(*map(scene.changelog, LOGGED))
    assert {str(row["begins"]) for row in check(scene.app, scene.config).stores} == {"nothing to restore"}
    assert scene.work_off(6) == before
    assert scene.work_off(6) == before
    assert "rebuilt" not in caplog.text
    assert said(caplog) == []
    scene.send(2)
    after = scene.work_off(8)
    assert [len(after[name]) for name in LOGGED] == [8, 8, 2]
    assert {*before["windows"]} < {*after["windows"]}


@pytest.mark.parametrize("scene", ["embedded"], indirect=True)
def test_windows_that_lack_a_deleted_commit_keep_their_rows_and_it_is_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.send(4)
    before = scene.work_off(4)
    scene.send(2)
    with monkeypatch.context() as patched:
        fail_commit_of_stores(patched, 1, RuntimeError)
        with pytest.raises(RuntimeError, match="between the log's commit"):
            scene.work_off(6)
    scene.empty(*map(scene.changelog, LOGGED))
    rows = scene.work_off(6)
    assert (rows["windows"], rows["sessions"], rows["counts"]) == (before["windows"], before["sessions"], [])
    assert [name for name in LOGGED if any(f"Store {name} of task 0_0 keeps its rows" in m for m in said(caplog))] == [
        "windows",
        "sessions",
    ]
    assert "Store counts of task 0_0 is at offset" in caplog.text


@pytest.mark.parametrize("scene", ["embedded"], indirect=True)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2"], indirect=True)
def test_a_punctuated_store_from_which_one_offset_is_missing_keeps_its_rows(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.app = App(scene.app.application_id)
    source = scene.app.topic(scene.topic, key=serdes.string, value=serdes.string)
    kept = scene.app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))

    @scene.app.process(source, stores=[kept])
    def keep(record: InputRecord, kept: StoreView) -> None:
        kept.put(record.key, record.value)

    @scene.app.punctuate(every=HOUR, on="wall_clock_time", stores=[kept])
    def look(timestamp_ms: int, kept: StoreView) -> None:
        pass

    scene.send(3)
    before = scene.work_off(3)
    scene.empty(scene.changelog("kept"))
    assert scene.work_off(3) == before
    assert "rebuilt" not in caplog.text


@pytest.mark.parametrize("scene", ["embedded", pytest.param("kafka", marks=ON_KAFKA)], indirect=True)
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
def test_a_table_of_windows_written_in_transactions_keeps_its_rows_when_its_topic_is_emptied(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.app = App(scene.app.application_id)
    scene.app.table(scene.topic, windowed=MINUTE, retention=HOUR, key=serdes.string, value=serdes.string, store="w")
    scene.app.table(
        f"{scene.topic}-s", sessions=True, retention=HOUR, key=serdes.string, value=serdes.string, store="s"
    )
    scene.app.table(f"{scene.topic}-k", key=serdes.bytes, value=serdes.string, store="k")
    places = [TopicPartition(f"{scene.topic}{end}", 0) for end in ("", "-s", "-k")]
    create(scene.log, {place.topic: 1 for place in places[1:]})
    write_windows(scene.log, places, 3)

    def run(count: int) -> Rows:
        worker, found = Watched(scene.app, scene.config, scene.log, instance="one"), Rows()

        def is_committed() -> bool:
            for task in worker.tasks.running:
                for name, store in task.stores.transactional:
                    if len(rows := rows_of(store)) == count:
                        found[name] = rows
            return len(found) == 3

        worker.reach(is_committed)
        return found

    before = run(3)
    scene.empty(*places)
    caplog.clear()
    warned = {finding.message for finding in check(scene.app, scene.config).findings if finding.level == "warning"}
    assert run(3) == before
    assert "rebuilt" not in caplog.text
    assert not said(caplog, "ERROR"), "a marker is no record that was lost"
    kept = [message for message in said(caplog) if "before they were read" in message or "keeps its rows" in message]
    assert len(kept) == 3
    assert {*kept} <= warned
    write_windows(scene.log, places, 5)
    assert {name: len(rows) for name, rows in run(5).items()} == {"w": 5, "s": 5, "k": 5}


def write_windows(log: Log, places: list[TopicPartition], count: int) -> None:
    """The same keys to a topic of windows, of sessions and of neither, in one transaction."""
    windows, sessions, others = (place.topic for place in places)
    with closing(log.producer(f"{windows}-writer")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(count):
            start_ms, key = BASE_MS + n * MINUTE_MS, b"k%d" % n
            producer.produce(windows, window_key(key, start_ms), b"v", timestamp_ms=start_ms, partition=0)
            producer.produce(sessions, session_key(key, start_ms, start_ms), b"v", timestamp_ms=start_ms, partition=0)
            producer.produce(others, key, b"v", timestamp_ms=start_ms, partition=0)
        producer.commit_transaction()


@pytest.mark.parametrize("scene", ["embedded"], indirect=True)
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
def test_input_of_which_only_a_marker_was_deleted_is_not_called_lost(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(scene.log.producer(f"{scene.topic}-writer")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(scene.topic, b"k", b"v", timestamp_ms=1, partition=0)
        producer.commit_transaction()
    before = scene.work_off(1)
    scene.empty(TopicPartition(scene.topic, 0))
    assert scene.work_off(1) == before
    assert "Input is lost" not in caplog.text
    assert [m for m in said(caplog) if "offset 1, which was deleted" in m]
