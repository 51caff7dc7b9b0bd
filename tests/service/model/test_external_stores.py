"""Stores of a Kafka Streams application that are served here: declared, kept from their changelogs, and left alone."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline import serdes, stores
from stateline.cli.records.produce import declared_topic
from stateline.cli.topics.listing import missing_of_the_users, topic_roles, topic_rows
from stateline.client import Client
from stateline.deployment.topics import ensure_topics, report_other_settings
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.log.interface import NewTopic
from stateline.model.pipeline import Windowing
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.worker.loop.worker import Worker
from stateline_store import InvalidArgumentError, Position, RecordError, TopologyError
from stateline_store.rows.windowed_keys import session_key, window_key
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.processes.served_here import served_here

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
STRINGS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
COUNTS: dict[str, Any] = {"key": serdes.string, "value": serdes.int64}
COUNT = stores.timestamped_key_value("count", **COUNTS)
WINDOWS = stores.window("windows", size=MINUTE, retention=HOUR, timestamped=True, **STRINGS)
SESSIONS = stores.session("sessions", retention=HOUR, **STRINGS)
# What the changelogs of a Java application hold, by store: keys, values and timestamps.
KINDS: dict[str, tuple[StoreDefinition, list[tuple[bytes, bytes | None, int]]]] = {
    "plain": (stores.key_value("plain", **STRINGS), [(b"a", b"1", 10), (b"b", b"2", 11), (b"a", None, 12)]),
    "stamped": (stores.timestamped_key_value("stamped", **STRINGS), [(b"a", b"1", 10), (b"a", b"3", 9)]),
    "windows": (WINDOWS, [(window_key(b"a", 60_000), b"1", 61_000), (window_key(b"a", 0), b"2", 59_000)]),
    "unstamped": (
        stores.window("unstamped", size=MINUTE, retention=HOUR, **STRINGS),
        [(window_key(b"a", 0), b"1", 1), (window_key(b"a", 60_000), b"2", 2), (window_key(b"a", 0), None, 3)],
    ),
    "each": (
        stores.window("each", size=MINUTE, retention=HOUR, retain_duplicates=True, **STRINGS),
        [(window_key(b"a", 5, 1), b"x", 5), (window_key(b"a", 5, 2), b"y", 5)],
    ),
    "sessions": (
        SESSIONS,
        [(session_key(b"a", 5, 5), b"1", 5), (session_key(b"a", 5, 5), None, 9), (session_key(b"a", 5, 9), b"2", 9)],
    ),
    "versioned": (
        stores.versioned("versioned", history=HOUR, **STRINGS),
        [(b"a", b"2", 20), (b"a", b"1", 10), (b"a", None, 30)],
    ),
}
ANSWERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "plain": ("range", [{"key": "b", "value": "2", "timestamp": None}]),
    "stamped": ("range", [{"key": "a", "value": "3", "timestamp": 9}]),
    "windows": (
        "keys/a/windows",
        [
            {"start": 0, "end": 60_000, "value": "2", "timestamp": 59_000},
            {"start": 60_000, "end": 120_000, "value": "1", "timestamp": 61_000},
        ],
    ),
    "unstamped": ("keys/a/windows", [{"start": 60_000, "end": 120_000, "value": "2", "timestamp": None}]),
    "each": (
        "keys/a/windows",
        [{"start": 5, "end": 60_005, "value": value, "timestamp": None} for value in ("x", "y")],
    ),
    "sessions": ("keys/a/sessions", [{"start": 5, "end": 9, "value": "2", "timestamp": None}]),
    "versioned": (
        "keys/a/versions",
        [
            {"value": "2", "timestamp": 20, "valid_to": 30},
            {"value": "1", "timestamp": 10, "valid_to": 20},
        ],
    ),
}


@pytest.fixture
def bootstrap(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'log.db'}"


def declared(*definitions: StoreDefinition) -> App:
    """An application that serves these stores of `java`."""
    app = App("http")
    for definition in definitions:
        app.external_store(definition, of="java")
    return app


@contextmanager
def served(log: EmbeddedLog, app: App, directory: Path) -> Iterator[httpx.Client]:
    with (
        running(app, configured(app, directory), log),
        served_here(directory, f"bootstrap.servers=embedded:{directory / 'log.db'}", app=app) as here,
    ):
        yield here.client


@pytest.fixture
def all_kinds(log: EmbeddedLog, tmp_path: Path) -> Iterator[httpx.Client]:
    """Every kind of store, served; the last change of each is in it."""
    create(log, {f"java-{name}-changelog": 1 for name in KINDS})
    for name, (_, records) in KINDS.items():
        produce(log, f"java-{name}-changelog", records)
    with served(log, declared(*(definition for definition, _ in KINDS.values())), tmp_path) as client:
        yield client


def bound(name: str) -> dict[str, str]:
    """Parameters that wait for the last record of a store's changelog."""
    position = {f"java-{name}-changelog": {"0": len(KINDS[name][1]) - 1}}
    return {"position_bound": json.dumps(position), "wait_ms": "20000"}


