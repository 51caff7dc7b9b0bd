"""`stateline produce`: write records of files or of standard input to a topic."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import orjson

from stateline.cli.progress import Progress
from stateline.cli.records.produced_lines import LineReader, Lines, sources
from stateline.cli.records.record_json import FORMATS, Format, NewRecord, read_timestamp
from stateline.cli.target import word_of
from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded_producer import MAX_MESSAGE_BYTES
from stateline.log.interface import Headers, Producer
from stateline.model.record_size import max_plain_bytes
from stateline.model.topic import Topic
from stateline.serde.plain import shown
from stateline.serde.windowed import partition_key
from stateline_store import DoesNotExistError, InvalidArgumentError, Position
from stateline_store.clock import now_ms

logger = logging.getLogger(__name__)

OnError: TypeAlias = Literal["stop", "skip"]
_ON_ERROR: tuple[OnError, ...] = ("stop", "skip")


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Defaults for all records. A line's own members override them. `headers` come before the line's own."""

    format: Format = "text"
    on_error: OnError = "stop"
    timestamp_ms: int | None = None
    headers: Headers = ()
    partition: int | None = None


@dataclass(slots=True)
class ProduceResult:
    """`position` covers all written records, as JSON for a query's `position_bound`."""

    position: str = "{}"
    records: int = 0
    left_out: int = 0
    took_s: float = 0.0
    partitions: set[int] = field(default_factory=set)

    def summary(self, topic: str) -> str:
        if not self.records and not self.left_out:
            return "The input was empty: nothing was written."
        count = len(self.partitions)
        where = f", {count} partition{'' if count == 1 else 's'}" if count else ""
        left = f"; {self.left_out:,} lines left out" if self.left_out else ""
        records = f"{self.records:,} record{'' if self.records == 1 else 's'}"
        return f"Written to {topic}: {records}{where}, {self.took_s:.1f} s{left}."


def terms_of(
    format_: str, on_error: str, timestamp: str | None, headers: Sequence[str], partition: int | None
) -> ProduceOptions:
    """Read the options. Raises `InvalidArgumentError` with the option and its value."""
    form, then = word_of("--format", format_, FORMATS), word_of("--on-error", on_error, _ON_ERROR)
    pairs = [each.partition("=") for each in headers]
    for name, equals, value in pairs:
        if not name or not equals:
            raise InvalidArgumentError(f"--header {shown(name + value)}: NAME=VALUE is accepted.")
    try:
        at = None if timestamp is None else read_timestamp(timestamp)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--{error}") from error
    return ProduceOptions(form, then, at, [(name, value.encode()) for name, _, value in pairs], partition)


def produce(
    app: App,
    config: Config,
    topic_name: str,
    files: Sequence[str] = (),
    terms: ProduceOptions = ProduceOptions(),  # immutable
    standard_input: Iterable[str] = (),
) -> ProduceResult:
    """Write the records of these files, or of standard input if there are none.

    Raises `InvalidArgumentError` with file and line for a line that is no record, a value that the serde refuses, a
    record that is too large, or a partition that the topic does not have. Nothing is written then. With `on_error` skip
    it logs such lines and leaves them out. Raises `DoesNotExistError` if the topic does not exist.
    """
    topic, began_s = declared_topic(app, topic_name), time.monotonic()
    reading = _Reading(sources(files, standard_input), LineReader(topic, terms.format, most_bytes(config)), terms)
    found = ProduceResult()
    named: dict[int, str] = {}  # partition → the first line that asks for it
    for place, record in reading.records("Reading", found):
        found.records += 1
        named.setdefault(-1 if (partition := _partition_of(record, terms)) is None else partition, place)
    if found.records:
        with closing(configured_log(config)) as log:
            count = (
                _partitions(log, topic.name) if named.keys() - {-1} else sys.maxsize
            )  # the producer chooses, and asks for the count itself
            refused = [f"{named[each]}: {_no_partition(topic.name, each, count)}" for each in named if each >= count]
            if refused and terms.on_error == "stop":
                raise InvalidArgumentError(refused[0])
            with closing(log.producer()) as producer:
                _write(producer, topic, reading, found, count)
    found.took_s = time.monotonic() - began_s
    return found


