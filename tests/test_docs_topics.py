"""docs/topics.md is true: its applications run, its commands are taken, its scripts write and read."""

from __future__ import annotations

import io
import json
import re
import shlex
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from stateline import App
from stateline.cli.main import cli
from stateline.cli.records.consume import consume, wanted_of
from stateline.cli.records.produce import produce, terms_of
from stateline.cli.records.record_json import read_record
from stateline.config.loading import load_config
from stateline.dsl.app import App as DeclaredApp
from stateline.log import open_log
from stateline.model.event_time import POLICIES
from support.processes.running_worker import Stores, create, eventually, running
from test_docs import blocks, document, plain, rows

TEXT = document("docs/topics.md")
BLOCKS = blocks(TEXT, "python")
HOUR_MS = 3_600_000


def declared() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec("\n\n".join(block for block in BLOCKS if "EmbeddedLog" not in block), scope)
    assert isinstance(scope["app"], DeclaredApp)
    return scope


def test_the_policies_are_those_of_the_code() -> None:
    named = [plain(row[0]).split()[0].strip('`"') for row in rows(TEXT, "a record with an invalid time:\n")]
    assert named == list(POLICIES)


def test_the_applications_that_it_shows_go_by_the_records_own_times(tmp_path: Path) -> None:
    scope = declared()
    app: App = scope["app"]
    settings = [f"state.dir={tmp_path}", "commit.interval.ms=50"]
    config = load_config(app.application_id, overrides=settings, environment={})
    flights = [{"key": "a", "value": {"flown_at": f"2013-05-01T1{h}:30:00Z"}} for h in (2, 2, 3)]
    flights += [{"key": "a", "value": {"flown_at": "never"}}]
    arrivals: list[Any] = [
        {"key": "a", "value": {"scheduled": HOUR_MS, "delay": 2}},
        {"key": "b", "value": {}, "timestamp": 5},
    ]
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, {"flights": 1, "arrivals": 1})
        for topic, given in (("flights", flights), ("arrivals", arrivals)):
            lines = [json.dumps(each) for each in given]
            produce(app, config, topic, (), terms_of("jsonl", "stop", None, [], None), lines)
        with running(app, config, log) as worker:
            stores = Stores(app, config, tmp_path / "scratch")
            try:
                eventually(lambda: len(stores.rows("flights_by_hour", 1)) == 2, "two hours are counted")
                eventually(lambda: len(stores.rows("arrivals", 1)) == 2, "both arrivals are there")
                reader = stores.reader("arrivals", 1 - 1)
                assert reader is not None
                with reader.range(None, None) as found:
                    times = {key: int.from_bytes(value[:8]) for key, value in found}
            finally:
                stores.close()
            assert worker.failures.dropped == 1
    assert times == {b"a": HOUR_MS + 120_000, b"b": HOUR_MS + 120_000}


def test_the_record_that_it_shows_is_one() -> None:
    (shown,) = blocks(TEXT, "json")
    topic = declared()["flights"]
    record = read_record(shown.strip(), topic.key, topic.value)
    assert (record.key, record.timestamp_ms) == (b"N535JB", 1_367_409_600_000)
    assert list(record.headers) == [("source", b"archive")]


def test_the_commands_that_it_shows_are_taken_as_they_stand() -> None:
    commands = re.findall(r"^    stateline (produce|consume) (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 5
    for name, line in commands:
        command = getattr(get_command(cli), "commands", {})[name]
        words = shlex.split(re.sub(r" [<>] \S+", "", line))
        context = command.make_context(name, words)
        assert context.params["target"] == "airport:app"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the scripts leave, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec("\n\n".join(block for block in BLOCKS if "EmbeddedLog" in block), scope)
    return scope


def test_the_scripts_that_it_shows_write_and_read(written: dict[str, Any]) -> None:
    at = 1_367_409_600_000
    assert sorted(written["found"]) == [("N14228", "EWR", at), ("N535JB", "JFK", at)]
    assert sum(offset + 1 for offset in written["written"].values()) == 2
    app: App = declared()["app"]
    config = load_config(app.application_id, overrides=["state.dir=.stateline"], environment={})
    how = wanted_of("earliest", None, (), None, "read_committed", "text", follow=False)
    out = io.StringIO()
    assert consume(app, config, ["flights"], how, out) == 2
    assert out.getvalue().count("  source=a script\n") == 2


def test_each_method_that_its_table_names_is_there(written: dict[str, Any]) -> None:
    log = written["log"]
    objects = {"log.admin()": log.admin, "log.producer()": log.producer, "log.consumer()": log.consumer}
    objects |= {'log.producer("its-id")': log.producer, 'log.consumer("a-group")': log.consumer}
    shown = rows(TEXT, "in any number of processes on one machine.\n")
    assert {plain(row[0]) for row in shown} == objects.keys()
    for row in shown:
        with objects[plain(row[0])]() as made:
            for method in re.findall(r"`(\w+)", row[1]):
                assert hasattr(made, method), (row[0], method)


def test_a_block_that_is_left_by_an_error_writes_nothing_more(written: dict[str, Any]) -> None:
    def fail() -> None:
        with written["log"].producer() as producer:
            producer.produce("flights", b"x", b"{}", timestamp_ms=0, partition=0)
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()
    with written["log"].producer("its-id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("flights", b"x", b"{}", timestamp_ms=0, partition=0)
    with written["log"].admin() as admin:
        ends = admin.committed_ends([written["TopicPartition"]("flights", n) for n in range(2)])
    assert sum(ends.values()) == 2


def test_the_window_that_it_shows_is_an_hour() -> None:
    assert declared()["hourly"].size == timedelta(hours=1)
