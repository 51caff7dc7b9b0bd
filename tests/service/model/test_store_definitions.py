"""Stores as they are declared: what is refused, what is built, and the settings of their changelogs on both logs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from stateline import serdes, stores
from stateline.deployment.topics import ensure_topics
from stateline.dsl.app import App
from stateline.log import Log, NewTopic, open_log
from stateline.log.embedded import EmbeddedLog
from stateline.model.internal_topics import created_topics
from stateline.model.store_definition import StoreDefinition
from stateline_store import (
    InvalidArgumentError,
    KeyValueStore,
    SessionStore,
    StateStore,
    TimestampedKeyValueStore,
    TimestampedSessionStore,
    TimestampedWindowStore,
    TopologyError,
    VersionedStore,
    WindowStore,
)
from support.apps.own_stores import OwnStore
from support.kafka.shared_broker import SharedBroker

SERDES: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
MINUTE, HOUR, DAY_MS = timedelta(minutes=1), timedelta(hours=1), 86_400_000
HOUR_MS = 3_600_000


def own(name: str) -> StateStore:
    return OwnStore(name, transactional=True, manages_offsets=True)


# Each constructor, by the kind that it declares: what it needs beside a name and serdes, and what it builds.
Make = Callable[..., StoreDefinition]
CONSTRUCTORS: dict[str, tuple[Make, dict[str, Any], type[StateStore]]] = {
    "key_value": (stores.key_value, {}, KeyValueStore),
    "timestamped_key_value": (stores.timestamped_key_value, {}, TimestampedKeyValueStore),
    "window": (stores.window, {"size": MINUTE, "retention": HOUR}, WindowStore),
    "timestamped_window": (
        stores.window,
        {"size": MINUTE, "retention": HOUR, "timestamped": True},
        TimestampedWindowStore,
    ),
    "session": (stores.session, {"retention": HOUR}, SessionStore),
    "timestamped_session": (stores.session, {"retention": HOUR, "timestamped": True}, TimestampedSessionStore),
    "versioned": (stores.versioned, {"history": HOUR}, VersionedStore),
    "custom": (stores.custom, {"factory": own}, OwnStore),
}
# Kafka Streams 4.4.0: a day is added to what windows, sessions and versions are kept.
COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
EXPIRING = COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": str(HOUR_MS + DAY_MS)}
CHANGELOGS: dict[str, dict[str, str]] = {
    "key_value": COMPACTED,
    "timestamped_key_value": COMPACTED,
    "window": EXPIRING,
    "timestamped_window": EXPIRING,
    "session": EXPIRING,
    "timestamped_session": EXPIRING,
    "versioned": COMPACTED | {"min.compaction.lag.ms": str(HOUR_MS + DAY_MS)},
    "custom": COMPACTED,
}


def declared(kind: str, name: str = "s", **changed: Any) -> StoreDefinition:
    make, needed, _ = CONSTRUCTORS[kind]
    return make(name, **{**SERDES, **needed, **changed})


BUILT = [(kind, persistent) for kind in CONSTRUCTORS for persistent in (True, False) if persistent or kind != "custom"]


@pytest.mark.parametrize(("kind", "persistent"), BUILT)
def test_each_constructor_declares_and_builds_its_kind(kind: str, persistent: bool) -> None:
    definition = declared(kind, persistent=persistent)
    built = definition.build()
    assert (definition.kind, type(built)) == (kind, CONSTRUCTORS[kind][2])
    assert (built.name, built.persistent) == ("s", persistent)
    assert definition.timestamped == kind.startswith("timestamped")


@pytest.mark.parametrize("kind", CONSTRUCTORS)
@pytest.mark.parametrize("name", ["", "a/b", "..", "s-v2", "x" * 201])
def test_a_name_that_no_topic_or_directory_can_have_is_refused_and_shown(kind: str, name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        declared(kind, name)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "argument"),
    [("window", "size"), ("window", "retention"), ("session", "retention"), ("versioned", "history")],
)
@pytest.mark.parametrize("duration", [60_000, timedelta(seconds=-1), None], ids=["a number", "negative", "none"])
def test_what_is_no_duration_is_refused_and_shown(kind: str, argument: str, duration: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        declared(kind, **{argument: duration})
    assert f"{argument}={duration!r}" in str(refused.value)


@pytest.mark.parametrize("size", [timedelta(0), timedelta(microseconds=999), HOUR + MINUTE])
def test_windows_of_no_length_or_longer_than_they_are_kept_are_refused(size: timedelta) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'s': a size of {size} and a retention of {HOUR}"):
        declared("window", size=size)


def test_a_window_may_be_as_long_as_it_is_kept_and_a_history_may_be_none() -> None:
    assert isinstance(declared("window", size=HOUR).build(), WindowStore)
    assert isinstance(declared("versioned", history=timedelta(0)).build(), VersionedStore)
    assert isinstance(declared("session", retention=timedelta(0)).build(), SessionStore)


def test_duplicates_and_times_reach_the_store() -> None:
    built = declared("window", retain_duplicates=True).build()
    assert isinstance(built, WindowStore)
    assert (built.window_size_ms, built.segments.retention_ms) == (60_000, HOUR_MS)
    assert built.layout.retain_duplicates
    history = declared("versioned").build()
    assert isinstance(history, VersionedStore)
    assert history.segments.retention_ms == HOUR_MS


class WithoutChanges(OwnStore):
    """A store that was written before changelogs were its business."""

    staged_changes = StateStore.staged_changes


class WithoutRestore(OwnStore):
    restore = StateStore.restore


@pytest.mark.parametrize("kind", [WithoutChanges, WithoutRestore])
def test_a_store_that_would_leave_its_changelog_empty_or_unread_is_refused_unless_it_is_not_logged(
    kind: type[OwnStore],
) -> None:
    def make(name: str) -> StateStore:
        return kind(name, transactional=True, manages_offsets=True)

    with pytest.raises(TopologyError, match=f"'s' is logged, but {kind.__name__} does not define both"):
        declared("custom", factory=make).build()
    assert isinstance(declared("custom", factory=make, logged=False).build(), kind)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("no store", r"factory of store 's' made 'no store'"),
        (OwnStore("other", transactional=True, manages_offsets=True), r"\('other', True\), declared is \('s', True\)"),
        (KeyValueStore("s", persistent=False), r"\('s', False\), declared is \('s', True\)"),
    ],
)
def test_a_factory_that_makes_another_store_than_was_declared_is_refused(made: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        declared("custom", factory=lambda _: made).build()


def test_a_versioned_table_keeps_its_topic_as_changelog_and_creates_none() -> None:
    app = App("app")
    table = app.table("prices", key=serdes.string, value=serdes.json, versioned=HOUR, store="history")
    assert (table.kind, table.retention_ms, table.changelog("app")) == ("versioned", HOUR_MS, "prices")
    assert created_topics(app.topology()) == ()


@pytest.mark.parametrize("history", [3600, timedelta(seconds=-1)])
def test_a_versioned_table_refuses_what_is_no_duration(history: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="versioned="):
        App("app").table("prices", versioned=history)


@pytest.mark.parametrize("kind", CONSTRUCTORS)
def test_a_store_that_is_not_logged_has_no_changelog(kind: str) -> None:
    assert declared(kind, logged=False).changelog("app") is None
    assert declared(kind).changelog("app") == "app-s-changelog"


def with_changelogs(log: Log) -> str:
    """Create the changelog of a store of each kind; the prefix of their names."""
    app = App(f"app-{uuid4().hex[:8]}")
    source = app.topic(f"{app.application_id}-in")
    made = [app.store(declared(kind, kind)) for kind in CONSTRUCTORS]
    app.process(source, stores=made, name="all")(lambda record, *views: None)
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(source.name, 2)])
        ensure_topics(app.topology(), admin)
    return f"{app.application_id}-"


def assert_settings_of_kafka_streams(found: Callable[[str], Mapping[str, str]], prefix: str) -> None:
    for kind, wanted in CHANGELOGS.items():
        settings = found(f"{prefix}{kind}-changelog")
        assert {name: settings.get(name) for name in wanted} == wanted, kind


def test_changelogs_on_a_real_broker_have_kafka_streams_settings(kafka_broker: SharedBroker, tmp_path: Path) -> None:
    with closing(open_log(kafka_broker.bootstrap_servers, tmp_path)) as log:
        prefix = with_changelogs(log)
    client = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})

    def found(topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return {name: entry.value for name, entry in client.describe_configs([resource])[resource].result().items()}

    assert_settings_of_kafka_streams(found, prefix)


def test_changelogs_in_the_embedded_log_have_kafka_streams_settings(tmp_path: Path) -> None:
    with closing(EmbeddedLog(tmp_path / "log.db")) as log, closing(sqlite3.connect(log.embedded_file)) as file:
        prefix = with_changelogs(log)

        def found(topic: str) -> dict[str, str]:
            return dict(file.execute("SELECT name, value FROM topic_settings WHERE topic = ?", (topic,)).fetchall())

        assert_settings_of_kafka_streams(found, prefix)
        for kind, wanted in CHANGELOGS.items():
            assert found(f"{prefix}{kind}-changelog") == wanted


def test_a_changelog_of_duplicates_is_not_compacted_as_none_of_them_replaces_another() -> None:
    assert declared("window", retain_duplicates=True).changelog_settings() == EXPIRING | {"cleanup.policy": "delete"}
    assert declared("timestamped_window", retain_duplicates=True).changelog_settings() == EXPIRING


def test_a_changelog_that_would_lose_rows_is_refused() -> None:
    for kind in ("key_value", "timestamped_key_value", "versioned"):
        with pytest.raises(InvalidArgumentError, match=r"cleanup.policy='delete' would delete rows"):
            declared(kind).with_logging({"cleanup.policy": "delete"})
    for policy in ("compact,delete", "delete, compact"):
        with pytest.raises(InvalidArgumentError, match=rf"cleanup.policy='{policy}' .* with a retention.ms"):
            declared("key_value").with_logging({"cleanup.policy": policy})
    for policy in ("compact", "compact,delete", "delete, compact"):
        kept = declared("key_value").with_logging({"cleanup.policy": policy, "retention.ms": "60000"})
        assert kept.changelog_settings()["cleanup.policy"] == policy
    assert declared("window").with_logging({"cleanup.policy": "delete"}).changelog_settings() == EXPIRING | {
        "cleanup.policy": "delete"
    }


def test_what_is_no_time_is_answered_with_what_is_one() -> None:
    for what in ("size", "retention"):
        times = {"size": HOUR, "retention": HOUR} | {what: "1h"}
        with pytest.raises(InvalidArgumentError, match=rf"{what}='1h': give a timedelta, as timedelta\(hours=1\)"):
            stores.window("w", key=serdes.string, value=serdes.string, **times)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rocksdb", "topics.json", ".checkpoint", ".lock", "x-v2", "x.notice", "x.position"])
def test_a_name_that_is_a_file_of_statelines_own_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(repr(name))):
        stores.key_value(name, key=serdes.string, value=serdes.string)


def test_a_table_of_windows_or_sessions_is_kept_of_a_topic_of_such_keys() -> None:
    app = App("app")
    hours = app.table("hours", windowed=HOUR, retention=3 * HOUR, key=serdes.string, value=serdes.json)
    assert (hours.kind, hours.key, hours.window_size_ms, hours.retention_ms) == (
        "timestamped_window",
        serdes.string,
        3_600_000,
        10_800_000,
    )
    assert hours.source is not None
    assert hours.source.key == serdes.windowed(serdes.string)
    visits = app.table("visits", sessions=True, retention=HOUR, key=serdes.int64)
    assert (visits.kind, visits.key.name, visits.retention_ms) == ("timestamped_session", "int64", 3_600_000)
    declared = app.topic("declared", key=serdes.windowed(serdes.int32), value=serdes.json)
    assert app.table(declared, windowed=HOUR, retention=HOUR).key.name == "int32"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"windowed": HOUR}, "retention=None"),
        ({"sessions": True}, "retention=None"),
        ({"retention": HOUR}, "others have none"),
        ({"windowed": HOUR, "sessions": True, "retention": HOUR}, "one of the three"),
        ({"windowed": HOUR, "versioned": HOUR, "retention": HOUR}, "one of the three"),
        ({"windowed": 2 * HOUR, "retention": HOUR}, "retention at least as long"),
    ],
)
def test_a_table_that_is_not_clear_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        App("app").table("t", **arguments)


def test_a_table_of_windows_needs_a_topic_of_windows() -> None:
    app = App("app")
    plain = app.topic("plain", key=serdes.string)
    with pytest.raises(TopologyError, match=r"'plain' are string, which are no windows.*key=serdes\.windowed"):
        app.table(plain, windowed=HOUR, retention=HOUR)
    sessions = app.topic("sessions", key=serdes.session_windowed(serdes.string))
    with pytest.raises(TopologyError, match=r"no windows"):
        app.table(sessions, windowed=HOUR, retention=HOUR)


@pytest.mark.parametrize("policy", ["COMPACT", "compact,deleted", ""])
def test_a_cleanup_policy_that_kafka_does_not_know_is_refused_with_those_that_it_knows(policy: str) -> None:
    store = stores.key_value("s", key=serdes.string, value=serdes.string)
    with pytest.raises(InvalidArgumentError, match=f"Changelog of store 's': cleanup.policy='{policy}': 'compact'"):
        store.with_logging({"cleanup.policy": policy})
