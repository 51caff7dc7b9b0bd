"""A Kafka Streams application on a real broker, killed on its way, and its stores in an application of ours: the input,
and the rows of both sides in one form."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from stateline import serdes, stores
from stateline.client import Client
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.interface import Admin, Headers
from stateline.log.kafka import KafkaLog
from stateline.model.store_definition import StoreDefinition
from stateline_store import Position, TopicPartition
from stateline_store.rows.windowed_keys import split_session_key, split_window_key, window_key
from support.kafka.java_streams import (
    DIFFERENCE_MS,
    GAP_MS,
    GRACE_MS,
    HISTORY_MS,
    PEERS,
    SIZE_MS,
    WITH_HEADERS,
    JavaStreams,
    Row,
)
from support.processes.running_worker import configured, create, eventually, produce, read_all, running
from support.processes.served_here import served_here

PARTITIONS = 2
KEPT = ("table", "count", "plain", "tumbling", "plainwindow", "session", "versioned", "duplicates")
INPUTS = ("events", "table", "versioned")
KEYS = [*(f"key-{number}" for number in range(11)), "ключ"]
BEGIN_MS = 1_700_000_000_000
# In one transaction with nothing else, and aborted: nobody may ever see it.
PHANTOM = "phantom"

# The broker deletes what is older, by its own clock, from changelogs of windows: the records here are of 2023.
MORE_RETENTION_MS = 100 * 365 * 24 * 3_600_000
_JAVA = {"commit.interval.ms": 100, "windowstore.changelog.additional.retention.ms": MORE_RETENTION_MS}
# What each of Java's lives works under that SIGKILL ends.
_KILLED = ("at_least_once", "exactly_once_v2")
_FED = 1_200 // (1 + len(_KILLED))  # records of each topic, before and in each of these lives
_COUNTS: dict[str, Any] = {"key": serdes.string, "value": serdes.int64}
_TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def declarations(*, headers: bool = False) -> list[StoreDefinition]:
    """The stores as Java has them (`KeptStores.java`). With `dsl.store.format=HEADERS` those of the DSL keep headers,
    unless they were given a supplier of their own."""
    windows: dict[str, Any] = {**_COUNTS, "size": _ms(SIZE_MS), "retention": _ms(SIZE_MS + GRACE_MS)}
    within: dict[str, Any] = {"size": _ms(2 * DIFFERENCE_MS), "retention": _ms(2 * DIFFERENCE_MS + GRACE_MS)}
    return [
        stores.timestamped_key_value("table", headers=headers, **_TEXTS),
        stores.timestamped_key_value("count", headers=headers, **_COUNTS),
        stores.key_value("plain", **_COUNTS),
        stores.window("tumbling", timestamped=True, headers=headers, **windows),
        stores.window("plainwindow", **windows),
        stores.session("session", retention=_ms(GAP_MS + GRACE_MS), headers=headers, **_COUNTS),
        stores.versioned("versioned", history=_ms(HISTORY_MS), **_TEXTS),
        stores.window("duplicates-this-join-store", retain_duplicates=True, **_TEXTS, **within),
    ]


def records(topic: str, seed: int, first: int, count: int) -> Iterator[tuple[bytes, bytes | None, int, Headers]]:
    """Input in the order of its offsets: late and out of order, with tombstones in tables and nulls among events. Most
    have headers: one, none, or some with a name twice, without a value, and named as a Position's are."""
    rng = random.Random(f"{topic} {seed}")
    for number in range(first, first + count):
        late_ms = rng.choice((0, 0, 0, 0, rng.randrange(5_000), rng.randrange(100_000)))
        absent = rng.random() < (0.03 if topic == "events" else 0.15)
        at_ms = BEGIN_MS + number * 300 - late_ms
        own: Headers = (("of", f"{topic}-{number}".encode()), ("é", None), ("of", b""), ("v", b"\0"))[: number % 5]
        yield rng.choice(KEYS).encode(), None if absent else f"{topic}-{number}".encode(), at_ms, own


