"""Stateline's own topics that have other settings than it gives them: reported once, never altered. On both logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import serdes, stores
from stateline.deployment.topics import ensure_topics, other_settings, report_other_settings
from stateline.dsl.app import App
from stateline.log import Admin, Log, NewTopic
from stateline.model.store_definition import StoreDefinition
from stateline_store import ConfigurationError
from support.processes.running_worker import configured, create, running

HOUR = timedelta(hours=1)
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
COMPACTED, BOTH = {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}
KEPT = str(HOUR_MS + DAY_MS)

# A store of each kind, what its changelog is made with, and another setting that somebody may have given it.
KINDS: dict[str, tuple[StoreDefinition, Mapping[str, str], Mapping[str, str]]] = {
    "key_value": (stores.key_value("kept", **TEXT), COMPACTED, {"cleanup.policy": "delete"}),
    "window": (
        stores.window("kept", **TEXT, size=timedelta(minutes=1), retention=HOUR),
        {**BOTH, "retention.ms": KEPT},
        {"retention.ms": "60000"},
    ),
    "session": (
        stores.session("kept", **TEXT, retention=HOUR), {**BOTH, "retention.ms": KEPT}, {"cleanup.policy": "delete"}
    ),
    "versioned": (
        stores.versioned("kept", **TEXT, history=HOUR),
        {**COMPACTED, "min.compaction.lag.ms": KEPT},
        {"min.compaction.lag.ms": "0", "cleanup.policy": "delete"},
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def admin(log: Log) -> Iterator[Admin]:
    with closing(log.admin()) as made:
        yield made


def app_of(log: Log, kind: str) -> App:
    """An application with a store of this kind, its source topic made."""
    app = App(f"app-{uuid4().hex[:8]}")
    source = app.topic(f"{app.application_id}-in", key=serdes.string, value=serdes.string)
    create(log, {source.name: 2})
    kept = app.store(KINDS[kind][0])
    moved = app.repartition("moved", key=serdes.string, value=serdes.string)
    app.process(source, stores=[kept], forwards=[moved], name="keep")(lambda record, kept, moved: None)
    app.process(moved, name="end")(lambda record: None)
    return app


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= logging.WARNING and r.name == "stateline.deployment.topics"
    ]


def test_a_changelog_that_stateline_made_has_its_settings_and_nothing_is_said(
    log: Log, admin: Admin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(log, kind)
    ensure_topics(app.topology(), admin)
    changelog = f"{app.application_id}-kept-changelog"
    found = admin.topic_settings([changelog])[changelog]
    wanted = {**KINDS[kind][1], "message.timestamp.type": "CreateTime"}
    assert {name: found[name] for name in wanted} == wanted
    report_other_settings(app.topology(), admin)
    assert warnings(caplog) == []


def test_a_changelog_with_other_settings_is_reported_in_one_warning_and_left_as_it_is(
    log: Log, admin: Admin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, (_, wanted, others) = app_of(log, kind), KINDS[kind]
    changelog = f"{app.application_id}-kept-changelog"
    admin.create_topics([NewTopic(changelog, 2, {**wanted, **others})])
    before = admin.topic_settings([changelog])
    ensure_topics(app.topology(), admin)
    report_other_settings(app.topology(), admin)
    (said,) = warnings(caplog)
    assert changelog in said
    for name, value in others.items():
        assert f"{name}: found {value}, wanted {wanted[name]}" in said
    assert all(f"{name}:" not in said for name in wanted.keys() - others.keys())
    assert admin.topic_settings([changelog]) == before


def test_a_worker_reports_at_its_start(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(log, "key_value")
    repartition = f"{app.application_id}-moved-repartition"
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(repartition, 2, {"cleanup.policy": "delete", "retention.ms": "7"})])
    with running(app, configured(app, tmp_path), log):
        pass
    assert [said for said in warnings(caplog) if f"{repartition} " in said and "retention.ms: found 7" in said]


def test_where_settings_may_not_be_read_the_worker_goes_on(
    log: Log, admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise ConfigurationError("Topic authorization failed")

    monkeypatch.setattr(type(admin), "topic_settings", refused)
    app = app_of(log, "key_value")
    with caplog.at_level(logging.INFO, "stateline.deployment.topics"):
        report_other_settings(app.topology(), admin)
    assert "Topic authorization failed" in caplog.text
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("found", "others"),
    [
        ({"cleanup.policy": "delete,compact"}, {}),
        ({"cleanup.policy": "compact, delete"}, {}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": ("compact", "compact,delete")}),
        ({}, {"cleanup.policy": ("nothing", "compact,delete")}),
    ],
)
def test_the_order_of_policies_does_not_matter(found: dict[str, str], others: dict[str, tuple[str, str]]) -> None:
    assert other_settings({"cleanup.policy": "compact,delete"}, {**found, "retention.ms": "5"}) == others
