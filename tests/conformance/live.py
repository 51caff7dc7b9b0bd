"""The same input through a Kafka Streams application and through `stateline worker` on one broker, and what each made
of it in one form: rows and changelogs as dicts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import live_app
from conformance.live_input import PARTITIONS, RECORDS, VARIABLE, Input
from stateline.client import Client
from stateline.dsl.app import App
from stateline.log.interface import Admin
from stateline.log.kafka import KafkaLog
from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import as_they_are, own_headers
from stateline_store import Position, TopicPartition
from stateline_store.rows.windowed_keys import split_session_key, split_window_key
from support import TESTS
from support.kafka.java_streams import FORMAT, PEERS, WITH_HEADERS, JavaStreams, Row
from support.processes.forked import Forked
from support.processes.running_worker import eventually
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

SHOWN = 10  # differences

# A long run may take its time to get fast: Java to compile, both for longer transactions.
_IS_LONG = RECORDS > 100_000
_PATIENCE_S = HANGING_S + RECORDS / 500
_LONG_RUN = ("-Xmx1g", "-XX:+UseSerialGC")
_COMMIT_INTERVAL_MS = 1_000 if _IS_LONG else 100
# A record cache would show windows that the store has dropped.
_JAVA = {"commit.interval.ms": _COMMIT_INTERVAL_MS, "statestore.cache.max.bytes": 0}

Rows = dict[Any, Any]


@dataclass
class Sides:
    """Both have committed all of the input; Java runs, and ours is served."""

    log: KafkaLog
    admin: Admin
    given: Input
    java: JavaStreams
    app: App
    client: Client
    our_settings: dict[str, str]
    compacted: dict[str, Rows] = field(default_factory=dict)

    def definition(self, store: str) -> StoreDefinition:
        return self.app.topology().stores[store]

    def our_changelog(self, store: str) -> str:
        """The topic that has our store's changes: a table's is its input."""
        changelog = self.definition(store).changelog(self.app.application_id)
        assert changelog is not None
        return changelog

    def changelogs(self, store: str) -> tuple[Rows, Rows]:
        """Java's changelog of a store and ours, as compaction may leave them: (partition, key) → (value, timestamp,
        headers) of the last record. Without headers there are no tombstones: theirs have other times. Of a versioned
        store (partition, key, timestamp) → (value, None) of the last record of that timestamp."""
        theirs, ours = (
            self._compacted(topic, store) for topic in (self.java.changelog(store), self.our_changelog(store))
        )
        return theirs, ours

    def _compacted(self, topic: str, store: str) -> Rows:
        if topic not in self.compacted:
            self.compacted[topic] = _compacted(self.log, self.admin, topic, self.definition(store))
        return self.compacted[topic]

    def settings(self, topic: str) -> dict[str, str]:
        """Every setting of a topic, those that nobody has set included."""
        return self.admin.topic_settings([topic])[topic]

    def rows_of_java(self, store: str) -> Rows:
        """What Java answers of a store, in the form of `our_rows`. Of a versioned one it still shows what it has not
        deleted yet of the time before the history."""
        definition = self.definition(store)
        rows = self.java.dump(store, self.given.keys)
        if definition.kind == "versioned":
            ages_ms = dict.fromkeys(range(PARTITIONS), 0)
            for partition, _, at_ms in self._compacted(self.java.changelog(store), store):
                ages_ms[partition] = max(ages_ms[partition], at_ms)
            since_ms = {partition: at_ms - definition.retention_ms for partition, at_ms in ages_ms.items()}
            rows = [row for row in rows if row.valid_to_ms is None or row.valid_to_ms > since_ms[row.partition]]
        found = dict(_row_of_java(definition, row) for row in rows)
        assert len(found) == len(rows), "Java has a key in two partitions"
        return found

    def our_rows(self, store: str) -> Rows:
        """What our server answers of a store: key → (value, timestamp, headers), of windows by (key, start), of
        sessions by (key, start, end) and without timestamps, of versions (key, timestamp) → (value, valid to, None)."""
        definition = self.definition(store)
        subtopology = self.app.topology().subtopology_of(store)
        ends = self.given.ends_of(
            topic for topic in subtopology.sources if store in subtopology.stores_fed_by(topic.name)
        )
        bound = Position.of({place: end - 1 for place, end in ends.items()})
        asked = self.client.store(store, bound=bound, isolation_level="read_committed", wait_ms=20_000)
        match definition.plain_kind:
            case "window":
                return {(row.key, row.start): (row.value, row.timestamp, row.headers) for row in asked.all_windows()}
            case "session":
                found = ((key, row) for key in self.given.keys for row in asked.sessions(key))
                return {(key, row.start, row.end): (row.value, None, row.headers) for key, row in found}
            case "versioned":
                each = ((key, row) for key in self.given.keys for row in asked.versions(key))
                return {(key, row.timestamp): (row.value, row.valid_to, None) for key, row in each}
            case _:
                return {row.key: (row.value, row.timestamp, row.headers) for row in asked.range()}


def _row_of_java(definition: StoreDefinition, row: Row) -> tuple[Any, Any]:
    value, at_ms = definition.value.deserialize(row.value), row.timestamp_ms
    match definition.plain_kind:
        case "window":
            key, start_ms, _ = split_window_key(row.key)
            return (key.decode(), start_ms), (value, at_ms, row.headers)
        case "session":
            session = split_session_key(row.key)
            return (session.key.decode(), session.start_ms, session.end_ms), (value, None, row.headers)
        case "versioned":
            return (row.key.decode(), at_ms), (value, row.valid_to_ms, None)
        case _:
            return row.key.decode(), (value, at_ms, row.headers)


def _compacted(log: KafkaLog, admin: Admin, topic: str, definition: StoreDefinition) -> Rows:
    own = own_headers if topic.endswith("-changelog") else as_they_are
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = {place: admin.watermarks(place)[1] for place in places}
    found: Rows = {}
    with closing(log.consumer()) as consumer:
        consumer.assign(dict.fromkeys(places, 0))

        def at_end() -> bool:
            for record in consumer.poll(10_000, 0.05):
                if record.key is None:
                    continue  # of an input topic: no store takes it
                name = record.partition, record.key
                if definition.kind == "versioned":
                    found[(*name, record.timestamp_ms)] = record.value, None
                elif definition.headers:
                    found[name] = record.value, record.timestamp_ms, tuple(own(record.headers))
                elif record.value is None:
                    found.pop(name, None)
                else:
                    found[name] = record.value, record.timestamp_ms, None
            return all((consumer.next_offset(place) or 0) >= end for place, end in ends.items())

        eventually(at_end, f"{topic} is read", _PATIENCE_S)
    return found


def difference(theirs: Rows, ours: Rows) -> str:
    """The first keys that the two do not agree on, with both values; empty when they are equal."""
    if theirs == ours:
        return ""
    others = sorted((key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key)), key=repr)
    rows = [f"{key}: Java has {theirs.get(key, 'nothing')}, ours {ours.get(key, 'nothing')}" for key in others[:SHOWN]]
    return "\n".join([f"{len(others)} of {len({*theirs, *ours})} keys differ:", *rows])


def difference_of_stores(store: str, theirs: Rows, ours: Rows) -> str:
    """The difference of two stores or changelogs, whose entries end with headers. Two are known and left out, both of
    operators' stores in Kafka Streams 4.4.0. Their values have empty headers; their deletes have the record's. They log
    a delete of what was absent, or came and went between two of our commits."""
    if store in live_app.NOTED or not any(entry[-1] for entry in ours.values()):
        return difference(theirs, ours)
    their_rows, our_rows = ({k: row[:-1] for k, row in rows.items() if row[0] is not None} for rows in (theirs, ours))
    assert {theirs[key][-1] for key in their_rows} <= {None, ()}, "an operator of Java's has written headers"
    end = 1 if store == "tablejoin" else None  # which logs the delete of an absent key anew
    their_deletes, our_deletes = (
        {key: row[:end] for key, row in rows.items() if row[0] is None and key in ours} for rows in (theirs, ours)
    )
    return difference({**their_rows, **their_deletes}, {**our_rows, **our_deletes})


@contextmanager
def both_sides(
    servers: str,
    given: Input,
    guarantee: str,
    javas: str,
    directory: Path,
    stores: Sequence[str] = tuple(live_app.STORES),
) -> Iterator[Sides]:
    """Java, with stores of this kind, and a worker have processed the input, each under its own application.id."""
    ours, theirs = (f"{given.prefix}{guarantee}-{javas.replace(' ', '-')}-{side}" for side in ("ours", "java"))
    our_settings = {FORMAT: "HEADERS"} if javas == WITH_HEADERS else {}
    with ExitStack() as stack:
        log = stack.enter_context(closing(KafkaLog(servers)))
        admin = stack.enter_context(closing(log.admin()))
        (directory / "java").mkdir(parents=True)
        java = stack.enter_context(_java(servers, theirs, given.prefix, directory / "java", stores))
        worker = stack.enter_context(_worker(servers, ours, given.prefix, guarantee, directory, our_settings, stores))
        java.start({"processing.guarantee": guarantee, **PEERS[javas]})
        app = live_app.build(ours, given.prefix, stores)
        ends = given.ends_of(topic for subtopology in app.topology().subtopologies for topic in subtopology.sources)

        def have_committed() -> bool:
            assert worker.poll() is None, (directory / "worker.log").read_text()[-4000:]
            return all(admin.committed(group, ends) == ends for group in (theirs, ours))

        eventually(have_committed, "both have committed everything", _PATIENCE_S)
        settings = [f"{name}={value}" for name, value in {"bootstrap.servers": servers, **our_settings}.items()]
        here = stack.enter_context(served_here(directory / "state", *settings, app=app))
        client = stack.enter_context(Client(str(here.client.base_url)))
        yield Sides(log, admin, given, java, app, client, our_settings)


def _java(servers: str, application_id: str, prefix: str, directory: Path, stores: Sequence[str]) -> JavaStreams:
    options: dict[str, Any] = {"java_options": _LONG_RUN} if _IS_LONG else {}
    return JavaStreams(
        servers,
        application_id,
        stores,
        directory,
        prefix=prefix,
        partitions=PARTITIONS,
        settings=_JAVA,
        **options,
    )


@contextmanager
def _worker(
    servers: str,
    application_id: str,
    prefix: str,
    guarantee: str,
    directory: Path,
    more: Mapping[str, str],
    stores: Sequence[str],
) -> Iterator[Forked]:
    settings = {
        "bootstrap.servers": servers,
        "processing.guarantee": guarantee,
        "state.dir": directory / "state",
        "commit.interval.ms": _COMMIT_INTERVAL_MS,
        # With it, each change of a table goes on, as without Java's cache: no group is left out that had a row.
        "processing.exception.handler": "skip",
        **more,
    }
    command = ["worker", "conformance.live_app:app"]
    for name, setting in settings.items():
        command += ["--set", f"{name}={setting}"]
    # The worker takes what begins with STATELINE_ for settings of its own.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"CONFORMANCE_APPLICATION": application_id, "CONFORMANCE_PREFIX": prefix}
    environment |= {"CONFORMANCE_STORES": " ".join(stores)}
    with (directory / "worker.log").open("wb") as output:
        process = Forked(command, cwd=TESTS, env=environment, output=output.fileno())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