@dataclass
class Scene:
    """What is left when Java has stopped: its rows, and ours still served."""

    log: KafkaLog
    java: JavaStreams
    client: Client
    dumps: dict[str, list[Row]]
    with_aborted: set[bytes]
    """The keys in the changelog of `count`, aborted ones too, as soon as some were: compaction removes them."""
    declared: dict[str, StoreDefinition]

    def changes(self, store: str) -> list[Record]:
        """Every visible record of a store's changelog."""
        return read_all(self.log, self.java.changelog(store), PARTITIONS)


def end_of(records: Iterable[Record]) -> Position:
    """Of the last of these records in each partition."""
    return Position.of({TopicPartition(r.topic, r.partition): r.offset for r in records})


@contextmanager
def scene(servers: str, javas: str, directory: Path) -> Iterator[Scene]:
    """Java, with stores of this kind, has worked off the input in several lives. All but the last were ended by
    SIGKILL: with at_least_once, and then with exactly_once_v2."""
    run = f"java-state-{javas.replace(' ', '-')}"
    declared = declarations(headers=javas == WITH_HEADERS)
    inputs = {topic: f"{run}-{topic}" for topic in INPUTS}
    with ExitStack() as stack:
        log = stack.enter_context(closing(KafkaLog(servers)))
        create(log, dict.fromkeys(inputs.values(), PARTITIONS))
        (directory / "java").mkdir()
        java = stack.enter_context(
            JavaStreams(
                servers,
                f"{run}-java",
                KEPT,
                directory / "java",
                prefix=f"{run}-",
                partitions=PARTITIONS,
                settings={**_JAVA, **PEERS[javas]},
            )
        )
        java.start(_under(_KILLED[0]))
        app = App(f"{run}-http")
        for definition in declared:
            app.external_store(definition, of=java.application_id)
        stack.enter_context(running(app, configured(app, directory / "state"), log))
        here = stack.enter_context(served_here(directory / "state", f"bootstrap.servers={servers}", app=app))
        with closing(log.admin()) as admin:
            with_aborted = _work_off(log, admin, java, inputs)
        dumps = {definition.name: java.dump(definition.name, KEYS) for definition in declared}
        java.stop()
        client = stack.enter_context(Client(str(here.client.base_url)))
        yield Scene(log, java, client, dumps, with_aborted, {definition.name: definition for definition in declared})


def _work_off(log: KafkaLog, admin: Admin, java: JavaStreams, inputs: Mapping[str, str]) -> set[bytes]:
    """Java runs; returns when it has committed all of the input. What comes back is `Scene.with_aborted`."""
    partitions = [TopicPartition(topic, p) for topic in inputs.values() for p in range(PARTITIONS)]
    changelogs = [TopicPartition(java.changelog("count"), p) for p in range(PARTITIONS)]

    def has_committed() -> bool:
        ends = {p: admin.log_end(p) for p in partitions}
        # Kafka Streams keeps bytes of its own with each offset.
        with_notes = admin.committed_with_notes(java.application_id, partitions)
        assert all(note.fed is None for _, note in with_notes.values())
        return admin.committed(java.application_id, partitions) == ends

    def written() -> int:
        return sum(admin.log_end(changelog) for changelog in changelogs)

    def feed_and_kill(first: int) -> None:
        before = written()
        feed(log, inputs, first, _FED)
        eventually(lambda: written() > before, "Java writes what it has processed")
        java.kill()
        java.lose_stores()

    feed(log, inputs, 0, _FED)
    eventually(has_committed, "Java has committed something")
    feed_and_kill(_FED)
    for life, guarantee in enumerate(_KILLED[1:], 2):
        java.start(_under(guarantee))
        eventually(has_committed, "Java has committed what it was killed in")
        feed_and_kill(life * _FED)
    abort(log, java)
    with_aborted = everything(log.bootstrap_servers, java.changelog("count"))
    # With a record cache Java shows windows that its store has dropped.
    java.start({**_under("exactly_once_v2"), "statestore.cache.max.bytes": 0})
    eventually(has_committed, "Java has committed everything")
    return with_aborted


