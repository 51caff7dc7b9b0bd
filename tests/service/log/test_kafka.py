"""What only Kafka has: brokers that fail, members that are too slow, transactions that outlive their producer."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from stateline.log import NewTopic, kafka_admin, open_log
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.log.topic_settings import TOPIC_SETTINGS
from stateline_store import (
    ConfigurationError,
    FencedError,
    InDoubtError,
    InvalidArgumentError,
    LogUnavailableError,
    TopicPartition,
)
from support.kafka.kafka_broker import KafkaBroker, needed
from support.kafka.shared_broker import SharedBroker
from support.log.log_bench import Bench, until
from support.run.patience import HANGING_S

NOT_LEADER = confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION


def test_an_abandoned_transaction_is_settled_by_the_next_producer_of_its_id(kafka_broker: SharedBroker) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic = bench.topic()
    abandoned = bench.producer("x")
    abandoned.begin_transaction()
    abandoned.produce(topic, None, b"open", timestamp_ms=7, partition=0)
    abandoned.flush()
    bench.write(topic, b"after")
    assert bench.admin.watermarks(TopicPartition(topic, 0)) == (0, 0)
    bench.producer("x")
    assert bench.values(topic) == [b"after"]
    bench.close()


def test_new_topics_are_waited_for_while_one_more_partition_is_ready(
    kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a broker that creates thousands of partitions, one after the other, for longer than a call may take."""
    asked: list[int] = []

    def one_more_each_time(_: AdminClient, targets: dict[Any, Any], **__: Any) -> dict[Any, Future[Any]]:
        asked.append(len(targets))
        monkeypatch.setattr(kafka_admin, "_STUCK_S", 0.0)
        return {each: answer(None if each.partition < len(asked) else NOT_LEADER) for each in targets}

    def none(_: AdminClient, targets: dict[Any, Any], **__: Any) -> dict[Any, Future[Any]]:
        return {each: answer(NOT_LEADER) for each in targets}

    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    monkeypatch.setattr(AdminClient, "list_offsets", one_more_each_time)
    bench.admin.create_topics([NewTopic(f"late-{bench.id}", 6)])
    assert asked == [6, 5, 4, 3, 2, 1]
    monkeypatch.setattr(AdminClient, "list_offsets", none)
    admin = bench.admin
    assert isinstance(admin, kafka_admin.KafkaAdmin)
    with pytest.raises(LogUnavailableError, match="create t-0, t-1, t-2 and 3 more"):
        admin._settle([TopicPartition("t", number) for number in range(6)])
    bench.close()


def answer(error: int | None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(confluent_kafka.KafkaException(confluent_kafka.KafkaError(error)))
    return future


def test_a_member_that_polls_too_seldom_is_told_and_joins_again(kafka_broker: SharedBroker) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers, session_timeout_ms=1000, max_poll_interval_ms=1000))
    topic = bench.topic(2)
    slow, other = bench.member("g", topic), bench.member("g", topic)
    until(lambda: len(slow.owned) == 1 and len(other.owned) == 1, slow, other)
    lost = dict.fromkeys(slow.owned, 1)
    until(lambda: len(other.owned) == 2, other)
    with pytest.raises(FencedError):
        slow.consumer.commit(lost)
    until(lambda: len(slow.owned) == 1 and len(other.owned) == 1, slow, other)
    bench.close()


