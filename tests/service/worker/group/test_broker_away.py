"""The broker is away for longer than a worker's session and transaction last: nothing is lost, nothing counts twice.

The worker tries for a while. If it cannot settle its transaction it ends with an error that says why, and its
supervisor starts the next one; without transactions it goes on waiting.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from service.worker.faults import NEVER_MS, Watched
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord, Output
from stateline.worker.group import group_member
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import InDoubtError, LogUnavailableError, TopicPartition
from support.kafka.kafka_broker import KafkaBroker, needed
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import long_only
from support.run.patience import HANGING_S

KEYS = 20
SESSION_MS = 3_000
SETTINGS = {"session__timeout__ms": SESSION_MS, "max__poll__interval__ms": SESSION_MS}


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    # The controller takes a broker that was killed back when its session is over: by default after 9 s.
    soon = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "500"}
    with needed(lambda: KafkaBroker(settings=soon)) as broker:
        yield broker


def set_patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """How long one call waits for a broker: a quarter of a minute otherwise."""
    for module in ("admin", "consumer", "producer"):
        monkeypatch.setattr(f"stateline.log.kafka_{module}.CALL_TIMEOUT_S", seconds)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    set_patience(monkeypatch, 3.0)


def counting(name: str, look: Callable[[InputRecord], None] = lambda _: None) -> App:
    """Counts per key, and hands each count on; `look` sees each record first."""
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.string)
    handed = app.topic(f"{name}-out", key=serdes.string, value=serdes.int64)
    kept = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

    @app.process(source, stores=[kept], forwards=[handed])
    def count(record: InputRecord, counts: StoreView, handed: Output) -> None:
        look(record)
        n = (counts.get(record.key) or 0) + 1
        counts.put(record.key, n)
        handed.forward(record.key, n)

    return app


def records(count: int) -> list[tuple[bytes, bytes, int]]:
    return [(b"k%d" % (n % KEYS), b"v", 1_000 + n) for n in range(count)]


@contextmanager
def supervised(app: App, config: Config) -> Iterator[list[LogUnavailableError]]:
    """A worker that is started again whenever it ends because the log is away; what its predecessors ended with."""
    ended: list[LogUnavailableError] = []
    stopping = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not stopping.is_set():
                with closing(configured_log(config)) as log:
                    worker = Worker(app, config, log, instance="worker-0")
                    workers.append(worker)
                    try:
                        worker.run()
                    except LogUnavailableError as error:
                        ended.append(error)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            failed.append(error)

    workers: list[Worker] = []
    thread = threading.Thread(target=work, name="supervised")
    thread.start()
    try:
        yield ended
    finally:
        stopping.set()
        for worker in workers:
            worker.stop()
        thread.join(HANGING_S)
        assert not thread.is_alive(), "The worker did not stop."
    if failed:
        raise failed[0]


@pytest.mark.usefixtures("impatient")
def test_a_call_of_the_client_that_does_not_come_back_holds_nothing_up(
    own_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    come_back, made = threading.Event(), list[confluent_kafka.Producer]()

    class FirstHangs(confluent_kafka.Producer):
        """As librdkafka does when the group's coordinator has left the cluster."""

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            made.append(self)
            if self is made[0] and len(made) == 3:
                come_back.wait(HANGING_S)
            super().send_offsets_to_transaction(*arguments)

    monkeypatch.setattr(confluent_kafka, "Producer", FirstHangs)
    app = counting("hanging")
    where: dict[str, Any] = {"processing__guarantee": "exactly_once_v2", "group__instance__id": "one", **SETTINGS}
    config = configured(app, tmp_path / "state", bootstrap__servers=own_broker.bootstrap_servers, **where)
    with closing(configured_log(config)) as log, closing(Stores(app, config, tmp_path / "scratch")) as found:
        create(log, {"hanging-in": 1, "hanging-out": 1})
        with running(app, config, log):
            for number in range(1, 6):
                produce(log, "hanging-in", records(KEYS))
                at_end = KEYS * number - 1
                eventually(lambda end=at_end: found.offset("counts", "hanging-in", 0) == end, f"commit {number}")  # type: ignore[misc]
            come_back.set()
            produce(log, "hanging-in", records(KEYS))
            eventually(lambda: found.offset("counts", "hanging-in", 0) == 6 * KEYS - 1, "the last commit")
            assert found.rows("counts", 1) == {b"k%d" % n: (6).to_bytes(8, "big") for n in range(KEYS)}
        handed = Counter(r.key for r in read_all(log, "hanging-out", 1))
        assert handed == {b"k%d" % n: 6 for n in range(KEYS)}
    assert "does not come back" in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("exactly once asks for more"))]
)
def test_every_record_counts_when_the_broker_is_back(
    own_broker: KafkaBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
) -> None:
    name = f"away-{guarantee.replace('_', '-')}"
    killed, written = list[float](), threading.Event()

    def kill_once(record: InputRecord) -> None:
        if record.offset == 300 and not killed:
            # It has to hear that its records are there.
            assert written.wait(HANGING_S), "The producer does not come back."
            killed.append(time.monotonic())
            own_broker.kill()

    app, servers = counting(name, kill_once), own_broker.bootstrap_servers
    where: dict[str, Any] = {"bootstrap__servers": servers, "processing__guarantee": guarantee, **SETTINGS}
    config = configured(app, tmp_path / "state", transaction__timeout__ms=SESSION_MS, **where)
    source, exact = f"{name}-in", guarantee == "exactly_once_v2"
    with closing(configured_log(config)) as log, closing(Stores(app, config, tmp_path / "scratch")) as found:
        create(log, {source: 1, f"{name}-out": 1})
        produce(log, source, records(200))
        if exact:  # a worker that tries once more, and not five times, ends soon
            monkeypatch.setattr("stateline.worker.loop.worker._MAX_RESTARTS", 1)
        with supervised(app, config) as ended:
            eventually(lambda: found.offset("counts", source, 0) == 199, "the first records are committed")
            produce(log, source, records(200))
            written.set()
            # Without a transaction to settle it joins its group again, and waits for that one.
            eventually(lambda: len(ended) >= 2 if exact else "Starting over" in caplog.text, "the worker has noticed")
            eventually(
                lambda: time.monotonic() > killed[0] + 1.5 * SESSION_MS / 1000, "session and transaction are over"
            )
            own_broker.restart()
            monkeypatch.undo()  # what is written now has to arrive, and the broker has just started
            produce(log, source, records(200))
            eventually(lambda: found.offset("counts", source, 0) == 599, "all input is committed")
            counts = {key: int.from_bytes(value, "big") for key, value in found.rows("counts", 1).items()}
        assert counts == {b"k%d" % n: 30 for n in range(KEYS)} if exact else min(counts.values()) >= 30
        newest = {r.key: r.value for r in read_all(log, f"{name}-counts-changelog", 1)}
        assert {key: int.from_bytes(value or b"", "big") for key, value in newest.items()} == counts
        if exact:
            assert Counter(r.key for r in read_all(log, f"{name}-out", 1)) == {b"k%d" % n: 30 for n in range(KEYS)}
    assert all(servers in str(error) for error in ended)


