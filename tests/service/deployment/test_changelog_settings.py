"""What the settings of changelogs and repartition topics are when they are created: by the store, by the application's
`topic.*`, by Kafka Streams' own. On both logs."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stateline import serdes, stores
from stateline.cli.topics.listing import topic_rows
from stateline.config.loading import load_config
from stateline.deployment.topics import ensure_topics, settings_that_differ
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.interface import Admin, TopicInfo
from stateline.model.internal_topics import ConfiguredTopics, created_topics
from stateline.model.store_definition import StoreDefinition
from stateline_store import ConfigurationError, InvalidArgumentError
from support.processes.running_worker import create

TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
HOUR, DAY_MS, HOUR_MS = timedelta(hours=1), 86_400_000, 3_600_000


def app_of(log: Log | None, *kept: StoreDefinition) -> App:
    """An application of these stores and a repartition topic, its source topic made."""
    app = App(f"app-{uuid4().hex[:8]}")
    source = app.topic(f"{app.application_id}-in", **TEXT)
    if log is not None:
        create(log, {source.name: 2})
    moved = app.repartition("moved", **TEXT)
    made = [app.store(each) for each in kept]
    app.process(source, stores=made, forwards=[moved], name="keep")(lambda record, *others: None)
    app.process(moved, name="end")(lambda record: None)
    return app


def created(app: App, admin: Admin, *overrides: str) -> dict[str, dict[str, str]]:
    """Their settings on the log, by the part of their names behind the application's."""
    configured = ConfiguredTopics.of(load_config(app.application_id, overrides=overrides))
    ensure_topics(app.topology(), admin, configured=configured)
    names = [topic.name for topic in created_topics(app.topology())]
    found = admin.topic_settings(names)
    return {name.removeprefix(f"{app.application_id}-"): settings for name, settings in found.items()}


def test_a_changelog_is_created_with_what_its_store_says_and_others_as_ever(log: Log) -> None:
    plain = stores.key_value("plain", **TEXT)
    kept = stores.key_value("kept", **TEXT).with_logging({"segment.ms": 60000, "min.insync.replicas": 1})
    with closing(log.admin()) as admin:
        found = created(app_of(log, plain, kept), admin)
    assert found["kept-changelog"]["segment.ms"] == "60000"
    assert found["kept-changelog"]["cleanup.policy"] == "compact"
    assert found["plain-changelog"].get("segment.ms") != "60000"


def test_settings_of_topics_are_of_changelogs_and_repartition_topics_and_a_stores_own_come_first(log: Log) -> None:
    plain = stores.key_value("plain", **TEXT)
    kept = stores.key_value("kept", **TEXT).with_logging({"segment.ms": 60000})
    with closing(log.admin()) as admin:
        found = created(app_of(log, plain, kept), admin, "topic.segment.ms=70000", "topic.segment.bytes=1048576")
    assert {name: settings["segment.ms"] for name, settings in found.items()} == {
        "plain-changelog": "70000",
        "kept-changelog": "60000",
        "moved-repartition": "70000",
    }
    assert {settings["segment.bytes"] for settings in found.values()} == {"1048576"}


def test_how_long_windows_and_versions_are_kept_follows_from_the_store_unless_the_store_says_otherwise() -> None:
    """As `WindowedChangelogTopicConfig` and `VersionedChangelogTopicConfig` of Kafka Streams."""
    windows = stores.window("w", **TEXT, size=HOUR, retention=HOUR)
    versions = stores.versioned("v", **TEXT, history=HOUR)
    given = {"retention.ms": "5", "min.compaction.lag.ms": "6", "cleanup.policy": "compact"}
    assert windows.changelog_settings(given, 7) == {
        **given,
        "message.timestamp.type": "CreateTime",
        "retention.ms": str(HOUR_MS + 7),
    }
    assert versions.changelog_settings(given, 7)["min.compaction.lag.ms"] == str(HOUR_MS + DAY_MS)
    assert windows.with_logging({"retention.ms": 8}).changelog_settings(given, 7)["retention.ms"] == "8"
    assert (
        versions.with_logging({"min.compaction.lag.ms": 9}).changelog_settings(given, 7)["min.compaction.lag.ms"] == "9"
    )
    assert windows.changelog_settings({}, 2**63 - 1)["retention.ms"] == str(2**63 - 1)


def test_the_additional_retention_of_windows_is_a_setting(log: Log) -> None:
    windows = stores.window("w", **TEXT, size=HOUR, retention=HOUR)
    with closing(log.admin()) as admin:
        found = created(app_of(log, windows), admin, "windowstore.changelog.additional.retention.ms=1000")
    assert found["w-changelog"]["retention.ms"] == str(HOUR_MS + 1000)


def test_a_setting_that_kafka_does_not_know_is_refused_with_the_store_and_the_setting(log: Log) -> None:
    app = app_of(log, stores.key_value("plain", **TEXT), stores.key_value("kept", **TEXT).with_logging({"segmnt": 1}))
    with closing(log.admin()) as admin:
        with pytest.raises(InvalidArgumentError, match=r"changelog of store 'kept' cannot be created with .*segmnt=1"):
            ensure_topics(app.topology(), admin)
        assert f"{app.application_id}-kept-changelog" not in admin.topics()


def test_a_changelog_that_is_there_keeps_its_settings_and_the_listing_shows_what_differs(log: Log) -> None:
    app = app_of(log, stores.key_value("kept", **TEXT))
    with closing(log.admin()) as admin:
        before = created(app, admin, "topic.segment.ms=50000")
        name = f"{app.application_id}-kept-changelog"
        configured = ConfiguredTopics({"segment.ms": "60000"})
        ensure_topics(app.topology(), admin, configured=configured)
        assert admin.topic_settings([name])[name] == before["kept-changelog"]
        differ = settings_that_differ(app.topology(), admin, configured)
    assert differ[name] == {"segment.ms": ("50000", "60000")}
    (row,) = topic_rows({name: "changelog"}, {name: TopicInfo(name, 2, "")}, {name: 0}, differ=differ)
    assert row["state"] == "exists: segment.ms is 50000, declared 60000"


def test_a_store_with_logging_disabled_has_no_changelog() -> None:
    definition = stores.key_value("kept", **TEXT).with_logging({"segment.ms": 1}).with_logging_disabled()
    assert definition == stores.key_value("kept", **TEXT, logged=False)
    assert stores.key_value("kept", **TEXT, logged=False).with_logging({}).logged


def test_a_table_has_no_settings_of_a_changelog() -> None:
    table = App("app").table("prices", **TEXT)
    with pytest.raises(InvalidArgumentError, match="a table has none but its topic, 'prices'"):
        table.with_logging({"segment.ms": 1})
    with pytest.raises(InvalidArgumentError, match="a table's topic, 'prices'"):
        table.with_logging_disabled()


@pytest.mark.parametrize("given", ["segment.ms=1", {"segment.ms": None}, {1: "a"}, {"segment.ms": [1]}])
def test_settings_that_cannot_be_any_are_refused_where_they_are_declared(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Store 'kept': changelog setting"):
        stores.key_value("kept", **TEXT).with_logging(given)


@pytest.mark.parametrize("value", ["-1", "an hour"])
def test_an_additional_retention_that_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"windowstore\.changelog\.additional\.retention\.ms"):
        load_config("app", overrides=[f"windowstore.changelog.additional.retention.ms={value}"])
