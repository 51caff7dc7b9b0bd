"""`/v1/console/failures`: dead letters of a real worker, on either log."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from stateline import App, serdes
from stateline.cli import tokens
from stateline.config.settings import Config
from stateline.log.interface import Log
from stateline.server.console import failures, newest_records
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import http_server, served_here
from support.run.length import on_one_log


class Failing(NamedTuple):
    app: App
    config: Config
    topic: str
    dead: str


@pytest.fixture
def failing(bootstrap: str, log: Log, tmp_path: Path) -> Failing:
    """An application that divides, and keeps what it cannot."""
    name = f"dividing-{uuid4().hex[:8]}"
    topic, dead = f"{name}-in", f"{name}-dead"
    app = App(name)

    @app.process(app.topic(topic, key=serdes.string, value=serdes.json))
    def divide(record: Any) -> None:
        1 / record.value["n"]

    create(log, {topic: 1, dead: 2})
    settings = {"errors__dead__letter__queue__topic__name": dead, "processing__exception__handler": "dead-letter"}
    settings |= {"bootstrap__servers": bootstrap, "processing__guarantee": "exactly_once_v2"}
    return Failing(app, configured(app, tmp_path / "state", **settings), topic, dead)


def served(failing: Failing, *settings: str) -> Any:
    config = failing.config
    given = [f"bootstrap.servers={config.bootstrap_servers}", f"errors.dead.letter.queue.topic.name={failing.dead}"]
    return served_here(config.state_dir, *given, *settings, app=failing.app, until_ready=False)


def shown(client: httpx.Client, **parameters: int) -> list[dict[str, Any]]:
    answer = client.get("/v1/console/failures", params=parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


def test_the_newest_dead_letters_come_with_the_records_that_caused_them(failing: Failing, log: Log) -> None:
    with served(failing) as here:
        assert here.client.get("/v1/console/failures").json() == {"topic": failing.dead, "records": []}
        produce(log, failing.topic, [(b"a", b'{"n":0}', 5), (b"b", b'{"n":1}', 6), (b"c", b'{"n":0,"m":1}', 7)])
        with running(failing.app, failing.config, log):
            wait_until(lambda: len(shown(here.client)) == 2)
        newest, oldest = shown(here.client)
        trace = newest.pop("trace")
        assert ", in divide\n    1 / record.value" in trace
        assert trace.endswith("\nZeroDivisionError: division by zero\n")
        assert 'File "/' not in trace
        assert 'File "service/server/test_console_failures.py", line ' in trace
        assert newest == {
            "at_ms": 7, "error": "ZeroDivisionError", "reason": "division by zero", "topic": failing.topic,
            "partition": 0, "offset": 2, "key": "c", "value": {"n": 0, "m": 1}, "headers": [], "left_out": [],
        }  # fmt: skip
        assert (oldest["key"], oldest["offset"]) == ("a", 0)
        assert shown(here.client, limit=1) == [newest | {"trace": trace}]
        assert here.client.get("/v1/console/failures?limit=0").status_code == 422


@on_one_log("embedded", "the newest records, and those before a tail, are read from Kafka")
def test_of_a_long_topic_the_last_ones_are_shown_and_what_is_too_large_is_left_out(failing: Failing, log: Log) -> None:
    produce(log, failing.dead, [(b"k", b"%d" % n, n) for n in range(1_000)])
    large = b"x" * 70_000
    produce(log, failing.dead, [(b"k", large, 1_000)])
    with served(failing) as here:
        found = shown(here.client, limit=200)
        assert [record["at_ms"] for record in found] == list(range(1_000, 800, -1))
        assert (found[0]["value"], found[0]["left_out"], found[1]["value"]) == (None, ["value"], "999")


@on_one_log("embedded", "the newest records, and those before a tail, are read from Kafka")
def test_headers_count_as_well_and_are_left_out_where_they_are_too_large(failing: Failing, log: Log) -> None:
    with closing(log.producer()) as producer:
        own = [("trace", b"x" * 40_000), ("span", b"x" * 40_000)]
        why = [("__streams.errors.topic", b"in"), ("__streams.errors.message", b"division by zero")]
        producer.produce(failing.dead, b"k", b"v", timestamp_ms=1, headers=own + why)
        producer.flush()
    with served(failing) as here:
        (found,) = shown(here.client)
    assert (found["headers"], found["left_out"], found["value"]) == (None, ["headers"], "v")
    assert found["reason"] == "division by zero"


def test_records_before_a_tail_without_any_are_found(failing: Failing, log: Log) -> None:
    produce(log, failing.dead, [(b"k", b"%d" % n, n) for n in range(300)])
    with closing(log.producer(f"{failing.dead}-aborted")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(1_000):
            producer.produce(failing.dead, b"k", b"aborted", timestamp_ms=300 + n)
        producer.flush()
        producer.abort_transaction()
    with served(failing) as here:
        assert [record["at_ms"] for record in shown(here.client, limit=200)] == list(range(299, 99, -1))


@on_one_log("embedded", "the newest records, and those before a tail, are read from Kafka")
def test_of_large_records_no_more_are_kept_than_memory_is_meant_for_them(
    failing: Failing, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, failing.dead, [(b"%d" % n, b"x" * 500_000, n) for n in range(200)])
    produce(log, failing.dead, [(b"%d" % n, b"x" * 50_000, n) for n in range(200, 400)])
    monkeypatch.setattr(newest_records, "_KEPT_BYTES", 1_000_000)
    monkeypatch.setattr(newest_records, "_WITHIN_S", 60.0)
    config = failing.config.model_copy(update={"dead_letter_topic": failing.dead})
    tracemalloc.start()
    try:
        found = newest_records.newest_records(config, failing.dead)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [kept.record.timestamp_ms for kept in found] == list(range(399, 399 - len(found), -1))
    assert 10 < len(found) <= 20
    assert most < 80_000_000, "of 110 MB"


@on_one_log("embedded", "the newest records, and those before a tail, are read from Kafka")
def test_what_was_read_is_not_kept_until_somebody_asks_again(failing: Failing, log: Log) -> None:
    with served(failing) as here:
        produce(log, failing.dead, [(b"k", b"v", 1)])
        assert len(shown(here.client)) == 1
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, newest_records.KeptRecord)]


@on_one_log("embedded", "no log is asked")
def test_one_read_answers_all_who_ask_meanwhile(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, go_on = list[str](), threading.Event()

    def reading(config: Config, topic: str) -> list[Any]:
        reads.append(topic)
        go_on.wait()
        return []

    with served(failing) as here:
        monkeypatch.setattr(failures, "newest_records", reading)
        threads = [threading.Thread(target=shown, args=(here.client,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: here.client.get("/metrics").text.count("requests_in_progress 4.0") == 1)
        go_on.set()
        for thread in threads:
            thread.join()
    assert reads == [failing.dead]


def test_a_log_that_does_not_answer_is_waited_for_for_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_records, "_WITHIN_S", 0.5)
    settings = ("bootstrap.servers=127.0.0.1:1", "errors.dead.letter.queue.topic.name=dead")
    with http_server(tmp_path, *settings) as client:
        answer = client.get("/v1/console/failures")
    assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY")
    assert "'dead' cannot be read now" in answer.json()["detail"]


@pytest.fixture
def token(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    file = tmp_path / "tokens.json"
    arguments = ["add", "one", "--stores", "aircraft", "--file", str(file)]
    made = CliRunner().invoke(tokens.commands, arguments, catch_exceptions=False)
    return file, {"Authorization": f"Bearer {made.stdout.strip()}"}


def test_they_are_for_who_reads_every_store_and_none_where_there_is_no_topic(
    tmp_path: Path, token: tuple[Path, dict[str, str]]
) -> None:
    file, headers = token
    with http_server(tmp_path, f"server.tokens.file={file}") as client:
        assert client.get("/v1/console/failures", headers=headers).json()["reason"] == "FORBIDDEN"
    with http_server(tmp_path) as client:
        assert client.get("/v1/console/failures").json() == {"topic": None, "records": []}