def test_every_kind_of_store_is_served_from_its_changelog_and_says_whose_it_is(all_kinds: httpx.Client) -> None:
    for name, (path, entries) in ANSWERS.items():
        answer = all_kinds.get(f"/v1/stores/{name}/{path}", params=bound(name)).json()
        assert answer["entries"] == entries, name
        assert answer["position"] == json.loads(bound(name)["position_bound"]), name
        described = all_kinds.get(f"/v1/stores/{name}").json()
        assert (described["external"], described["changelog"]) == ("java", f"java-{name}-changelog")
        assert described["kind"] == KINDS[name][0].kind
    topology = all_kinds.get("/v1/topology").json()
    assert {store["external"] for store in topology["stores"].values()} == {"java"}
    assert {topic["external"] for topic in topology["topics"]} == {"java"}
    with Client(str(all_kinds.base_url)) as client:
        assert client.store("each").details().external == "java"


def test_changes_and_snapshots_work_as_for_a_table(all_kinds: httpx.Client) -> None:
    url = str(all_kinds.base_url)
    for name in KINDS:
        all_kinds.get(f"/v1/stores/{name}/count", params=bound(name)).raise_for_status()
    with Client(url) as client:
        for name, (_, records) in KINDS.items():
            with closing(client.store(name).changes(since="earliest")) as feed:
                seen = [next(feed) for _ in records]
            assert [change.offset for change in seen] == list(range(len(records))), name
            values = [None if value is None else value.decode() for _, value, _ in records]
            assert [change.value for change in seen] == values, name
        with client.snapshot(["plain", "sessions", "versioned"]) as snapshot:
            assert snapshot.position == Position(
                {f"java-{n}-changelog": {0: 2} for n in ("plain", "sessions", "versioned")}
            )


def test_a_store_may_have_another_name_and_another_topic(log: EmbeddedLog, tmp_path: Path) -> None:
    create(log, {"counts-of-java": 1})
    last = produce(log, "counts-of-java", [(b"a", (7).to_bytes(8, "big"), 3)])
    app = App("http")
    app.external_store(COUNT, of="java", changelog="counts-of-java", store="java_count")
    with served(log, app, tmp_path) as client:
        position = json.dumps({tp.topic: {str(tp.partition): offset} for tp, offset in last.items()})
        answer = client.get("/v1/stores/java_count/keys/a", params={"position_bound": position, "wait_ms": "20000"})
        assert (answer.json()["value"], answer.json()["timestamp"]) == (7, 3)


# ---- Wrong declarations.


NUMBERS = stores.key_value("s", **COUNTS)
TEXTS = stores.key_value("s", **STRINGS)
VERSIONS = stores.versioned("s", history=HOUR, **STRINGS)
KEYED = dataclasses.replace(COUNT, name="s", key=serdes.int32)
WINDOWED, OF_SESSIONS = dataclasses.replace(WINDOWS, name="s"), dataclasses.replace(SESSIONS, name="s")
WRONG = [
    (NUMBERS, b"a", b"text", "is not an int64: it has 4 bytes. Store 's' of Kafka Streams application 'java'"),
    (NUMBERS, b"a", b"text", "declared with value=int64: declare the type that it has there"),
    (KEYED, b"abc", bytes(8), "declared with key=int32"),
    (
        WINDOWED,
        b"a",
        b"1",
        "only 1 bytes. Store 's' of Kafka Streams application 'java' is declared with key=windowed-",
    ),
    (OF_SESSIONS, b"abcd", b"1", "is declared with key=session-windowed-string: declare the kind and type that it has"),
    (OF_SESSIONS, session_key(b"a", 9, 5), b"1", r"its times are \[9, 5\]"),
]


