"""A worker on a real broker that does not hear whether its transaction was committed, because the connection is cut or
the broker killed: it finds out, restores what it lacks, and wipes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.kafka import KafkaLog
from stateline.log.kafka_producer import KafkaProducer
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline_store import TopicPartition
from support.kafka.commit_proxy import CommitProxy, Held
from support.kafka.kafka_broker import KafkaBroker, needed
from support.processes.ports import free_port
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import long_or_short
from support.run.patience import HANGING_S

KEYS = 20
Fault = Literal["cut", "killed"]
# What a broker does not get is aborted, what it does not answer is committed.
IN_DOUBT: list[tuple[Fault, Held]] = long_or_short(
    [("cut", "request"), ("cut", "answer"), ("killed", "request"), ("killed", "answer")],
    [("cut", "answer"), ("killed", "request")],
)


@dataclass
class Behind:
    """A broker of our own. What goes through the proxy is the worker's; what the test asks goes past it."""

    broker: KafkaBroker
    proxy: CommitProxy
    log: KafkaLog
    past: KafkaLog

    def has_ended(self, changelog: TopicPartition, group: str, source: TopicPartition, before: int) -> bool:
        """Whether the transaction is over that wrote to this changelog and committed more of the source than before."""
        with closing(self.past.admin()) as admin:
            is_closed = admin.watermarks(changelog)[1] == admin.log_end(changelog)
            return is_closed and admin.committed(group, [source])[source] > before

    def fail(self, fault: Fault) -> None:
        if fault == "killed":
            self.broker.kill()
        self.proxy.cut()

    def come_back(self, fault: Fault) -> None:
        if fault == "killed":
            self.broker.restart()
        self.proxy.mend()


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    port = free_port()
    proxy = CommitProxy(port)
    plain, ours = "PLAINTEXT://127.0.0.1:{broker_port}", "THROUGH://127.0.0.1:"
    listeners = {
        "listeners": f"{plain},{ours}{port},CONTROLLER://127.0.0.1:{{controller_port}}",
        "advertised.listeners": f"{plain},{ours}{proxy.port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,THROUGH:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        # The controller takes a broker that was killed back when its session is over: by default after 9 s.
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "500",
    }
    broker = needed(lambda: KafkaBroker(settings=listeners))
    with broker, closing(proxy):
        yield Behind(broker, proxy, KafkaLog(f"127.0.0.1:{proxy.port}"), KafkaLog(broker.bootstrap_servers))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits for two seconds, and not for half a minute, for a broker that is not there."""
    commit = KafkaProducer.commit_transaction

    def commit_soon(producer: KafkaProducer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("stateline.log.kafka_producer.CALL_TIMEOUT_S", 1.0)
            commit(producer)

    monkeypatch.setattr(KafkaProducer, "commit_transaction", commit_soon)


def counting(name: str, calls: list[int]) -> App:
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.string)
    kept = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

    @app.process(source, stores=[kept])
    def count(record: InputRecord, counts: StoreView) -> None:
        calls.append(record.offset)
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def records(count: int) -> list[tuple[bytes, bytes, int]]:
    return [(b"k%d" % (n % KEYS), b"v", 1_000 + n) for n in range(count)]


def identities(state: Path) -> dict[Path, str]:
    """What RocksDB calls each database on the disk: another name after it was deleted and made anew."""
    return {path: path.read_text() for path in state.rglob("rocksdb/*/IDENTITY")}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("fault", "held"), IN_DOUBT)
def test_a_transaction_in_doubt_is_settled_and_every_record_counts_once(
    behind: Behind,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    delivered: list[Record],
    fault: Fault,
    held: Held,
) -> None:
    name, calls = f"doubt-{fault}-{held}", list[int]()
    app, state = counting(name, calls), tmp_path / "state"
    settings = {"processing__guarantee": "exactly_once_v2", "group__instance__id": name}
    config = configured(app, state, **settings)
    source, changelog = f"{name}-in", f"{name}-counts-changelog"
    create(behind.past, {source: 1})
    produce(behind.past, source, records(200))
    with closing(Stores(app, config, tmp_path / "scratch")) as found, running(app, config, behind.log):
        eventually(lambda: found.offset("counts", source, 0) == 199, "the first records are committed")
        places = TopicPartition(changelog, 0), name, TopicPartition(source, 0)
        # A broker says that a transaction is committed before its records can be read.
        eventually(lambda: behind.has_ended(*places, 0), "the first transaction is over")
        before, known = identities(state), read_all(behind.past, changelog, 1)
        assert len(before) == 1
        delivered.clear()
        behind.proxy.hold(held)
        produce(behind.past, source, records(200))
        assert behind.proxy.held.wait(HANGING_S), "no transaction ends"
        if held == "answer":
            # A lone broker that is killed before its coordinator has written the markers forgets them as it starts
            # ("these partitions are likely deleted already"), and the transaction stays open for ever.
            eventually(lambda: behind.has_ended(*places, 200), "the transaction is committed")
        counted = len(calls)  # the worker waits for the end of its transaction
        behind.fail(fault)
        eventually(lambda: "is unknown" in caplog.text, "the worker does not know")
        assert found.offset("counts", source, 0) == 199
        behind.come_back(fault)
        eventually(lambda: found.offset("counts", source, 0) == 399, "the worker has found out")
        assert found.rows("counts", 1) == {b"k%d" % n: (20).to_bytes(8, "big") for n in range(KEYS)}
    assert identities(state) == before
    written = read_all(behind.past, changelog, 1)
    assert {r.key: r.value for r in written} == {b"k%d" % n: (20).to_bytes(8, "big") for n in range(KEYS)}
    assert [r for r in delivered if r.offset <= known[-1].offset] == [], "the store had these"
    if held == "answer":  # committed: restored, and not processed again
        assert len(delivered) >= len({offset % KEYS for offset in calls[200:counted]}) > 0
        assert sorted(calls) == list(range(400))
    else:  # aborted: processed again
        assert delivered == []
        assert sorted(calls) == sorted([*range(400), *range(200, counted)])
