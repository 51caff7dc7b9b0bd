"""What Kafka's errors mean to the rest of Stateline, in one table."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException

from stateline_store import (
    DoesNotExistError,
    FencedError,
    InvalidArgumentError,
    LogUnavailableError,
    StatelineError,
)

LOGGER = logging.getLogger("stateline.kafka")  # librdkafka's own messages come here too, not to stderr
CALL_TIMEOUT_S = 15.0  # how long one call waits for a broker: longer than an election of a partition leader

_MEANING: dict[int, type[StatelineError]] = {
    KafkaError._FATAL: FencedError,  # what every call says after the client has failed for good: make a new one
    KafkaError._FENCED: FencedError,
    KafkaError.PRODUCER_FENCED: FencedError,
    KafkaError.INVALID_PRODUCER_EPOCH: FencedError,
    KafkaError.FENCED_INSTANCE_ID: FencedError,
    KafkaError.FENCED_MEMBER_EPOCH: FencedError,
    KafkaError.STALE_MEMBER_EPOCH: FencedError,
    KafkaError.ILLEGAL_GENERATION: FencedError,
    KafkaError.UNKNOWN_MEMBER_ID: FencedError,
    KafkaError.REBALANCE_IN_PROGRESS: FencedError,
    KafkaError.UNKNOWN_TOPIC_OR_PART: DoesNotExistError,
    KafkaError._UNKNOWN_TOPIC: DoesNotExistError,
    KafkaError._UNKNOWN_PARTITION: DoesNotExistError,
    KafkaError._INVALID_ARG: InvalidArgumentError,
    KafkaError._NOT_CONFIGURED: InvalidArgumentError,
    KafkaError._STATE: InvalidArgumentError,
    KafkaError.MSG_SIZE_TOO_LARGE: InvalidArgumentError,
    KafkaError.RECORD_LIST_TOO_LARGE: InvalidArgumentError,
    KafkaError.INVALID_TIMESTAMP: InvalidArgumentError,
    KafkaError.INVALID_RECORD: InvalidArgumentError,
    KafkaError.TOPIC_EXCEPTION: InvalidArgumentError,
    KafkaError.INVALID_PARTITIONS: InvalidArgumentError,
    KafkaError.INVALID_REPLICATION_FACTOR: InvalidArgumentError,
    KafkaError.INVALID_CONFIG: InvalidArgumentError,
    KafkaError.POLICY_VIOLATION: InvalidArgumentError,
}


def kafka_error(error: KafkaException) -> KafkaError:
    """The KafkaError inside an exception of the client."""
    inner = error.args[0]
    assert isinstance(inner, KafkaError)
    return inner


def meaning(error: KafkaError, bootstrap_servers: str, what: str) -> StatelineError:
    """The error to raise when `what` failed; `LogUnavailableError` for all that is not in the table."""
    kind = _MEANING.get(error.code(), LogUnavailableError)
    if kind is LogUnavailableError:
        return kind(
            f"{what}: Kafka at {bootstrap_servers} does not answer as it should: {error.str()}. Start it, or set "
            "bootstrap.servers to where it runs."
        )
    return kind(f"{what}: {error.str()} (Kafka at {bootstrap_servers}).")
