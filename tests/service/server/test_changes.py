"""The change feed as clients see it: every kind of store, on both logs, over a real worker and a real server.

The oracle is the topic that a store's changes come from, read back with the log's own consumer.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from stateline import serdes
from stateline.log import Record, open_log
from stateline.model.store_definition import StoreDefinition
from stateline.server.changes.feed import read_position
from stateline.server.changes.routes import change_members
from stateline.server.changes.topic_reader import After, AfterInput
from stateline_store import DamagedDataError, InvalidArgumentError, Position
from support.apps import changes_app
from support.apps.changes_app import LOGGED, SIZE_MS, TABLES
from support.processes.change_scene import FIRST, PARTITIONS, Event, Scene, logs_held_by, reading
from support.processes.forked import Forked
from support.processes.query_server import from_another_address, wait_until
from support.processes.served_here import served_here
from support.run.length import long_or_short, of_each_store, on_one_log
from support.run.patience import HANGING_S

STORES = (*TABLES, *LOGGED)
ON_KAFKA = ("newest", "counts")  # whose changes come from the input, and from a changelog
OF_A_CHANGELOG = ("counts",)  # the other is read by the same consumer


class Served(NamedTuple):
    """A scene with its worker and server; the client is the server's."""

    scene: Scene
    server: Forked
    client: httpx.Client


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path_factory.mktemp('log') / 'log.db'}"
    return str(request.getfixturevalue("kafka_broker").bootstrap_servers)


