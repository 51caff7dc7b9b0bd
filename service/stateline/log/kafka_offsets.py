"""Asks brokers for the offsets that a group has committed.

A consumer of the group asks for its offsets. It need not have joined. librdkafka's two other ways fail while a group
has no coordinator, as on a broker that has just started: its admin call crashes the process
(confluentinc/librdkafka#5040), and a partition assigned without an offset is never read (confluentinc/librdkafka#5586).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stateline.log.interface import OffsetNote
from stateline.log.kafka_errors import kafka_error, meaning
from stateline_store import LogUnavailableError, TopicPartition

# Brokers answer so while the coordinator is found or moves. Ask again.
_NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
)
_POLL_INTERVAL_S = 0.02


_FED = "fed="  # in topics: never change


def committed_metadata(client_id: str, note: OffsetNote) -> str:
    """Return the metadata of an offset: ``client id TAB fed=NOTE TAB partition time``. Absent parts are empty. In
    topics: never change."""
    fed = "" if note.fed is None else f"{_FED}{note.fed}"
    return f"{client_id}\t{fed}\t{'' if note.time_ms is None else note.time_ms}"


def read_metadata(committed: confluent_kafka.TopicPartition) -> tuple[str, OffsetNote]:
    """Return the client id and the note. Metadata of other programs is a client id without a note, and bytes that are
    no text, as Kafka Streams may write them, are neither."""
    try:
        metadata = committed.metadata or ""
    except UnicodeDecodeError:
        return "", OffsetNote()
    client_id, fed, time = parts if len(parts := metadata.split("\t")) == 3 else [metadata, "", ""]
    time_ms = int(time) if time.isascii() and time.isdigit() else None
    return client_id, OffsetNote(time_ms, fed.removeprefix(_FED) if fed.startswith(_FED) else None)


def committed_offsets(
    consumer: confluent_kafka.Consumer,
    group: str,
    partitions: Iterable[TopicPartition],
    bootstrap_servers: str,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Return the next offset of each of these partitions that has one. Waits for a transaction that is writing offsets:
    they must not look absent. Raises `LogUnavailableError` after `timeout_s`."""
    found = asked_offsets(consumer, group, partitions, bootstrap_servers, timeout_s)
    return {partition: each.offset for partition, each in found.items() if each.offset >= 0}


def asked_offsets(
    consumer: confluent_kafka.Consumer,
    group: str,
    partitions: Iterable[TopicPartition],
    bootstrap_servers: str,
    timeout_s: float,
) -> dict[TopicPartition, confluent_kafka.TopicPartition]:
    """Return all that was committed for each partition. A consumer that is not read_committed waits for no transaction.
    Raises `LogUnavailableError` after `timeout_s`."""
    asked = [confluent_kafka.TopicPartition(*partition) for partition in partitions]
    if not asked:
        return {}
    what, deadline = f"The offsets of group {group!r} cannot be read", time.monotonic() + timeout_s
    while True:
        try:
            found = consumer.committed(asked, timeout=max(0.0, deadline - time.monotonic()))
            break
        except KafkaException as error:
            code = (inner := kafka_error(error)).code()
            if code == KafkaError._TIMED_OUT:
                raise LogUnavailableError(
                    f"{what}: Kafka at {bootstrap_servers} does not answer, or a transaction of the group stays open: "
                    "try later."
                ) from error
            if code not in _NO_COORDINATOR or time.monotonic() > deadline:
                raise meaning(inner, bootstrap_servers, what) from error
            time.sleep(_POLL_INTERVAL_S)
    if errors := [each.error for each in found if each.error is not None]:
        raise meaning(errors[0], bootstrap_servers, what)
    return {TopicPartition(each.topic, each.partition): each for each in found}