@pytest.mark.parametrize("deaf", [1, 1_000])
def test_a_partition_of_which_nothing_comes_is_sought_anew_and_then_given_up(
    kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, deaf: int
) -> None:
    """The client does not hear so many times that it may read on."""
    unheard = list[int]()

    class Deaf(confluent_kafka.Consumer):
        def resume(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
            if len(unheard) < deaf:
                unheard.append(1)
            else:
                super().resume(partitions)

    monkeypatch.setattr(confluent_kafka, "Consumer", Deaf)
    monkeypatch.setattr("stateline.log.kafka_silence.SILENCE_S", 0.5)
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic = bench.topic(2)
    for partition in (0, 1):
        bench.write(topic, b"a", b"b", partition=partition)
    member, place = bench.member("g", topic), TopicPartition(topic, 1)
    member.after_assign = lambda partitions: member.consumer.pause([place])
    until(lambda: len(member.records) == 2, member)
    member.consumer.seek(place, 1)
    member.consumer.resume([place])
    if deaf == 1:
        until(lambda: len(member.records) == 3, member)
        assert (member.records[-1].partition, member.records[-1].value) == (1, b"b")
    else:
        with pytest.raises(LogUnavailableError, match="nothing comes of it"):
            until(lambda: len(member.records) == 3, member)
    bench.close()


def test_a_record_that_the_broker_refuses_is_told_by_flush_and_by_commit(kafka_broker: SharedBroker) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic = bench.topic(settings={"max.message.bytes": "500"})
    refused = random.Random(1).randbytes(5_000)  # as large when compressed
    plain, transactional = bench.producer(), bench.producer("x")
    plain.produce(topic, None, refused, timestamp_ms=7, partition=0)
    with pytest.raises(InvalidArgumentError, match=f"{topic}-0 was not written"):
        plain.flush()
    assert plain.flush() == {}
    transactional.begin_transaction()
    transactional.produce(topic, None, refused, timestamp_ms=7, partition=0)
    with pytest.raises(InvalidArgumentError, match=f"{topic}-0 was not written"):
        transactional.commit_transaction()
    transactional.abort_transaction()
    bench.write(topic, b"after")
    assert bench.values(topic) == [b"after"]
    bench.close()


def test_a_record_behind_one_that_the_broker_refused_tells_of_that_one(kafka_broker: SharedBroker) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic, other = bench.topic(settings={"max.message.bytes": "500"}), bench.topic(name="other")
    producer = bench.producer("x")
    producer.begin_transaction()
    producer.produce(topic, None, random.Random(1).randbytes(5_000), timestamp_ms=7, partition=0)

    def is_refused() -> bool:
        producer.produce(other, None, b"fine", timestamp_ms=7, partition=0)
        return False

    with pytest.raises(InvalidArgumentError, match=rf"A record for {topic}-0 was not written: .*too large"):
        until(is_refused)
    producer.abort_transaction()
    bench.close()


def test_offsets_that_an_open_transaction_changes_are_told_only_once_it_has_ended(
    kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic = bench.topic()
    bench.write(topic, b"a", b"b")
    member, producer = bench.member("g", topic), bench.producer("x")
    until(lambda: len(member.records) == 2, member)
    place, group = TopicPartition(topic, 0), f"g-{bench.id}"
    member.consumer.commit({place: 1})
    producer.begin_transaction()
    producer.send_offsets_to_transaction({place: 2}, member.consumer)
    with monkeypatch.context() as patch:
        patch.setattr("stateline.log.kafka_admin.CALL_TIMEOUT_S", 2.0)
        with pytest.raises(LogUnavailableError, match="stays open"):
            bench.admin.committed(group, [place])
    producer.commit_transaction()
    assert bench.admin.committed(group, [place]) == {place: 2}
    bench.close()


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    with needed(KafkaBroker) as broker:
        yield broker


def test_a_broker_that_has_just_started_tells_that_a_group_has_no_offsets(own_broker: KafkaBroker) -> None:
    """librdkafka's admin client ends the process with a segmentation fault there, so this is asked in another one."""
    asking = (
        "import sys; from stateline.log import NewTopic; from stateline.log.kafka import KafkaLog; "
        "from stateline_store import TopicPartition; admin = KafkaLog(sys.argv[1]).admin(); "
        "admin.create_topics([NewTopic('t', 1)]); print(admin.committed('new', [TopicPartition('t', 0)]))"
    )
    command = [sys.executable, "-c", asking, own_broker.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr


def test_a_commit_that_gets_no_answer_is_in_doubt_and_settled_by_the_next_producer(
    own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(KafkaLog(own_broker.bootstrap_servers))
    topic = bench.topic()
    doubtful = bench.producer("x")
    doubtful.begin_transaction()
    doubtful.produce(topic, None, b"doubtful", timestamp_ms=7, partition=0)
    doubtful.flush()
    own_broker.stop()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("stateline.log.kafka_producer.CALL_TIMEOUT_S", 1.0)
            with pytest.raises(InDoubtError, match=r"is unknown.*make a new producer"):
                doubtful.commit_transaction()
        doubtful.close()
    finally:
        own_broker.restart()
    settled = bench.producer("x")
    assert bench.values(topic) == []  # the broker never heard of the commit
    settled.begin_transaction()
    settled.produce(topic, None, b"again", timestamp_ms=7, partition=0)
    settled.commit_transaction()
    assert bench.values(topic) == [b"again"]
    bench.close()


def test_every_call_to_a_broker_that_is_not_there_ends_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kafka_admin", "kafka_producer"):
        monkeypatch.setattr(f"stateline.log.{module}.CALL_TIMEOUT_S", 0.5)
    log = KafkaLog("127.0.0.1:1")
    admin, place = log.admin(), TopicPartition("t", 0)
    for call in (
        admin.topics,
        lambda: admin.create_topics([NewTopic("t", 1)]),
        lambda: admin.delete_topics(["t"]),
        lambda: admin.committed("g", [place]),
        lambda: admin.watermarks(place),
        lambda: log.producer().produce("t", None, b"", timestamp_ms=1),
        lambda: log.producer("x").init_transactions(),
    ):
        started = time.monotonic()
        with pytest.raises(LogUnavailableError, match=r"127\.0\.0\.1:1"):
            call()
        assert time.monotonic() - started < 10
    consumer = log.consumer()
    consumer.assign({place: 0})
    assert consumer.poll(1, 0.05) == []
    consumer.close()


def test_a_setting_that_librdkafka_refuses_is_a_configuration_error_of_one_line_that_names_the_passed_on_ones() -> None:
    log = KafkaLog("127.0.0.1:1", consumer={"fetch.min.bytes": "-5"}, producer={"acks": "x"}, admin={"no.such": "1"})
    for make, setting in (
        (log.consumer, "consumer.fetch.min.bytes"),
        (log.producer, "producer.acks"),
        (log.admin, "admin.no.such"),
    ):
        with pytest.raises(ConfigurationError, match=rf"\A[^\n]*{re.escape(setting)}[^\n]*\Z"):
            make()


def test_a_setting_that_stateline_would_overwrite_is_refused_with_the_one_to_set() -> None:
    with pytest.raises(ConfigurationError, match=r"producer\.transaction\.timeout\.ms .* set transaction\.timeout\.ms"):
        KafkaLog("127.0.0.1:1", producer={"transaction.timeout.ms": "6000"})
    with pytest.raises(ConfigurationError, match=r"consumer\.group\.id .* set application\.id"):
        KafkaLog("127.0.0.1:1", consumer={"group.id": "mine"})
    for name in ("partition.assignment.strategy", "group.protocol"):
        with pytest.raises(ConfigurationError, match=f"consumer\\.{name} cannot be changed.*Leave it out"):
            KafkaLog("127.0.0.1:1", consumer={name: "consumer"})


@pytest.mark.parametrize("whose", ["consumer", "producer", "admin"])
def test_no_client_may_have_topics_created_by_asking_for_them(whose: str) -> None:
    def log(given: str) -> KafkaLog:
        settings: dict[str, Any] = {whose: {"allow.auto.create.topics": given}}
        return KafkaLog("127.0.0.1:1", **settings)

    log("false")
    with pytest.raises(
        ConfigurationError, match=rf"{whose}\.allow\.auto\.create\.topics cannot be 'true'.*Leave it out"
    ):
        log("true")


def test_the_embedded_log_knows_every_setting_of_the_brokers_topics(kafka_broker: SharedBroker) -> None:
    bench = Bench(KafkaLog(kafka_broker.bootstrap_servers))
    topic = bench.topic()
    assert bench.admin.topic_settings([topic])[topic].keys() == TOPIC_SETTINGS
    bench.close()


def test_open_log_chooses_by_the_setting(tmp_path: Path) -> None:
    embedded = open_log("embedded", tmp_path)
    named = open_log(f"embedded:{tmp_path / 'other.db'}", tmp_path)
    assert isinstance(embedded, EmbeddedLog)
    assert isinstance(named, EmbeddedLog)
    assert (embedded.embedded_file, named.embedded_file) == (tmp_path / "log.db", tmp_path / "other.db")
    kafka = open_log("a:1,b:2", tmp_path)
    assert isinstance(kafka, KafkaLog)
    assert kafka.embedded_file is None
    assert kafka.bootstrap_servers == "a:1,b:2"