def run(worker: Worker) -> None:
    """Until it raises; one that has nothing to raise is stopped after a while."""
    timer = threading.Timer(30, worker.stop)
    timer.start()
    try:
        worker.run()
    finally:
        timer.cancel()


@pytest.mark.parametrize(("definition", "key", "value", "message"), WRONG)
def test_a_declaration_that_does_not_fit_the_records_ends_the_worker_with_what_to_declare(
    definition: StoreDefinition, key: bytes, value: bytes, message: str, log: EmbeddedLog, tmp_path: Path
) -> None:
    create(log, {"java-s-changelog": 1})
    produce(log, "java-s-changelog", [(key, value, 1)])
    app = declared(definition)
    with pytest.raises(RecordError, match=message):
        run(Worker(app, configured(app, tmp_path), log, instance="worker-0"))


PADDED = b"alice".ljust(24, b"\0")
RESEMBLING = [
    (TEXTS, [PADDED, b"bob".ljust(24, b"\0"), b"carol"], "a key of a window store, and is one of kind key_value here"),
    (VERSIONS, [session_key(b"a", 5, 9)], "a key of a session store, and is one of kind versioned here"),
    (
        WINDOWED,
        [session_key(b"a", 5, 9), window_key(b"a", 9 << 32)],
        "a key of a session store, and is one of kind window",
    ),
    (WINDOWED, [window_key(b"a", 5, 7)], "one of kind window without duplicates here"),
    (OF_SESSIONS, [window_key(b"abcd", 60_000)], "a key of a window store, and is one of kind session here"),
]


@pytest.mark.parametrize(("definition", "keys", "told"), RESEMBLING, ids=lambda given: str(given)[:20])
def test_keys_that_look_like_those_of_another_kind_are_taken_as_declared_and_told_of_once(
    definition: StoreDefinition,
    keys: list[bytes],
    told: str,
    log: EmbeddedLog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create(log, {"java-s-changelog": 1})
    produce(log, "java-s-changelog", [(key, b"1", 1) for key in keys])
    app = declared(definition)
    config = configured(app, tmp_path / "state")
    with closing(Stores(app, config, tmp_path / "readers")) as kept, running(app, config, log):
        eventually(lambda: kept.offset("s", "java-s-changelog", 0) == len(keys) - 1, "all of it was read")
        rows = kept.rows("s", 1)
    assert len(rows) == len(keys)
    assert all(any(row.endswith(key) for row in rows) for key in keys)
    (warning,) = [message for message in caplog.messages if "looks like" in message]
    assert told in warning


def test_texts_and_numbers_that_only_resemble_times_are_keys() -> None:
    """Every key of windows may be some bytes, and short texts with zeros are no windows."""
    text = declared(stores.key_value("s", **STRINGS)).topology().stores["s"].source
    raw = declared(stores.key_value("s", key=serdes.bytes, value=serdes.bytes)).topology().stores["s"].source
    assert text is not None
    assert raw is not None
    for key in (b"", b"a\0b", b"a\0\0\0b", "год".encode(), b"0123456789abcdef"):
        text.key.check(key)
    raw.key.check(window_key(b"a", 60_000))


@pytest.mark.parametrize(
    ("definition", "settings", "told"),
    [
        (COUNT, COUNT.changelog_settings(), None),
        (WINDOWS, WINDOWS.changelog_settings(), None),
        (VERSIONS, VERSIONS.changelog_settings(), None),
        (COUNT, WINDOWS.changelog_settings(), "cleanup.policy: found compact,delete, wanted compact"),
        (TEXTS, VERSIONS.changelog_settings(), "min.compaction.lag.ms: found 90000000, wanted 0"),
        (VERSIONS, TEXTS.changelog_settings(), "min.compaction.lag.ms: found 0, wanted 90000000"),
        (
            SESSIONS,
            stores.session("s", retention=MINUTE, **STRINGS).changelog_settings(),
            "found 86460000, wanted 90000",
        ),
    ],
)
def test_a_topic_whose_settings_do_not_fit_the_declaration_is_warned_of(
    definition: StoreDefinition,
    settings: Mapping[str, str],
    told: str | None,
    log: EmbeddedLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(f"java-{definition.name}-changelog", 1, settings)])
        report_other_settings(declared(definition).topology(), admin)
    assert len(caplog.messages) == (told is not None)
    assert told is None or told in caplog.text


