"""What is said of Kafka's errors."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from stateline.log.kafka import KafkaLog
from stateline.log.kafka_errors import meaning
from stateline_store import ConfigurationError, LogUnavailableError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import create


def test_a_broker_that_cannot_yet_is_not_told_to_be_started() -> None:
    error = meaning(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, "ConsumerGroupDescribe: "), "k:9092", "No members")
    assert isinstance(error, LogUnavailableError)
    assert "cannot do that now: ConsumerGroupDescribe (COORDINATOR_NOT_AVAILABLE). It may just have started" in str(
        error
    )
    assert "bootstrap.servers" not in str(error)


def test_a_broker_that_is_not_there_is() -> None:
    error = meaning(KafkaError(KafkaError._TRANSPORT, "refused"), "k:9092", "No members")
    assert isinstance(error, LogUnavailableError)
    assert "refused. Start it, or set bootstrap.servers" in str(error)


@pytest.mark.parametrize("session_ms", [900, 1_900_000])
def test_a_session_that_brokers_refuse_is_a_wrong_setting_and_is_not_tried_again(
    kafka_broker: SharedBroker, session_ms: int
) -> None:
    topic = f"refused-{uuid4().hex[:8]}"
    with closing(KafkaLog(kafka_broker.bootstrap_servers, session_timeout_ms=session_ms)) as log:
        create(log, {topic: 1})
        with closing(log.consumer(topic)) as consumer:
            consumer.subscribe([topic], lambda _: None, lambda _: None)
            with pytest.raises(ConfigurationError) as refused:
                consumer.poll(1, 30.0)
    assert str(refused.value) == (
        f"Reading failed: Kafka at {kafka_broker.bootstrap_servers} refuses session.timeout.ms={session_ms}: it is "
        "from group.min.session.timeout.ms to group.max.session.timeout.ms of the brokers. Change the one or the other."
    )


def test_a_transaction_that_brokers_find_too_long_is_a_wrong_setting_and_is_not_tried_again(
    kafka_broker: SharedBroker,
) -> None:
    with (
        closing(KafkaLog(kafka_broker.bootstrap_servers, transaction_timeout_ms=2_000_000)) as log,
        closing(log.producer(f"refused-{uuid4().hex[:8]}")) as producer,
        pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms=2000000: it is at most transaction\.max"),
    ):
        producer.init_transactions()


def test_a_setting_whose_value_is_not_at_hand_is_named_nevertheless() -> None:
    error = meaning(KafkaError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE), "k:9092", "A record was not written")
    assert isinstance(error, ConfigurationError)
    assert "refuses producer.compression.type: it is a kind" in str(error)
