"""Short names for what tests do with a log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stateline.log import Admin, Consumer, Log, NewTopic, Producer, Record
from stateline_store import TopicPartition
from support.run.patience import HANGING_S, pause_s


@dataclass
class Bench:
    """A log under test: makes topics of unique names and closes at the end what was opened."""

    log: Log
    open: list[Admin | Consumer | Producer] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    def __post_init__(self) -> None:
        self.admin = self.log.admin()
        self.open.append(self.admin)

    def topic(self, partitions: int = 1, name: str = "t", settings: Mapping[str, str] | None = None) -> str:
        name = f"{name}-{self.id}"
        self.admin.create_topics([NewTopic(name, partitions, settings or {})])
        return name

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A producer; a transactional one is initialised."""
        producer = self.log.producer(transactional_id and f"{transactional_id}-{self.id}")
        self.open.append(producer)
        if transactional_id:
            producer.init_transactions()
        return producer

    def write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Records without keys, the i-th with timestamp 1000 + i."""
        producer = self.producer()
        for i, value in enumerate(values):
            producer.produce(topic, None, value, timestamp_ms=1000 + i, partition=partition)
        producer.flush()

    def reader(self, *partitions: TopicPartition) -> Consumer:
        consumer = self.log.consumer()
        self.open.append(consumer)
        consumer.assign(dict.fromkeys(partitions, 0))
        return consumer

    def member(
        self,
        group: str,
        *topics: str,
        instance_id: str | None = None,
        client_id: str | None = None,
        reset: str = "earliest",
    ) -> Member:
        consumer = self.log.consumer(
            f"{group}-{self.id}",
            instance_id=instance_id and f"{instance_id}-{self.id}",
            client_id=client_id,
            auto_offset_reset=reset,
        )
        self.open.append(consumer)
        return Member(consumer, topics)

    def end(self, partition: TopicPartition, at_least: int = 0) -> int:
        """The visible end, once it has come to `at_least`: brokers write transaction markers a little later."""
        until(lambda: self.admin.watermarks(partition)[1] >= at_least)
        return self.admin.watermarks(partition)[1]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Every value that a read_committed consumer sees up to the log's end, which transactions must have reached."""
        place = TopicPartition(topic, partition)
        until(lambda: self.admin.watermarks(place)[1] == self.admin.log_end(place))
        return [record.value for record in drain(self.reader(place), place, self.admin.log_end(place))]

    def close(self) -> None:
        for each in reversed(self.open):
            each.close()
        self.log.close()


class Member:
    """A group member that notes every rebalance. `owned` is what it may work on now."""

    def __init__(self, consumer: Consumer, topics: tuple[str, ...]) -> None:
        self.consumer = consumer
        self.owned: set[TopicPartition] = set()
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.before_revoke: Callable[[list[TopicPartition]], None] = lambda partitions: None
        self.after_assign: Callable[[list[TopicPartition]], None] = lambda partitions: None
        self.records: list[Record] = []
        consumer.subscribe(topics, self._assigned, self._revoked)

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.owned |= set(partitions)
        self.events.append(("assigned", frozenset(partitions)))
        self.after_assign(partitions)

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        self.before_revoke(partitions)
        self.owned -= set(partitions)
        self.events.append(("revoked", frozenset(partitions)))

    def poll(self) -> None:
        self.records += self.consumer.poll(1000, 0.02)


def until(is_met: Callable[[], bool], *members: Member) -> None:
    """Poll these members until the condition holds."""
    began_s = time.monotonic()
    while not is_met():
        waited_s = time.monotonic() - began_s
        assert waited_s < HANGING_S, "what the test waits for did not come"
        for member in members:
            member.poll()
        if not members:
            time.sleep(pause_s(waited_s))


def drain(consumer: Consumer, partition: TopicPartition, end: int) -> list[Record]:
    """Read until `next_offset` has come to `end`, as a restore does."""
    records: list[Record] = []
    deadline = time.monotonic() + HANGING_S
    while (consumer.next_offset(partition) or 0) < end:
        records += consumer.poll(1000, 0.05)
        assert time.monotonic() < deadline, f"stopped at {consumer.next_offset(partition)} before {end}"
    return records


def take(consumer: Consumer, count: int, max_records: int = 10) -> list[list[Record]]:
    """Poll until at least `count` records have come; what each poll returned."""
    batches: list[list[Record]] = []
    deadline = time.monotonic() + HANGING_S
    while sum(map(len, batches)) < count:
        assert time.monotonic() < deadline, f"{count} records did not come"
        batches.append(consumer.poll(max_records, 0.05))
    return batches


def flat(batches: list[list[Record]]) -> list[Record]:
    return [record for batch in batches for record in batch]
