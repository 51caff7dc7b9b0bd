"""Translates Kafka's errors into Stateline's, by one table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException

from stateline_store import (
    ConfigurationError,
    DoesNotExistError,
    FencedError,
    InvalidArgumentError,
    LogUnavailableError,
    StatelineError,
)

LOGGER = logging.getLogger("stateline.kafka")  # librdkafka's own messages come here too, not to stderr
CALL_TIMEOUT_S = 15.0  # how long one call waits for a broker: longer than an election of a leader

# librdkafka repeats an error of a broker only every 30 s, but retries all the time.
_LOGIN_REMEMBERED_S = 60.0

# Missing rights of a login, and refused logins. Retries do not help.
_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_NO_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.DELEGATION_TOKEN_EXPIRED,
    KafkaError.DELEGATION_TOKEN_NOT_FOUND,
}

# Settings that brokers refuse, and their limits.
_SETTINGS = {
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms",
        "it is from group.min.session.timeout.ms to group.max.session.timeout.ms of the brokers",
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "transaction.timeout.ms",
        "it is at most transaction.max.timeout.ms of the brokers",
    ),
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: (
        "producer.compression.type",
        "it is a kind of compression that the brokers and the topic know",
    ),
}

_MEANING: dict[int, type[StatelineError]] = {
    KafkaError._FATAL: FencedError,  # the client has failed for good: make a new one
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
    KafkaError._CONFLICT: InvalidArgumentError,
    KafkaError.MSG_SIZE_TOO_LARGE: InvalidArgumentError,
    KafkaError.RECORD_LIST_TOO_LARGE: InvalidArgumentError,
    KafkaError.INVALID_TIMESTAMP: InvalidArgumentError,
    KafkaError.INVALID_RECORD: InvalidArgumentError,
    KafkaError.TOPIC_EXCEPTION: InvalidArgumentError,
    KafkaError.INVALID_PARTITIONS: InvalidArgumentError,
    KafkaError.INVALID_REPLICATION_FACTOR: InvalidArgumentError,
    KafkaError.INVALID_CONFIG: InvalidArgumentError,
    KafkaError.POLICY_VIOLATION: InvalidArgumentError,
    **dict.fromkeys(_NOT_ALLOWED | _NO_LOGIN | _SETTINGS.keys(), ConfigurationError),
}


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the KafkaError inside an exception of the client."""
    inner = error.args[0]
    assert isinstance(inner, KafkaError)
    return inner


def meaning(
    error: KafkaError, bootstrap_servers: str, what: str, settings: Mapping[str, object] = MappingProxyType({})
) -> StatelineError:
    """Return the error to raise because `what` failed: `LogUnavailableError` for codes outside the table. If brokers
    refuse one of the `settings`, the message has its value."""
    kind = _MEANING.get(error.code(), LogUnavailableError)
    if kind is LogUnavailableError and error.code() > 0:  # a broker's code: librdkafka's own are negative
        why = f"{error.str().rstrip(': ')} ({error.name()})".lstrip()
        return kind(
            f"{what}: Kafka at {bootstrap_servers} cannot do that now: {why}. It may just have started: try again in a "
            "moment; if that does not help, its log says more."
        )
    if kind is LogUnavailableError:
        return kind(
            f"{what}: Kafka at {bootstrap_servers} does not answer as it should: {error.str()}. Start it, or set "
            "bootstrap.servers to where it runs."
        )
    if error.code() in _SETTINGS:
        setting, allowed = _SETTINGS[error.code()]
        given = f"{setting}={settings[setting]}" if setting in settings else setting
        return kind(f"{what}: Kafka at {bootstrap_servers} refuses {given}: {allowed}. Change the one or the other.")
    if error.code() in _NOT_ALLOWED:
        return kind(
            f"{what}: {error.str()} (Kafka at {bootstrap_servers}). Give the login that right in Kafka, or use another "
            "(consumer.sasl.username, producer.sasl.username, admin.sasl.username)."
        )
    if error.code() in _NO_LOGIN:
        return kind(
            f"{what}: Kafka at {bootstrap_servers} refuses the login: {error.str()}. Correct consumer.sasl.…, "
            "producer.sasl.… and admin.sasl.…, each where it is set."
        )
    return kind(f"{what}: {error.str()} (Kafka at {bootstrap_servers}).")


class Login:
    """Remembers whether brokers refuse a client's login. librdkafka reports that aside, and calls only time out. Only
    the client's thread uses it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._refused: KafkaError | None = None
        self._at_s = 0.0

    def note(self, error: KafkaError) -> None:
        """Serve as the client's ``error_cb``. librdkafka also logs the error."""
        if error.code() in _NO_LOGIN:
            self._refused, self._at_s = error, time.monotonic()

    def refusal(self, what: str) -> StatelineError | None:
        """Return the error to raise if brokers refused the login within the last minute, else None."""
        if self._refused is None or time.monotonic() - self._at_s > _LOGIN_REMEMBERED_S:
            return None
        return meaning(self._refused, self._bootstrap_servers, what)
