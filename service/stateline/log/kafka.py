"""The log on Apache Kafka, through confluent-kafka (librdkafka)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaException

from stateline.log.interface import IsolationLevel
from stateline.log.kafka_admin import KafkaAdmin
from stateline.log.kafka_consumer import KafkaConsumer
from stateline.log.kafka_errors import kafka_error
from stateline.log.kafka_producer import KafkaProducer
from stateline.log.kafka_topics import NEVER_CREATES
from stateline.log.waiting import Patience
from stateline_store import ConfigurationError, InvalidArgumentError

T = TypeVar("T")
Settings = Mapping[str, str]

_NO_GROUP = "stateline-no-group"  # librdkafka needs a group id even if it is not used

# librdkafka's range assignor gives partition n of every topic of equal count and equal subscribers to one member,
# which tasks rely on. murmur2_random is Kafka's own partitioner (librdkafka's default is CRC32).
_CONSUMER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "partition.assignment.strategy": "range",
    # New partitions of a topic are assigned after this time (librdkafka's default is five minutes).
    "topic.metadata.refresh.interval.ms": 10_000,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "queued.min.messages": 100_000,
    # After its queue was full, librdkafka fetches nothing for this time. With its default of 1 s a fast reader runs dry
    # (131,000 instead of 468,000 records per second).
    "fetch.queue.backoff.ms": 5,
}
# A worker polls its input every few milliseconds. It reads fetched records before more are fetched, so that single
# records are fetched together. That saves the broker a quarter of its time. librdkafka checks its queue at this
# interval. At 5 ms a backlog is read 5 % slower, at 2 ms as fast.
_GROUP_MEMBER = {"queued.min.messages": 1, "fetch.queue.backoff.ms": 2}
_PRODUCER = {
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 200_000,
}
# Settings of clients that Stateline sets → its own setting that decides.
_OWN = {
    "group.id": "application.id",
    "group.instance.id": "group.instance.id",
    "transactional.id": "group.instance.id",
    "transaction.timeout.ms": "transaction.timeout.ms",
    "bootstrap.servers": "bootstrap.servers",
}
# Any other assignment would separate a task's inputs.
_FIXED = ("partition.assignment.strategy", "group.protocol")
_SOCKET_TIMEOUT_MS = 15_000
# A member learns of a rebalance by its next heartbeat. With Kafka's 3 s, tasks of a lost member wait that long.
_HEARTBEAT_MS = 1000
_ALL = {"reconnect.backoff.max.ms": 1000, "socket.timeout.ms": _SOCKET_TIMEOUT_MS}


class KafkaLog:
    """A `Log` on the brokers `bootstrap_servers`. It does not connect before it makes an object. `consumer`, `producer`
    and `admin` are librdkafka settings that override the ones above. `replication_factor` is for topics to create. -1
    means the brokers' default."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        consumer: Settings | None = None,
        producer: Settings | None = None,
        admin: Settings | None = None,
        session_timeout_ms: int = 45_000,
        max_poll_interval_ms: int = 300_000,
        transaction_timeout_ms: int = 60_000,
        replication_factor: int = -1,
    ) -> None:
        _refuse_own_settings("consumer", consumer or {})
        _refuse_own_settings("producer", producer or {})
        self.bootstrap_servers = bootstrap_servers
        self.embedded_file = None
        self.patience = Patience()
        common = {"bootstrap.servers": bootstrap_servers, **_ALL, **NEVER_CREATES}
        timeouts = {
            "session.timeout.ms": session_timeout_ms,
            "max.poll.interval.ms": max(max_poll_interval_ms, session_timeout_ms),
            "heartbeat.interval.ms": max(1, min(_HEARTBEAT_MS, session_timeout_ms // 3)),
        }
        self._consumer = {**common, **_CONSUMER, **timeouts}
        self._given = {"consumer": consumer or {}, "producer": producer or {}, "admin": admin or {}}
        for whose, given in self._given.items():
            for name in NEVER_CREATES:
                if (value := given.get(name, "false")).lower() != "false":
                    raise ConfigurationError(
                        f"{whose}.{name} cannot be {value!r}: a broker would create missing topics with its own "
                        "number of partitions. Leave it out, and create topics before."
                    )
        self._producer = {**common, **_PRODUCER, **self._given["producer"]}
        self._admin = {**common, **self._given["admin"]}
        self._transaction_timeout_ms = transaction_timeout_ms
        self._replication_factor = replication_factor

    def admin(self) -> KafkaAdmin:
        arguments = self._admin, self.bootstrap_servers, self.patience, self._replication_factor
        return self._made("admin", lambda: KafkaAdmin(*arguments))

    def consumer(
        self,
        group: str | None = None,
        *,
        instance_id: str | None = None,
        client_id: str | None = None,
        auto_offset_reset: str = "earliest",
        isolation_level: IsolationLevel = "read_committed",
    ) -> KafkaConsumer:
        if auto_offset_reset not in (allowed := ("earliest", "latest") if group else ("earliest", "latest", "error")):
            raise InvalidArgumentError(f"auto_offset_reset is one of {allowed}, not {auto_offset_reset!r}.")
        settings = {
            **self._consumer,
            **(_GROUP_MEMBER if group else {}),
            **self._given["consumer"],
            "group.id": group or _NO_GROUP,
            "auto.offset.reset": auto_offset_reset,
            **({"isolation.level": isolation_level} if isolation_level != "read_committed" else {}),
            **({"group.instance.id": instance_id} if instance_id else {}),
            **({"client.id": client_id} if client_id else {}),
        }
        return self._made("consumer", lambda: KafkaConsumer(settings, self.bootstrap_servers, self.patience, group))

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None
    ) -> KafkaProducer:
        timeout_ms = transaction_timeout_ms or self._transaction_timeout_ms
        transactional = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # librdkafka refuses a request timeout that outlives the transaction.
            "socket.timeout.ms": min(_SOCKET_TIMEOUT_MS, timeout_ms),
        }
        settings = {**self._producer, **(transactional if transactional_id else {})}
        arguments = settings, self.bootstrap_servers, self.patience, transactional_id
        return self._made("producer", lambda: KafkaProducer(*arguments))

    def _made(self, client: str, make: Callable[[], T]) -> T:
        try:
            return make()
        except KafkaException as error:
            given = ", ".join(f"{client}.{name}" for name in self._given[client]) or "none"
            raise ConfigurationError(
                f"librdkafka refuses a setting of its {client}: {kafka_error(error).str().strip().rstrip('.')}. "
                f"Correct the setting, or remove it. These are passed on: {given}. librdkafka's CONFIGURATION.md has "
                "the allowed values and other names."
            ) from error

    def close(self) -> None:
        """Do nothing: each object made by this log closes its own connections."""


def _refuse_own_settings(whose: str, settings: Settings) -> None:
    for name, instead in _OWN.items():
        if name in settings:
            raise ConfigurationError(f"{whose}.{name} is set by Stateline: set {instead} instead.")
    for name in _FIXED:
        if name in settings:
            raise ConfigurationError(
                f"{whose}.{name} cannot be changed: partition n of all topics that are processed together must go to "
                "one worker, which librdkafka's range assignor of the classic protocol alone does. Leave it out."
            )
