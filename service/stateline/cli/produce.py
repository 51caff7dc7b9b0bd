"""`stateline produce`: records from standard input into a topic of the application's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import orjson

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log.embedded_producer import MAX_MESSAGE_BYTES
from stateline.model.record_size import max_plain_bytes
from stateline.model.topic import Topic
from stateline.serde.plain import Serde, shown
from stateline_store import DoesNotExistError, InvalidArgumentError, Position
from stateline_store.clock import now_ms


def produce(app: App, config: Config, topic_name: str, lines: Iterable[str]) -> str:
    """Write ``key<TAB>value`` lines in one go; their Position as JSON, ready to be a query's `position_bound`.

    Raises `InvalidArgumentError` naming the line that is not of that form, that its topic's serdes cannot read, or that
    is too large; nothing is written then. The Position is empty when there are no lines.
    """
    topic = declared_topic(app, topic_name)
    records = list(parsed(topic, lines, most_bytes(config)))
    if not records:
        return "{}"
    now = now_ms()
    with closing(configured_log(config)) as log, closing(log.producer()) as producer:
        for key, value in records:
            producer.produce(topic.name, key, value, timestamp_ms=now)
        written = producer.flush()
    return orjson.dumps(Position.of(written).to_json()).decode()


def declared_topic(app: App, name: str) -> Topic:
    """The topic as the application declares it. Raises `DoesNotExistError` naming those that there are, and
    `InvalidArgumentError` for the changelog of another application."""
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
    """What a key and a value may have together; a topic of a broker may have a lower limit of its own."""
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        return MAX_MESSAGE_BYTES
    return max_plain_bytes(config.producer)


def parsed(topic: Topic, lines: Iterable[str], at_most: int) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, value) of each line; a value of nothing deletes the key. Empty lines are left out."""
    for number, line in enumerate(lines, start=1):
        key, tab, value = line.rstrip("\r\n").partition("\t")
        if not key and not tab:
            continue
        if not tab:
            raise InvalidArgumentError(
                f"Line {number}: no tab between key and value in {shown(key)}; to delete a key write key, tab, nothing."
            )
        key_bytes = _read(topic.key, key, f"Line {number}, key")
        record = key_bytes, _read(topic.value, value, f"Line {number}, value") if value else None
        if (size := len(record[0]) + len(record[1] or b"")) > at_most:
            raise InvalidArgumentError(
                f"Line {number}: key and value have {size} bytes together, and the log takes {at_most}: make it "
                "smaller. (Kafka takes more if producer.message.max.bytes and the topic's max.message.bytes say so.)"
            )
        yield record


def _read(serde: Serde, text: str, where: str) -> bytes:
    try:
        return serde.parse_text(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where} ({serde.name}): {error}") from error
