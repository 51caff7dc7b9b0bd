"""A source topic that is deleted and created anew, on Kafka, while its worker runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.kafka import KafkaLog
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only


class Anew:
    """Counts the records of each key, and keeps the newest value of each; ten records of key `old` to begin with."""

    def __init__(self, log: KafkaLog, root: Path, guarantee: str) -> None:
        self.log = log
        self.topic = f"in-{uuid4().hex[:8]}"
        self.app = self._app(f"app-{self.topic}")
        self.config: Config = configured(self.app, root / "state", processing__guarantee=guarantee)
        create(log, {self.topic: 1})
        self.found = Stores(self.app, self.config, root / "scratch")
        produce(log, self.topic, [(b"old", b"%d" % n, n + 1) for n in range(10)])

    def _app(self, name: str) -> App:
        app = App(name)
        source = app.topic(self.topic, key=serdes.string, value=serdes.string)
        app.table(source, store="newest")
        counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

        @app.process(source, stores=[counts])
        def count(record: InputRecord, counts: StoreView) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)

        return app

    def made_anew(self, count: int) -> None:
        """The topic with other records, one key each."""
        with closing(self.log.admin()) as admin:
            admin.delete_topics([self.topic])
        create(self.log, {self.topic: 1})
        produce(self.log, self.topic, [(b"new%d" % n, b"new", n + 1) for n in range(count)])

    def at(self, offset: int) -> Callable[[], bool]:
        return lambda: {self.found.offset(store, self.topic, 0) for store in ("newest", "counts")} == {offset}


@pytest.fixture(
    params=["exactly_once_v2", pytest.param("at_least_once", marks=long_only("exactly once keeps offsets as well"))]
)
def anew(request: pytest.FixtureRequest, kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Anew]:
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        made = Anew(log, tmp_path, str(request.param))
        yield made
        made.found.close()


def new(count: int, value: bytes) -> dict[bytes, bytes]:
    return {b"new%d" % n: value for n in range(count)}


def test_a_shorter_topic_is_read_from_its_start_by_the_running_worker_and_its_table_holds_nothing_else(
    anew: Anew, caplog: pytest.LogCaptureFixture
) -> None:
    with running(anew.app, anew.config, anew.log):
        eventually(anew.at(9), "the old records are in")
        anew.made_anew(5)
        eventually(lambda: anew.found.rows("newest", 1) == new(5, b"new"), "the table is of the new topic")
        eventually(anew.at(4), "both say where they are in the new topic")
        assert anew.found.rows("counts", 1) == {b"old": b"10"} | new(5, b"1")
        produce(anew.log, anew.topic, [(b"new0", b"newer", 9)])
        eventually(anew.at(5), "it goes on")
    assert caplog.text.count("Starting over") == 1


def test_a_longer_topic_is_noticed_by_its_id_and_what_was_passed_over_is_read(
    anew: Anew, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.tasks.topic_watch._LOOK_INTERVAL_S", 0.0)
    with running(anew.app, anew.config, anew.log):
        eventually(anew.at(9), "the old records are in")
        produce(anew.log, anew.topic, [(b"old", b"10", 10)])  # a commit more: its look saw the first ten
        eventually(anew.at(10), "one more")
        anew.made_anew(15)
        eventually(lambda: anew.found.rows("newest", 1) == new(15, b"new"), "the table is of the new topic")
        eventually(anew.at(14), "both say where they are in the new topic")
        counts = anew.found.rows("counts", 1)
        assert counts.keys() == {b"old"} | new(15, b"").keys()
        assert {counts[b"new%d" % n] for n in range(10)} == {b"1"}
    assert caplog.text.count("Starting over") <= 2
