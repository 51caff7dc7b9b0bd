"""What is said of Kafka's errors."""

from __future__ import annotations

from confluent_kafka import KafkaError

from stateline.log.kafka_errors import meaning
from stateline_store import LogUnavailableError


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
