"""The topic of a global table that is deleted and created anew while its worker runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import Place, Watched, rename
from stateline import serdes
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded import EmbeddedAdmin
from stateline.log.interface import TopicInfo
from stateline.log.kafka import KafkaLog
from stateline.log.kafka_admin import KafkaAdmin
from stateline.worker.loop.worker import Worker
from stateline_store import DoesNotExistError, TimestampedKeyValueStore
from support.apps import global_app
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce
from support.run.length import long_only


class Whole:
    """A global table of one topic, whose worker joins rows with it; ten codes `old0`… to begin with."""

    def __init__(self, log: Log, root: Path, *, persistent: bool = True) -> None:
        self.log, name = log, f"app-{uuid4().hex[:8]}"
        self.topic = f"{name}-codes"
        self.app = App(name)
        codes = self.app.global_table(self.topic, key=serdes.string, value=serdes.string, persistent=persistent)
        rows = self.app.stream(f"{name}-rows", key=serdes.string, value=serdes.string)
        rows.left_join(codes, global_app.pair, on=global_app.code).to(f"{name}-out")
        self.config: Config = configured(self.app, root / "state")
        create(log, {self.topic: 1, f"{name}-rows": 1, f"{name}-out": 1})
        self.send("old", 10)

    def send(self, key: str, count: int, first: int = 0) -> None:
        produce(self.log, self.topic, [(f"{key}{n}".encode(), b"v", n) for n in range(first, first + count)])

    def delete(self) -> None:
        with closing(self.log.admin()) as admin:
            admin.delete_topics([self.topic])

    def made_anew(self, count: int) -> None:
        """The topic with other codes, `new0`…"""
        self.delete()
        create(self.log, {self.topic: 1})
        self.send("new", count)

    def worker(self) -> Watched:
        return Watched(self.app, self.config, self.log, instance="watched")

    def after(self, steps: list[tuple[dict[str, int], Callable[[], object]]]) -> None:
        """Run a worker; when its table has exactly so many keys of each prefix, do what comes next. Ends after all."""
        worker, left = self.worker(), list(steps)

        def step() -> bool:
            wanted, do = left[0]
            if keys(worker) == {f"{key}{n}".encode() for key, count in wanted.items() for n in range(count)}:
                do()
                del left[0]
            return not left

        worker.reach(step)


def keys(worker: Worker) -> set[bytes]:
    (store,) = worker.global_stores.values()
    assert isinstance(store, TimestampedKeyValueStore)
    with store.all_with_timestamp() as rows:
        return {key for key, _ in rows}


def nothing() -> None:
    pass


@pytest.fixture
def kafka(kafka_broker: SharedBroker) -> Iterator[KafkaLog]:
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        yield log


@pytest.mark.parametrize(
    "persistent",
    [True, pytest.param(False, marks=long_only("tables in memory are read anew on the embedded log"))],
    ids=["on disk", "in memory"],
)
def test_a_shorter_topic_is_read_from_its_start_by_the_running_worker_and_the_table_holds_nothing_else(
    kafka: KafkaLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, persistent: bool
) -> None:
    whole = Whole(kafka, tmp_path, persistent=persistent)
    whole.after(
        [
            ({"old": 10}, lambda: whole.made_anew(5)),
            ({"new": 5}, lambda: whole.send("new", 1, 5)),
            ({"new": 6}, nothing),
        ]
    )
    assert caplog.text.count("Starting over") == 1


def test_a_longer_topic_is_noticed_by_its_id_and_what_was_passed_over_is_read(
    kafka: KafkaLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.global_tables._IDS_LOOK_S", 0.0)
    whole = Whole(kafka, tmp_path)
    whole.after([({"old": 10}, lambda: whole.made_anew(15)), ({"new": 15}, nothing)])
    assert 1 <= caplog.text.count("Starting over") <= 2


def test_a_topic_with_another_id_is_read_anew_on_the_embedded_log_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.global_tables._IDS_LOOK_S", 0.0)
    with closing(Place(tmp_path)) as place:
        whole = Whole(place.log, tmp_path)
        worker, renamed = whole.worker(), list[str]()

        def noticed() -> bool:
            if len(keys(worker)) == 10 and not renamed:
                rename(place, whole.topic)
                whole.send("more", 1)
                renamed.append(whole.topic)
            return "is emptied and read again" in caplog.text and len(keys(worker)) == 11

        worker.reach(noticed)


@pytest.mark.parametrize("persistent", [True, False], ids=["on disk", "in memory"])
def test_a_topic_that_is_deleted_and_made_anew_on_the_embedded_log_is_read_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, persistent: bool
) -> None:
    with closing(Place(tmp_path)) as place:
        whole = Whole(place.log, tmp_path, persistent=persistent)
        whole.after([({"old": 10}, lambda: whole.made_anew(5)), ({"new": 5}, nothing)])
    assert caplog.text.count("Starting over") == 1


def test_a_topic_that_is_gone_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Place(tmp_path)) as place:
        whole, topics, missed = Whole(place.log, tmp_path), EmbeddedAdmin.topics, list[str]()

        def made_once_missed(admin: EmbeddedAdmin, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
            there = topics(admin, named)
            if named is None and whole.topic not in there and not missed:
                missed.append(whole.topic)
                create(place.log, {whole.topic: 1})
                whole.send("new", 5)
            return there

        monkeypatch.setattr(EmbeddedAdmin, "topics", made_once_missed)
        whole.after([({"old": 10}, whole.delete), ({"new": 5}, nothing)])
        assert missed


def test_a_topic_that_stays_away_ends_the_worker_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.global_tables._BACK_S", 0.0)
    with closing(Place(tmp_path)) as place:
        whole = Whole(place.log, tmp_path)
        with pytest.raises(DoesNotExistError, match=rf"There is no topic {whole.topic}, .* create it\."):
            whole.after([({"old": 10}, whole.delete), ({"new": 5}, nothing)])


@long_only("a topic that is gone for a moment is waited for on the embedded log")
def test_a_topic_that_is_gone_when_its_id_is_looked_at_is_waited_for(
    kafka: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.global_tables._IDS_LOOK_S", 0.0)
    whole, topics, left = Whole(kafka, tmp_path), KafkaAdmin.topics, list[Callable[[], object]]()

    def anew() -> None:
        create(kafka, {whole.topic: 1})
        whole.send("new", 5)

    def in_between(admin: KafkaAdmin, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """It is deleted before the first look, and made anew after the second one has missed it."""
        if len(left) == 2:
            whole.delete()
            eventually(lambda: whole.topic not in topics(admin), "it is gone")
        there = topics(admin, named)
        if left:
            left.pop()()
        return there

    def read_one_more() -> None:
        whole.send("old", 1, 10)
        left.extend([anew, nothing])

    monkeypatch.setattr(KafkaAdmin, "topics", in_between)
    whole.after([({"old": 10}, read_one_more), ({"new": 5}, nothing)])
