"""Records of topics as a test writes and reads them: Python objects, through the topics' own serdes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from stateline import serdes
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.log import interface
from stateline.log.interface import Headers, Log, Producer
from stateline.log.timestamps import checked_timestamp
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.processing.failures import DEAD_LETTER
from stateline.processing.records import Output, OutputRecord
from stateline.serde.plain import shown
from stateline_store import DoesNotExistError, InvalidArgumentError, TopicPartition
from stateline_store.clock import now_ms as machine_now_ms

_AT_A_TIME = 1_000
_WRITER = "test-driver"

_Row: TypeAlias = tuple[OutputRecord, int | None]
"""A record as bytes, and the partition that it names, if it does."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. `timestamp_ms` is milliseconds since the epoch; `value` None deletes the key. When you write
    a record, `timestamp_ms=None` means the driver's clock, and `partition=None` the key's partition. Records of
    different partitions can be equal."""

    key: Any
    value: Any
    timestamp_ms: int | None = None
    headers: Headers = ()
    partition: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.headers, list):
            object.__setattr__(self, "headers", tuple(self.headers))  # equal however they were given


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: the record's own bytes, its place, and why it was set aside (`error` is the exception's type,
    `message` its text). `headers` has the record's own, then those of the dead letter."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    error: str
    message: str
    headers: Headers = field(default=(), compare=False)


def write(log: Log, topic: Topic, records: Iterable[Record], now_ms: int, *, is_copy: bool = False) -> None:
    """Write all these records or none. `now_ms` is the time of those without a timestamp. `is_copy`: as
    `Producer.produce`. Raises `InvalidArgumentError` for a wrong key, value or partition."""
    rows = _rows(log, topic, records, now_ms, is_copy=is_copy)
    with closing(log.producer()) as producer:
        _produce(producer, rows, is_copy=is_copy)
        producer.flush()


def _rows(log: Log, topic: Topic, records: Iterable[Record], now_ms: int, *, is_copy: bool = False) -> list[_Row]:
    if isinstance(records, Record) or not isinstance(records, Iterable):
        raise InvalidArgumentError(f"{shown(records)} are no records: give a list of Record(key, value).")
    rows = [(_encoded(topic, record, now_ms, is_copy=is_copy), record.partition) for record in records]
    with closing(log.admin()) as admin:
        count = admin.topics([topic.name])[topic.name].partitions
    numbers = [number for _, number in rows if number is not None]
    if beyond := [number for number in numbers if not isinstance(number, int) or not 0 <= number < count]:
        raise InvalidArgumentError(f"{topic.name!r} has no partition {beyond[0]!r}: 0 to {count - 1} are there.")
    return rows


def _encoded(topic: Topic, record: Record, now_ms: int, *, is_copy: bool) -> OutputRecord:
    if not isinstance(record, Record):
        raise InvalidArgumentError(f"{shown(record)} is no Record: give Record(key, value).")
    output, at = Output(topic), now_ms if record.timestamp_ms is None else record.timestamp_ms
    output.record_starts(at if is_copy and type(at) is int else checked_timestamp(at))
    try:
        output.forward(record.key, record.value, headers=record.headers)
    except InvalidArgumentError as error:
        types = f"keys of type {topic.key.name} and values of type {topic.value.name}"
        raise InvalidArgumentError(f"{topic.name!r} has {types}: {error}") from error
    return output.take()[0]


def _produce(producer: Producer, rows: Iterable[_Row], *, is_copy: bool = False) -> None:
    for (name, key, value, timestamp_ms, headers, where, _), number in rows:
        producer.produce(
            name, key, value, timestamp_ms=timestamp_ms, headers=headers, partition=number, partition_key=where,
            is_copy=is_copy,
        )  # fmt: skip


class _EpochWriter:
    """Writes rows of pipelines with whole epochs, as a sink does: each write is one micro-batch, with its marker."""

    def __init__(self, topology: Topology) -> None:
        self._epochs_of = {topic: epochs for epochs, results in topology.whole_epochs().items() for topic in results}
        self._ends: dict[str, dict[str, dict[str, int]]] = {}  # topic of markers → result → partition → last offset
        self._batches = 0

    def writes(self, topic: str) -> bool:
        return topic in self._epochs_of

    def write(self, log: Log, topic: str, rows: Sequence[_Row]) -> None:
        """Write these rows, and the micro-batch's ends, in one transaction."""
        epochs = self._epochs_of[topic]
        ends = self._ends.setdefault(epochs, {}).setdefault(topic, {})
        with closing(log.producer(_WRITER)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            _produce(producer, rows)
            ends |= {str(place.partition): offset for place, offset in producer.flush().items()}
            marker = EpochMarker(_WRITER, self._batches, (), len(rows), {}, self._ends[epochs])
            producer.produce(epochs, _WRITER.encode(), marker.encode(), timestamp_ms=machine_now_ms())
            producer.commit_transaction()
        self._batches += 1


class TopicWriter:
    """Writes to the topics that a worker of this application reads. One thread uses it."""

    def __init__(self, topology: Topology) -> None:
        read = [topic for subtopology in topology.subtopologies for topic in subtopology.sources]
        read += [each.source for each in topology.global_tables.values() if each.source is not None]
        self._topics = {topic.name: topic for topic in read}
        self._of_pipelines = {topic.name: p.name for p in topology.pipelines.values() for topic in p.inputs}
        self._epochs = _EpochWriter(topology)

    def write(
        self, log: Log, topic: str | Topic, records: Iterable[Record], now_ms: int, *, as_bytes: bool = False
    ) -> None:
        """`write` to a topic that a worker reads. `as_bytes`: keys and values are written as they are. Raises
        `DoesNotExistError` for other topics, too."""
        to = self._topic(_name("pipe", topic))
        to = replace(to, key=serdes.bytes, value=serdes.bytes) if as_bytes else to
        if self._epochs.writes(to.name):
            self._epochs.write(log, to.name, _rows(log, to, records, now_ms))
        else:
            write(log, to, records, now_ms, is_copy=as_bytes)

    def _topic(self, name: str) -> Topic:
        if name in self._topics:
            return self._topics[name]
        if name in self._of_pipelines:
            raise DoesNotExistError(
                f"{name!r} is read by the pipeline {self._of_pipelines[name]!r} alone, which Spark runs: give its rows "
                "to run_pipeline."
            )
        raise DoesNotExistError(f"No worker of this application reads {name!r}; it reads {_listed(self._topics)}.")


class TopicReader:
    """Reads topics of the application, each record once. One thread uses it."""

    def __init__(self, topology: Topology) -> None:
        self._topics = topology.topics_known()
        self._next: dict[TopicPartition, int] = {}

    def read(self, log: Log, topic: str | Topic) -> list[Record]:
        """Return the records that were committed since the last call, by partition and offset. Raises
        `DoesNotExistError` for a topic that the application does not have."""
        name = _name("read", topic)
        if name not in self._topics:
            raise DoesNotExistError(f"This application has no topic {name!r}; it has {_listed(self._topics)}.")
        return [_typed(self._topics[name], record) for record in self._raw(log, name)]

    def dead_letters(self, log: Log, topic: str) -> list[DeadLetter]:
        """`read` the dead-letter topic."""
        return [_dead_letter(record) for record in self._raw(log, topic)]

    def _raw(self, log: Log, topic: str) -> list[interface.Record]:
        found: list[interface.Record] = []
        with closing(log.admin()) as admin, closing(log.consumer()) as consumer:
            count = admin.topics([topic])[topic].partitions
            ends = admin.committed_ends(TopicPartition(topic, number) for number in range(count))
            consumer.assign({source: self._next.get(source, 0) for source in ends})
            while any((consumer.next_offset(source) or 0) < end for source, end in ends.items()):
                found += consumer.poll(_AT_A_TIME, 0.0)
            self._next |= {source: max(end, self._next.get(source, 0)) for source, end in ends.items()}
        return sorted(found, key=lambda record: (record.partition, record.offset))


def _name(what: str, topic: str | Topic) -> str:
    if not isinstance(topic, str | Topic):
        raise wrong_kind(what, topic, "topic")
    return topic if isinstance(topic, str) else topic.name


def _typed(topic: Topic, record: interface.Record) -> Record:
    key = None if record.key is None else topic.key.deserialize(record.key)
    value = None if record.value is None else topic.value.deserialize(record.value)
    return Record(key, value, record.timestamp_ms, record.headers, record.partition)


def _dead_letter(record: interface.Record) -> DeadLetter:
    said = {name: (value or b"").decode() for name, value in record.headers if name.startswith(DEAD_LETTER)}
    topic, partition, offset, error, message = (
        said[f"{DEAD_LETTER}{name}"] for name in ("topic", "partition", "offset", "exception", "message")
    )
    return DeadLetter(
        topic, int(partition), int(offset), record.key, record.value, record.timestamp_ms, error, message,
        record.headers,
    )  # fmt: skip


def _listed(topics: Mapping[str, Topic]) -> str:
    return ", ".join(sorted(topics)) or "none"