def _write(producer: Producer, topic: Topic, reading: _Reading, found: ProduceResult, count: int) -> None:
    terms, at = reading.terms, now_ms() if reading.terms.timestamp_ms is None else reading.terms.timestamp_ms
    found.records = 0
    for place, record in reading.records("Writing", None):
        partition = _partition_of(record, terms)
        if partition is not None and partition >= count:
            _leave_out(found, f"{place}: {_no_partition(topic.name, partition, count)}")
            continue
        stamp, headers = at if record.timestamp_ms is None else record.timestamp_ms, (*terms.headers, *record.headers)
        producer.produce(
            topic.name,
            record.key,
            record.value,
            timestamp_ms=stamp,
            headers=headers,
            partition=partition,
            partition_key=partition_key(topic.key, record.key),
            is_copy=record.is_copy,
        )
        found.records += 1
    written = producer.flush()
    found.position = orjson.dumps(Position.of(written).to_json()).decode()
    found.partitions = {partition.partition for partition in written}


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads the lines, once to check them and once to write them."""

    sources: Sequence[Lines]
    reader: LineReader
    terms: ProduceOptions

    def records(self, what: str, found: ProduceResult | None) -> Iterator[tuple[str, NewRecord]]:
        """Yield each record with its place. A bad line raises, or is left out. If `found` is given, it is counted and
        logged."""
        sizes = [each.size for each in self.sources]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        done, records, progress = 0, 0, Progress(sys.stderr, what, total)
        with closing(progress):
            for source in self.sources:
                for number, line in enumerate(source.open(), start=1):
                    done += len(line)
                    try:
                        record = self.reader.read(line)
                    except InvalidArgumentError as error:
                        joint = ", " if str(error).startswith(("key (", "value (")) else ": "
                        said = f"{source.place(number)}{joint}{error}"
                        if self.terms.on_error == "stop":
                            raise InvalidArgumentError(said) from error
                        if found is not None:
                            progress.close()
                            _leave_out(found, said)
                        continue
                    if record is not None:
                        records += 1
                        yield source.place(number), record
                    progress.show(records, done)


def _partition_of(record: NewRecord, terms: ProduceOptions) -> int | None:
    return terms.partition if record.partition is None else record.partition


def _no_partition(topic: str, partition: int, count: int) -> str:
    return f"{topic} has no partition {partition}: it has {count}, numbered from 0 on."


def _leave_out(found: ProduceResult, why: str) -> None:
    found.left_out += 1
    logger.warning("Left out: %s", why)


def _partitions(log: Log, topic: str) -> int:
    with closing(log.admin()) as admin:
        found = admin.topics([topic])
    if topic not in found:
        raise DoesNotExistError(
            f"There is no topic {topic!r} yet: create it, as `stateline topics MODULE:APP --create` does."
        )
    return found[topic].partitions


def declared_topic(app: App, name: str) -> Topic:
    """The topic as declared. Raises `DoesNotExistError` with the declared ones, and `InvalidArgumentError` for the
    changelog of another application."""
    topics = app.topology().topics_read()
    if name not in topics:
        raise DoesNotExistError(
            f"The application reads no topic {name!r}: it reads {', '.join(topics) or 'none'}. A topic is read once a "
            "table, a stream or a processor is made of it."
        )
    if (owner := topics[name].external) is not None:
        raise InvalidArgumentError(
            f"{name!r} is a changelog of Kafka Streams application {owner!r}, and read only here: write to a topic "
            "that the application reads."
        )
    return topics[name]


def most_bytes(config: Config) -> int:
    """The limit of key and value together. A broker's topic may have a lower one."""
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        return MAX_MESSAGE_BYTES
    return max_plain_bytes(config.producer)