@pytest.mark.parametrize(
    "guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("exactly once asks for more"))]
)
def test_who_gives_partitions_back_waits_for_the_log_once_and_not_with_every_call(
    own_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """A commit that is asked for when partitions go takes less, of a broker that hangs, than one call may."""
    set_patience(monkeypatch, 120.0)
    monkeypatch.setattr(group_member, "_LET_GO_S", 1.0)
    monkeypatch.setattr(TopicWatch, "look", lambda *_: None)  # it asks the broker too, and would end all by itself
    app = counting(f"back-{guarantee.replace('_', '-')}")
    topic = TopicPartition(f"{app.application_id}-in", 0)
    where: dict[str, Any] = {"bootstrap__servers": own_broker.bootstrap_servers, "processing__guarantee": guarantee}
    config = configured(app, tmp_path / "state", commit__interval__ms=NEVER_MS, **where)
    took_s = list[float]()
    with closing(configured_log(config)) as log:
        create(log, {topic.topic: 1, f"{app.application_id}-out": 1})
        produce(log, topic.topic, records(KEYS))
        worker = Watched(app, config, log, instance="watched")

        def gave_back() -> bool:
            if worker.read_up_to(topic) < KEYS:
                return False
            own_broker.pause()
            began_s = time.monotonic()
            worker.group.suspended([topic])
            took_s.append(time.monotonic() - began_s)
            own_broker.go_on()
            assert worker.tasks.all == {}
            return True

        worker.reach(gave_back)
        assert isinstance(worker.group.failed, LogUnavailableError | InDoubtError)
    assert took_s[0] < 120.0