def _under(guarantee: str) -> dict[str, object]:
    return {"processing.guarantee": guarantee}


def everything(servers: str, topic: str) -> set[bytes]:
    """Every key of the first partition of a topic, of open and aborted transactions too."""
    settings = {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": "read_uncommitted"}
    with closing(Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})) as consumer:
        consumer.assign([Place(topic, 0, 0)])
        found: set[bytes] = set()
        for _ in range(100_000):
            message = consumer.poll(20)
            assert message is not None, "nothing comes"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            found.add(bytes(message.key()))  # type: ignore[arg-type] # text only with a deserializer
    return found


def feed(log: KafkaLog, inputs: Mapping[str, str], first: int, count: int) -> None:
    """Write some of the input, topic by topic."""
    for kind, topic in inputs.items():
        produce(log, topic, records(kind, 1, first, count))


def abort(log: KafkaLog, java: JavaStreams) -> None:
    """Write what could stand in two of the changelogs, flush it, and abort it."""
    key, one = PHANTOM.encode(), (1).to_bytes(8, "big")
    with closing(log.producer(f"{java.application_id}-phantom")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for store, row in (("count", key), ("tumbling", window_key(key, BEGIN_MS - BEGIN_MS % SIZE_MS))):
            for name in (row, *(_of(row, other) for other in KEYS)):
                producer.produce(java.changelog(store), name, one, timestamp_ms=BEGIN_MS, partition=0)
        producer.flush()
        producer.abort_transaction()


def _of(row: bytes, other: str) -> bytes:
    """The same row of another key."""
    return row.replace(PHANTOM.encode(), other.encode())


def of_java(definition: StoreDefinition, rows: Iterable[Row], stream_time_ms: int) -> list[tuple[Any, ...]]:
    """Java's rows of a partition, in the form of `of_http`. A versioned store shows there also what it has not deleted
    yet of the time before its history."""
    since_ms = stream_time_ms - definition.retention_ms
    if definition.kind == "versioned":
        rows = [row for row in rows if row.valid_to_ms is None or row.valid_to_ms > since_ms]
    return sorted((_row_of_java(definition, row) for row in rows), key=repr)


def _row_of_java(definition: StoreDefinition, row: Row) -> tuple[Any, ...]:
    value, at_ms = definition.value.deserialize(row.value), row.timestamp_ms
    headers = row.headers if definition.headers else None
    match definition.plain_kind:
        case "window":
            key, start_ms, _ = split_window_key(row.key)
            return key.decode(), start_ms, value, at_ms if definition.timestamped else None, headers
        case "session":
            session = split_session_key(row.key)
            return session.key.decode(), session.start_ms, session.end_ms, value, headers
        case "versioned":
            return row.key.decode(), at_ms, value, row.valid_to_ms
        case _:  # Java's record cache has timestamps that its store has not
            return row.key.decode(), value, at_ms if definition.timestamped else None, headers


def of_http(client: Client, definition: StoreDefinition, partition: int, bound: Position) -> list[tuple[Any, ...]]:
    """The rows of one partition of a store, committed and not before this position; sorted."""
    terms: dict[str, Any] = {"isolation_level": "read_committed", "wait_ms": 20_000}
    store = client.store(definition.name, bound=bound, partitions=[partition], **terms)
    found: list[tuple[Any, ...]]
    match definition.plain_kind:
        case "window":
            found = [(row.key, row.start, row.value, row.timestamp, row.headers) for row in store.all_windows()]
        case "session":
            rows = [(key, row) for key in KEYS for row in store.sessions(key)]
            found = [(key, row.start, row.end, row.value, row.headers) for key, row in rows]
        case "versioned":
            found = [(key, row.timestamp, row.value, row.valid_to) for key in KEYS for row in store.versions(key)]
        case _:
            found = [(row.key, row.value, row.timestamp, row.headers) for row in store.range()]
    return sorted(found, key=repr)
