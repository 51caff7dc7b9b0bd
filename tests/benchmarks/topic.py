"""The topic that the benchmarks ingest, on a real broker: records of 12 + 100 bytes, lz4."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from ingest_app import app

from stateline.log import NewTopic
from stateline.log.kafka import KafkaLog
from stateline_store import TopicPartition

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.kafka.kafka_broker import KafkaBroker

TOPIC = "ingest"
PARTITIONS = 4

# librdkafka tells of connections that a broker closes when it ends; nothing that a figure depends on.
logging.getLogger("stateline.kafka").setLevel(logging.CRITICAL)


def key_of(number: int) -> bytes:
    """The key of a record: 12 bytes."""
    return b"key-%08d" % number


def value() -> bytes:
    """A value of 100 bytes that lz4 cannot make much smaller."""
    return os.urandom(50).hex().encode()


@contextmanager
def loaded_broker(records: int, keys: int) -> Iterator[str]:
    """A broker whose topic has so many records, each key in turn; its bootstrap servers."""
    with KafkaBroker() as broker:
        servers = broker.bootstrap_servers
        started = time.perf_counter()
        with closing(KafkaLog(servers)) as log, closing(log.admin()) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
        produce(servers, records, keys)
        print(f"  {records:,} records of {keys:,} keys written in {time.perf_counter() - started:.1f} s", flush=True)
        yield servers


def produce(servers: str, records: int, keys: int) -> None:
    """Write so many records, each key in turn, as fast as the broker takes them."""
    with closing(KafkaLog(servers)) as log, closing(log.producer()) as producer:
        values = [value() for _ in range(1000)]
        for number in range(records):
            producer.produce(TOPIC, key_of(number % keys), values[number % 1000], timestamp_ms=1_000 + number)
        producer.flush()


def produce_evenly(servers: str, rate: float, keys: int, until_s: float) -> float:
    """Write so many records per second, until this moment of `time.monotonic`; the rate that was reached."""
    written, begin = 0, time.monotonic()
    values = [value() for _ in range(1000)]
    with closing(KafkaLog(servers)) as log, closing(log.producer()) as producer:
        while (now := time.monotonic()) < until_s:
            due = int((now - begin) * rate)
            for number in range(written, due):
                producer.produce(TOPIC, key_of(number % keys), values[number % 1000], timestamp_ms=1_000 + number)
            written = due
            time.sleep(0.005)
        producer.flush()
    return written / (time.monotonic() - begin)


class Group:
    """A consumer group, the worker's unless another is named, seen from outside."""

    def __init__(self, servers: str, name: str = app.application_id) -> None:
        self._name = name
        self._log = KafkaLog(servers)
        self._admin = self._log.admin()

    def committed(self) -> int:
        """How many records of the topic the group has committed."""
        partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        return sum(self._admin.committed(self._name, partitions).values())

    def close(self) -> None:
        self._admin.close()
        self._log.close()


def forget_group(servers: str) -> None:
    """Delete the group, so that the next worker starts anew. Waits until the broker has seen the last one leave."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + 30
    while True:
        try:
            client.delete_consumer_groups([app.application_id])[app.application_id].result()
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