# ---- Guards.


def test_an_application_does_not_serve_stores_of_itself() -> None:
    with pytest.raises(TopologyError, match=r"of='http' is this application's own id.*App\('http-http'\)"):
        App("http").external_store(COUNT, of="http")


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (stores.session("s", retention=HOUR, timestamped=True, **STRINGS), "it is of kind timestamped_session"),
        (stores.key_value("s", logged=False, **STRINGS), "it has no changelog"),
        (App("other").table("s"), "it is a table"),
    ],
)
def test_what_is_no_store_of_kafka_streams_is_refused(definition: StoreDefinition, message: str) -> None:
    with pytest.raises(TopologyError, match=f"'s' cannot be a store of Kafka Streams application 'java': {message}"):
        App("http").external_store(definition, of="java")


def test_nothing_may_be_written_to_its_changelog() -> None:
    written = Topic("java-count-changelog", serdes.string, serdes.int64)
    app = declared(COUNT)
    events = app.topic("events", **STRINGS)

    @app.process(events, forwards=[written])
    def ruin(record: Any, output: Any) -> None: ...

    with pytest.raises(
        TopologyError, match=r"Processor 'ruin' .* writes to 'java-count-changelog', a changelog of Kafka"
    ):
        app.topology()
    app = declared(WINDOWS)

    @app.pipeline(reads="events", writes="java-windows-changelog", key="k", windowing=Windowing("window", "w", 60_000))
    def ruin_too(events: Any) -> Any: ...

    with pytest.raises(TopologyError, match=r"Pipeline 'ruin_too' .* writes to 'java-windows-changelog'"):
        app.topology()
    with pytest.raises(InvalidArgumentError, match="is a changelog of Kafka Streams application 'java', and read only"):
        declared_topic(declared(COUNT), "java-count-changelog")


def test_a_processor_can_read_the_store_and_not_write_it(log: EmbeddedLog, tmp_path: Path) -> None:
    create(log, {"java-count-changelog": 1, "questions": 1})
    produce(log, "java-count-changelog", [(b"a", (7).to_bytes(8, "big"), 3)])
    app = App("http")
    count = app.external_store(COUNT, of="java")
    seen: list[Any] = []

    @app.process("questions", key=serdes.string, value=serdes.string, stores=[count])
    def ask(record: Any, count: Any) -> None:
        seen.append(count.get(record.key))
        count.put(record.key, 8)

    config = configured(app, tmp_path / "state")
    with closing(Stores(app, config, tmp_path / "readers")) as kept, running(app, config, log):
        eventually(lambda: kept.offset("count", "java-count-changelog", 0) == 0, "the store is there")
    produce(log, "questions", [(b"a", b"", 1)])
    with pytest.raises(RecordError, match="read-only here"):
        run(Worker(app, config, log, instance="worker-0"))
    assert seen == [7]


def test_a_missing_changelog_is_not_created_and_the_message_says_who_creates_it(log: EmbeddedLog) -> None:
    create(log, {"java-other-changelog": 1, "javascript": 1})
    topology = declared(COUNT).topology()
    with closing(log.admin()) as admin:
        with pytest.raises(
            TopologyError,
            match="There is no topic java-count-changelog: the Kafka Streams application 'java' creates it when it "
            r"starts.*Changelogs of 'java' that there are: java-other-changelog\.",
        ):
            ensure_topics(topology, admin)
        assert set(admin.topics()) == {"java-other-changelog", "javascript"}
        admin.create_topics([NewTopic("java-count-changelog", 3)])
        assert ensure_topics(topology, admin)["java-count-changelog"] == 3


def test_the_listing_of_topics_says_that_another_application_creates_it() -> None:
    roles = topic_roles(declared(COUNT).topology(), None)
    assert roles == {"java-count-changelog": "external"}
    assert missing_of_the_users(roles, {}) == []  # so that `--create` leaves it alone
    assert topic_rows(roles, {}, {})[0]["state"] == "MISSING: its Kafka Streams application creates it"
