"""`stateline adopt` with the stores of Java's joins, for the same joins here: every row is that of the changelog."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.java_left import SETTINGS
from stateline import App, JoinWindows, serdes
from stateline.cli.adopt.adoption import AdoptionReport, adopt
from stateline.log.kafka import KafkaLog
from stateline_store import LockedError, StateDirectory, TopicPartition
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import join_headers
from stateline_store.rows.segments import PREFIX, Segments
from stateline_store.rows.windowed_keys import split_window_key
from stateline_store.scan import EVERY_KEY
from support.kafka.java_streams import DIFFERENCE_MS, FORMAT, GRACE_MS, JavaStreams, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, read_all, running
from support.run.length import long_only

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
BEGIN_MS = 1_700_000_000_000
JOINED = ("outer-outer-this-join-store", "outer-outer-other-join-store")
STORES = (*JOINED, "outer-outer-shared-join-store", "foreign-subscription-store", "foreign")


def both(one: str | None, other: str | None) -> str:
    return f"{one}|{other}"


def declared(application_id: str, topics: dict[str, str]) -> App:
    app = App(application_id)
    within = JoinWindows(timedelta(milliseconds=DIFFERENCE_MS), grace=timedelta(milliseconds=GRACE_MS))
    app.stream(topics["events"], **TEXTS).outer_join(
        app.stream(topics["right"], **TEXTS), both, within=within, store="outer"
    )
    left, table = (app.ktable(app.table(topics[name], store=name, **TEXTS)) for name in ("left", "table"))
    left.left_join(table, both, "foreign", on=lambda key, value: value, name="foreign")
    return app


def given(topic: str, first: int) -> list[tuple[Any, ...]]:
    """Rows of both sides, with and without a partner, two of one time, and headers."""
    made = []
    for number in range(first, first + 60):
        key = f"key-{(number // 2) % 7}" if topic in ("events", "right") else f"key-{number % 11}"
        value = f"key-{number % 5}" if topic == "left" else f"{topic}-{number}"
        at_ms = BEGIN_MS + (number // 2) * (4_000 if topic == "events" else 7_000)
        made.append((key.encode(), value.encode(), at_ms, (("of", topic.encode()),)))
    return made


@long_only("test_adopt.py adopts the rows of a join among all other kinds of stores")
@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
def test_stores_of_joins_have_every_row_of_their_changelogs_and_the_joins_go_on(
    store_format: str, kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    needed(class_path)
    prefix = f"adopt-joins-{store_format.lower()}-"
    topics = {name: prefix + name for name in ("events", "right", "left", "table")}
    settings = {**SETTINGS, FORMAT: store_format, "session.timeout.ms": 6_000}
    (tmp_path / "java").mkdir()
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        create(log, dict.fromkeys(topics.values(), 1))
        with JavaStreams(
            log.bootstrap_servers, f"{prefix}java", ("outer", "foreign"), tmp_path / "java",
            prefix=prefix, settings=settings,
        ) as java:  # fmt: skip
            java.start()
            for name, topic in topics.items():
                produce(log, topic, given(name, 0))
            places = [TopicPartition(topic, 0) for topic in topics.values()]
            with closing(log.admin()) as admin:
                ends = {place: admin.log_end(place) for place in places}
                eventually(lambda: admin.committed(java.application_id, places) == ends, "Java has committed")
                eventually(lambda: changed(log, java, "foreign") == 11, "Java has joined")
            java.stop()
        app = declared(f"{prefix}java", topics)
        config = configured(
            app, tmp_path / "here", bootstrap__servers=log.bootstrap_servers, dsl__store__format=store_format
        )
        app.configure(config)
        reports: list[AdoptionReport] = []

        def adopted() -> bool:
            try:
                reports.append(adopt(app, config, [tmp_path / "java"], dry_run=False))
            except LockedError:
                return False
            return True

        eventually(adopted, "the session of the Java application ends")
        outcomes = {each.store: (each.outcome, each.why) for each in reports[0].outcomes if each.store in STORES}
        assert outcomes == dict.fromkeys(STORES, ("adopted", ""))
        for store in STORES:
            found, expected = on_disk(app, config, store), in_changelog(log, app, store)
            assert len(found) > 10 or store == STORES[2]
            assert found == (living(expected) if store in JOINED else expected), store
        before = len(read_all(log, app.topology().stores[STORES[2]].changelog(java.application_id) or "", 1))
        with running(app, config, log):
            for name, topic in topics.items():
                produce(log, topic, given(name, 60))
            eventually(
                lambda: len(read_all(log, f"{java.application_id}-{STORES[2]}-changelog", 1)) > before,
                "rows wait for partners",
            )


def living(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The rows of windows in segments that have not expired."""
    times = {key: split_window_key(key)[1] for key in rows}
    segments = Segments.of_retention(2 * DIFFERENCE_MS + GRACE_MS)
    first = segments.oldest_live(max(times.values()))
    return {key: value for key, value in rows.items() if segments.id_of(times[key]) >= first}


def changed(log: KafkaLog, java: JavaStreams, store: str) -> int:
    return len({record.key for record in read_all(log, java.changelog(store), 1)})


def on_disk(app: App, config: Any, store: str) -> dict[bytes, bytes]:
    topology = app.topology()
    task, definition = str(topology.subtopology_of(store).task_id(0)), topology.stores[store]
    path = StateDirectory(config.state_dir, config.application_id).store(
        task, store, timestamped=definition.timestamped
    )
    with OfflineStore(path) as opened, opened.scan(EVERY_KEY) as scan:
        rows = dict(scan)
    return {key[PREFIX.size :]: value for key, value in rows.items()} if store in JOINED else rows


def in_changelog(log: KafkaLog, app: App, store: str) -> dict[bytes, bytes]:
    """The rows as they are on disk. Java's operators keep empty headers, but subscriptions have the record's."""
    definition, found = app.topology().stores[store], dict[bytes, bytes]()
    for record in read_all(log, f"{app.application_id}-{store}-changelog", 1):
        value, key = record.value, record.key or b""
        if value is None:
            found.pop(key, None)
            continue
        if definition.headers:
            value = join_headers(value, record.headers)
        found[key] = PREFIX.pack(record.timestamp_ms) + value if definition.timestamped else value
    return found