@pytest.fixture(scope="module")
def served(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("changes")
    with closing(open_log(bootstrap, root)) as log, Scene(bootstrap, log, root) as scene:
        scene.start_worker()
        server, client = scene.start_server("server.changes.max=3", "server.changes.slow.ms=2000")
        scene.send(FIRST)
        asked = STORES if bootstrap.startswith("embedded") else long_or_short(STORES, ("newest", "counts", "memory"))
        for store in asked:
            scene.settle(client, store)
        yield Served(scene, server, client)


def placed(event: Event) -> tuple[int, int]:
    return event.data["partition"], event.data["offset"]


def stands(records: list[Record]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


def is_free(served: Served) -> bool:
    """Whether nobody reads, and no log is held open. Which threads and clients of Kafka are left is for the test of a
    server in this process to say: here those of everything else come and go."""
    told = re.search(r"^stateline_change_feeds_open(?:{.*})? (\d+)", served.client.get("/metrics").text, re.MULTILINE)
    assert told is not None
    return int(told[1]) == 0 and logs_held_by(served.server) == 0


# What is given


@of_each_store(on_kafka=ON_KAFKA)
@pytest.mark.parametrize("store", STORES)
def test_every_committed_change_comes_once_and_in_order(served: Served, store: str) -> None:
    records = served.scene.records(store)
    with reading(served.client, store, from_="earliest") as reader:
        events = reader.take(len(records))
        reader.beat()
    assert sorted(map(placed, events)) == stands(records)
    for partition in range(PARTITIONS):
        offsets = [offset for p, offset in map(placed, events) if p == partition]
        assert offsets == sorted(offsets)


@of_each_store(on_kafka=ON_KAFKA)
@pytest.mark.parametrize("store", STORES)
def test_a_change_is_the_record_in_the_types_of_the_store(served: Served, store: str) -> None:
    records = {(r.partition, r.offset): r for r in served.scene.records(store)}
    suffix = {"windows": 12, "stamped": 12, "visits": 16}.get(store, 0)
    with reading(served.client, store, from_="earliest") as reader:
        for event in reader.take(len(records)):
            record = records[placed(event)]
            assert record.key is not None
            assert event.data["key"] == record.key[: len(record.key) - suffix].decode()
            assert event.data["value"] == (None if record.value is None else json.loads(record.value))


@on_one_log("embedded", "test_change_feed.py has readers that come and go on Kafka")
@pytest.mark.parametrize("store", ["newest", "cache", "counts", "memory"])
def test_the_changes_rebuild_the_state_that_a_range_shows(served: Served, store: str) -> None:
    state: dict[str, Any] = {}
    with reading(served.client, store, from_="earliest") as reader:
        for event in reader.take(len(served.scene.records(store))):
            state[event.data["key"]] = (event.data["value"], event.data["timestamp"])
    answer = served.client.get(f"/v1/stores/{store}/range", params={"isolation_level": "read_committed"}).json()
    assert {key: pair for key, pair in state.items() if pair[0] is not None} == {
        entry["key"]: (entry["value"], entry["timestamp"]) for entry in answer["entries"]
    }


@on_one_log("embedded", "records are alike on both")
def test_a_deletion_is_a_value_of_null(served: Served) -> None:
    for store in ("newest", "counts"):
        with reading(served.client, store, from_="earliest") as reader:
            last = {event.data["key"]: event.data["value"] for event in reader.take(len(served.scene.records(store)))}
        assert {key for key, value in last.items() if value is None} == {"b", "d"}


@on_one_log("embedded", "records are alike on both")
def test_windows_and_sessions_say_when_they_begin_and_end(served: Served) -> None:
    for store, length in (("windows", SIZE_MS), ("stamped", SIZE_MS), ("visits", 10)):
        with reading(served.client, store, from_="earliest") as reader:
            for event in reader.take(3):
                assert event.data["end"] - event.data["start"] == length


@on_one_log("embedded", "records are alike on both")
def test_timestamps_are_there_where_the_store_keeps_them(served: Served) -> None:
    times = {}
    for store in ("newest", "history", "stamped", "counts", "windows"):
        with reading(served.client, store, from_="earliest") as reader:
            times[store] = [e.data["timestamp"] for e in reader.take(3) if e.data["value"] is not None]
    assert all(isinstance(time, int) for store in ("newest", "history", "stamped") for time in times[store])
    assert all(time is None for store in ("counts", "windows") for time in times[store])


# Where it begins


@on_one_log("embedded", "test_change_feed.py has readers that come and go on Kafka")
@pytest.mark.parametrize("store", ["newest", "counts", "memory", "windows"])
def test_a_reader_goes_on_behind_any_event_by_its_id(served: Served, store: str) -> None:
    with reading(served.client, store, from_="earliest") as reader:
        events = reader.take(len(served.scene.records(store)))
    for seen, event in enumerate(events, 1):
        # The parameter says what the first request said: a browser sends both.
        with reading(served.client, store, last=event.id, from_="earliest") as reader:
            rest = reader.take(len(events) - seen)
            reader.beat()
        assert sorted(map(placed, rest)) == sorted(map(placed, events[seen:]))
        with reading(served.client, store, from_=event.id) as reader:
            assert sorted(map(placed, reader.take(len(rest)))) == sorted(map(placed, rest))


@on_one_log("embedded", "test_change_feed.py has readers that come and go on Kafka")
@pytest.mark.parametrize("store", ["newest", "cache", "counts", "memory", "visits"])
def test_the_latest_changes_are_those_that_come_from_now_on(served: Served, store: str) -> None:
    before = stands(served.scene.records(store))
    with reading(served.client, store) as reader:
        reader.beat()
        served.scene.send([("new", n) for n in range(1, 5)])
        event = reader.take(1)[0]
        served.scene.settle(served.client, store)
        added = [place for place in stands(served.scene.records(store)) if place not in before]
        assert sorted(map(placed, [event, *reader.take(len(added) - 1)])) == added


def test_a_reader_that_is_cut_off_before_the_first_event_goes_on_where_it_began(served: Served) -> None:
    with reading(served.client, "counts") as reader:
        reader.beat()
        begin = reader.id
    served.scene.send([("cut", 1), ("off", 2)])
    served.scene.settle(served.client)
    with reading(served.client, "counts", last=begin) as reader:
        assert {event.data["key"] for event in reader.take(2)} == {"cut", "off"}
        reader.beat()


@of_each_store(on_kafka=OF_A_CHANGELOG)
@pytest.mark.parametrize("store", ["newest", "counts", "memory", "history"])
def test_after_the_position_of_an_answer_come_the_changes_that_it_does_not_have(served: Served, store: str) -> None:
    position = served.scene.settle(served.client, store)
    before = stands(served.scene.records(store))
    served.scene.send([("later", n) for n in range(1, 4)])
    served.scene.settle(served.client, store)
    added = [place for place in stands(served.scene.records(store)) if place not in before]
    with reading(served.client, store, from_=json.dumps(position)) as reader:
        assert sorted(map(placed, reader.take(len(added)))) == added
        reader.beat()


def test_a_partition_can_be_read_alone(served: Served) -> None:
    wanted = [place for place in stands(served.scene.records("newest")) if place[0] == 1]
    with reading(served.client, "newest", from_="earliest", partition="1") as reader:
        assert list(map(placed, reader.take(len(wanted)))) == wanted
        reader.beat()
        assert json.loads(reader.id) == {served.scene.source: {"1": wanted[-1][1]}}


def test_a_position_is_read_by_the_topics_that_it_names() -> None:
    assert read_position("from", '{"log": {"1": 5}}', "log", ["in"], 2) == After({1: 5})
    assert read_position("from", '{"log": {}}', "log", ["in"], 2) == After({})
    assert read_position("from", '{"in": {"0": 7}}', "log", ["in"], 2) == AfterInput(Position({"in": {0: 7}}))
    assert read_position("from", '{"in": {"0": 7}}', "in", ["in"], 2) == After({0: 7})
    for text in (
        '{"other": {"0": 1}}',
        '{"log": {"0": 1}, "in": {"0": 1}}',
        '{"log": {"2": 1}}',
        '{"log": 1}',
        '{"log": {"%s": 1}}' % ("9" * 5000),
        "[",
        "7",
    ):
        with pytest.raises(InvalidArgumentError, match=r"^from"):
            read_position("from", text, "log", ["in"], 2)


@pytest.mark.parametrize(
    ("text", "partitions", "told"),
    [
        ('{"in": {"0": 1, "0": 2}}', 2, 'has "0" twice'),
        ('{"in": {"0": 1}, "in": {}}', 2, 'has "in" twice'),
        ('{"in": {"0": 99999999999999999999}}', 2, "99999999999999999999 is not an offset"),
        ('{"in": {"2": 1}}', 2, "which has 0 to 1"),
        ('{"in": {"1": 1}}', 1, "which has only 0"),
        ("garbage", 1, r"It begins with garbage\. Give"),
    ],
)
def test_a_position_is_as_strictly_read_as_a_bound(text: str, partitions: int, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^from.*{told}"):
        read_position("from", text, "log", ["in"], partitions)


def test_a_record_that_is_not_of_the_declared_type_is_damage() -> None:
    definition = StoreDefinition("s", "key_value", serdes.int64, serdes.json)
    with pytest.raises(DamagedDataError, match="offset 3 of log-0"):
        change_members(definition, Record("log", 0, 3, 1, b"short", b"1"))


# What is refused


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("quiet/changes", 400, "UNKNOWN_QUERY_TYPE"),
        ("nope/changes", 404, "DOES_NOT_EXIST"),
        ("counts/changes?partition=7", 404, "DOES_NOT_EXIST"),
        ("counts/changes?partition=x", 422, "INVALID_ARGUMENT"),
        ("counts/changes?isolation_level=read_uncommitted", 422, "INVALID_ARGUMENT"),
        ("counts/changes?wait_ms=1", 422, "INVALID_ARGUMENT"),
        ("counts/changes?from=yesterday", 422, "INVALID_ARGUMENT"),
        ('counts/changes?from={"elsewhere":{"0":1}}', 422, "INVALID_ARGUMENT"),
        ('newest/changes?from={"in-RUN":{"0":100000}}', 410, "CURSOR_EXPIRED"),
        ('counts/changes?from={"changes-RUN-counts-changelog":{"0":100000}}', 410, "CURSOR_EXPIRED"),
        ('counts/changes?from={"in-RUN":{"0":100000}}', 410, "CURSOR_EXPIRED"),
        ('memory/changes?from={"in-RUN":{"0":100000}}', 410, "CURSOR_EXPIRED"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_stream_begins(
    served: Served, path: str, status: int, reason: str
) -> None:
    answer = served.client.get(f"/v1/stores/{path}".replace("RUN", served.scene.run))
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
    wait_until(lambda: is_free(served))


def test_head_says_what_get_would_be_without_a_stream(served: Served) -> None:
    answer = served.client.head("/v1/stores/counts/changes")
    with reading(served.client, "counts") as reader:
        names = ("content-type", "cache-control", "connection", "content-length")
        got = reader.response.headers
        assert [answer.headers.get(name) for name in names] == [got.get(name) for name in names]
        assert answer.status_code == 200
    answer = served.client.head("/v1/stores/counts/changes/offsets")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


# Readers that leave, and readers that do not read


def test_a_reader_that_leaves_leaves_nothing_behind(served: Served) -> None:
    for store in ("counts", "newest", "memory"):
        with reading(served.client, store, from_="earliest") as reader:
            reader.take(1)
            assert not is_free(served)
        wait_until(lambda: is_free(served))


def test_a_reader_that_leaves_leaves_no_thread_and_so_no_client_of_the_log(served: Served) -> None:
    scene = served.scene
    with served_here(scene.state_dir, f"bootstrap.servers={scene.bootstrap}", app=changes_app.build(scene.run)) as here:
        for store in ("counts", "newest", "memory"):
            with reading(here.client, store, from_="earliest") as reader:
                reader.take(1)
                assert threads_of_feeds()
            wait_until(lambda: not threads_of_feeds())


def threads_of_feeds() -> list[str]:
    """The last work of each is to close what it has read from."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("changes")]


@on_one_log("embedded", "the server counts before it asks a log")
def test_one_reader_too_many_is_told_to_come_later(served: Served) -> None:
    """Of three feeds one caller may read two, and nobody a fourth."""
    client = served.client
    with from_another_address(client) as another, reading(client, "counts"), reading(client, "newest"):
        answer = client.get("/v1/stores/counts/changes")
        assert (answer.status_code, answer.json()["reason"]) == (429, "TOO_MANY_REQUESTS")
        assert int(answer.headers["retry-after"]) >= 1
        assert "server.caller.share.percent" in answer.json()["detail"]
        assert client.head("/v1/stores/counts/changes").status_code == 429
        with reading(another, "counts"):
            answer = another.get("/v1/stores/counts/changes")
            assert (answer.status_code, answer.json()["reason"]) == (429, "TOO_MANY_REQUESTS")
            assert "server.changes.max" in answer.json()["detail"]
    wait_until(lambda: is_free(served))
    with reading(served.client, "counts") as reader:
        reader.beat()


def slow_reader(served: Served, store: str) -> socket.socket:
    """A connection that has asked for everything and reads nothing, with hardly any room for what comes."""
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.settimeout(HANGING_S)
    asking.connect(("127.0.0.1", served.client.base_url.port))
    asking.sendall(f"GET /v1/stores/{store}/changes?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return asking


@on_one_log("embedded", "what was read waits in the server, whichever log it is of")
def test_a_reader_that_does_not_read_is_told_so_and_cut_off(served: Served) -> None:
    served.scene.send([(f"large-{n}", "x" * 200_000) for n in range(60)])
    served.scene.settle(served.client, "newest")
    with slow_reader(served, "newest") as asking:
        wait_until(lambda: not is_free(served))
        wait_until(lambda: is_free(served))  # it was given up: from now on it is only told so
        # With the small buffer the kernel may send 1 KB every 40 ms: ten minutes for what is on its way.
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        seen = bytearray()
        while piece := asking.recv(1 << 20):
            seen += piece
    text = seen.decode()
    assert '"reason":"TOO_SLOW"' in text[-500:]
    assert text.count("event: change") < len(served.scene.records("newest"))
    with reading(
        served.client, "newest", last=text.rpartition("id: ")[2].partition("\r\n")[0].split("\n")[0]
    ) as reader:
        reader.take(1)


@on_one_log("embedded", "what was read waits in the server, whichever log it is of")
def test_a_reader_that_never_reads_again_is_cut_off_all_the_same(served: Served) -> None:
    with slow_reader(served, "newest") as asking:
        wait_until(lambda: not is_free(served))
        wait_until(lambda: is_free(served))
        ports = asking.getpeername()[1], asking.getsockname()[1]
        wait_until(lambda: not connected(*ports))


def connected(local: int, remote: int) -> bool:
    """Whether the server's end of the connection between these ports is still there; others may share one of them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    ends = (f":{local:04X}", f":{remote:04X}")
    return any((row[1][-5:], row[2][-5:]) == ends and row[3] == established for row in rows)
