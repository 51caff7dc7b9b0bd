"""Committed changes between two offsets, as Arrow: every kind of store, on both logs, over a real worker and server.

The oracle is the topic that a store's changes come from, shown as the change feed shows it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import orjson
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from stateline import serdes
from stateline.log import NewTopic, Record, open_log
from stateline.model.store_definition import StoreDefinition
from stateline.rows.columns import STREAM_END
from stateline.serde.plain import Serde
from stateline.server.changes.batches import BATCH_BYTES, change_batch, change_schema, pieces
from stateline.server.changes.routes import change_members
from stateline_store import DamagedDataError, Position
from stateline_store.rows.windowed_keys import session_key, window_key
from support.apps.changes_app import LOGGED, TABLES
from support.processes.change_scene import FIRST, PARTITIONS, Scene, placed
from support.processes.query_server import wait_until
from support.run.length import long_only, long_or_short, of_each_store, on_one_log
from support.run.patience import HANGING_S

STORES = (*TABLES, *LOGGED)
ON_KAFKA = ("newest", "counts")  # whose changes come from the input, and from a changelog
OF_A_CHANGELOG = ("counts",)  # which transactions leave gaps in
EVERY = long_or_short(1, 3)  # so many offsets further, spans meet next


class Served(NamedTuple):
    """A scene with its worker and server, and a client of that."""

    scene: Scene
    client: httpx.Client


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path_factory.mktemp('log') / 'log.db'}"
    return str(request.getfixturevalue("kafka_broker").bootstrap_servers)


@pytest.fixture(scope="module")
def served(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("rows")
    guarantee = "processing.guarantee=exactly_once_v2"  # transactions leave gaps among the offsets
    with closing(open_log(bootstrap, root)) as log, Scene(bootstrap, log, root, guarantee) as scene:
        scene.start_worker()
        _, client = scene.start_server("server.scans.max=1")
        scene.send(FIRST[:4])
        scene.settle(client)  # so that there are several commits
        scene.send(FIRST[4:])
        for store in STORES:
            scene.settle(client, store)
        yield Served(scene, client)


Offsets = Mapping[str, int]


def ends_of(client: httpx.Client, store: str, from_: str | None = None) -> Any:
    """What the server says of the offsets; asked again while it cannot tell."""
    parameters = {} if from_ is None else {"from": from_}
    answers: list[httpx.Response] = []

    def told() -> bool:
        answers.append(client.get(f"/v1/stores/{store}/changes/offsets", params=parameters))
        return answers[-1].status_code not in (429, 503)

    wait_until(told)
    assert answers[-1].status_code == 200, answers[-1].text
    return answers[-1].json()


def asked(client: httpx.Client, store: str, partition: int, begin: int, end: int, **more: Any) -> httpx.Response:
    parameters = {"partition": partition, "begin": begin, "end": end, **more}
    answers: list[httpx.Response] = []

    def let_in() -> bool:
        answers.append(client.get(f"/v1/stores/{store}/changes/rows", params=parameters))
        return answers[-1].status_code != 429  # the last stream was read, and its place may not be free yet

    wait_until(let_in)
    return answers[-1]


def rows_between(client: httpx.Client, store: str, begin: Offsets, end: Offsets, topic_id: str) -> list[dict[str, Any]]:
    """The changes of all partitions; a value of JSON is read."""
    found = []
    for partition in range(PARTITIONS):
        first, last = begin.get(str(partition), 0), end.get(str(partition), 0)
        answer = asked(client, store, partition, first, last, topic_id=topic_id)
        assert answer.status_code == 200, answer.text
        assert answer.content.endswith(STREAM_END)
        for row in pa.ipc.open_stream(answer.content).read_all().to_pylist():
            found.append({**row, "value": None if row["value"] is None else json.loads(row["value"])})
    return found


# What is given


@of_each_store(on_kafka=ON_KAFKA)
@pytest.mark.parametrize("store", STORES)
def test_the_rows_from_the_earliest_to_the_end_are_all_committed_changes(served: Served, store: str) -> None:
    told = ends_of(served.client, store, "earliest")
    assert told["topic"] == served.scene.topic(store)
    rows = rows_between(served.client, store, told["begin"], told["end"], told["topic_id"])
    assert rows == served.scene.changes(store)
    assert list(rows[0]) == [column["name"] for column in told["columns"]]


@of_each_store(on_kafka=OF_A_CHANGELOG)
@pytest.mark.parametrize("store", ["newest", "counts", "memory", "visits"])
def test_two_spans_that_meet_give_what_one_gives(served: Served, store: str) -> None:
    told = ends_of(served.client, store, "earliest")
    whole = served.scene.changes(store)
    for at in range(0, max(told["end"].values()) + 1, EVERY):
        middle = {partition: min(at, end) for partition, end in told["end"].items()}
        first = rows_between(served.client, store, told["begin"], middle, told["topic_id"])
        second = rows_between(served.client, store, middle, told["end"], told["topic_id"])
        assert sorted([*first, *second], key=placed) == whole


@of_each_store(on_kafka=())  # test_changes.py has a position there
@pytest.mark.parametrize("store", ["newest", "cache", "counts", "memory", "history"])
def test_after_latest_or_a_position_come_the_changes_that_were_not_there(served: Served, store: str) -> None:
    latest = ends_of(served.client, store, "latest")
    assert latest["begin"] == latest["end"]
    position = json.dumps(served.scene.settle(served.client, store))
    before = served.scene.changes(store)
    served.scene.send([("later", n) for n in range(1, 4)])
    served.scene.settle(served.client, store)
    added = [row for row in served.scene.changes(store) if row not in before]
    told = ends_of(served.client, store, position)
    for begin in (latest["begin"], told["begin"]):
        assert rows_between(served.client, store, begin, told["end"], told["topic_id"]) == added


def test_only_the_columns_that_are_named_come_in_that_order(served: Served) -> None:
    told = ends_of(served.client, "visits")
    end = told["end"]["0"]
    answer = asked(served.client, "visits", 0, 0, end, topic_id=told["topic_id"], columns="offset,start,key")
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.names == ["offset", "start", "key"]
    wanted = [{name: row[name] for name in table.schema.names} for row in served.scene.changes("visits")]
    assert table.to_pylist() == wanted[: table.num_rows]
    assert table.schema.metadata[b"stateline.topic_id"].decode() == told["topic_id"]


@on_one_log("embedded", "batches are cut behind the log")
def test_values_that_are_larger_than_a_batch_come_all(served: Served) -> None:
    served.scene.send([("large", "x" * 700_000) for _ in range(5)])
    served.scene.settle(served.client, "newest")
    told = ends_of(served.client, "newest", "earliest")
    rows = rows_between(served.client, "newest", told["begin"], told["end"], told["topic_id"])
    assert rows == served.scene.changes("newest")


def test_head_says_what_get_would_be(served: Served) -> None:
    told = ends_of(served.client, "counts")
    span = {"partition": 0, "begin": 0, "end": told["end"]["0"], "topic_id": told["topic_id"]}
    answer = served.client.head("/v1/stores/counts/changes/rows", params=span)
    assert (answer.status_code, answer.content) == (200, b"")


# What is refused


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("quiet/changes/offsets", 400, "UNKNOWN_QUERY_TYPE"),
        ("quiet/changes/rows?partition=0&begin=0&end=1&topic_id=x", 400, "UNKNOWN_QUERY_TYPE"),
        ("nope/changes/offsets", 404, "DOES_NOT_EXIST"),
        ("nope/changes/rows?partition=0&begin=0&end=1&topic_id=x", 404, "DOES_NOT_EXIST"),
        ("counts/changes/rows?partition=7&begin=0&end=1&topic_id=ID", 404, "DOES_NOT_EXIST"),
        ("counts/changes/offsets?from=yesterday", 422, "INVALID_ARGUMENT"),
        ("counts/changes/offsets?wait_ms=1", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=0&end=1", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0,1&begin=0&end=1&topic_id=ID", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=2&end=1&topic_id=ID", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=0&end=-1&topic_id=ID", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=0&end=1&topic_id=ID&columns=start", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=0&end=1&topic_id=ID&columns=key,key", 422, "INVALID_ARGUMENT"),
        ("counts/changes/rows?partition=0&begin=0&end=1&topic_id=another", 410, "CURSOR_EXPIRED"),
        ("counts/changes/rows?partition=0&begin=99999&end=99999&topic_id=ID", 410, "CURSOR_EXPIRED"),
        ("counts/changes/rows?partition=0&begin=0&end=99999&topic_id=ID", 503, "NOT_READY"),
        ('newest/changes/offsets?from={"in-RUN":{"0":100000}}', 410, "CURSOR_EXPIRED"),
    ],
)
def test_what_cannot_be_read_is_refused(served: Served, path: str, status: int, reason: str) -> None:
    topic_id = quote(ends_of(served.client, "counts")["topic_id"], safe="")
    answer = served.client.get(f"/v1/stores/{path}".replace("RUN", served.scene.run).replace("ID", topic_id))
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text


@on_one_log("embedded", "the server counts before it asks a log")
def test_a_stream_counts_as_a_scan(served: Served) -> None:
    """There may be one here; 2 MB do not fit between a server and a client that reads nothing."""
    served.scene.send([("much", "x" * 900_000) for _ in range(12)])
    served.scene.settle(served.client, "newest")
    told = ends_of(served.client, "newest")
    partition = str(sum(b"much") % PARTITIONS)
    span = {"partition": partition, "begin": 0, "end": told["end"][partition], "topic_id": told["topic_id"]}
    with served.client.stream("GET", "/v1/stores/newest/changes/rows", params=span) as reading:
        assert reading.status_code == 200
        answer = served.client.get("/v1/stores/newest/changes/rows", params=span)
        assert (answer.status_code, answer.json()["reason"]) == (429, "TOO_MANY_REQUESTS")
        assert int(answer.headers["retry-after"]) >= 1


# While things go wrong


@pytest.mark.parametrize(
    ("bootstrap", "store"),
    long_or_short(list(product(["embedded", "kafka"], ["counts", "memory"])), [("embedded", "counts")]),
    indirect=["bootstrap"],
    scope="module",
)
def test_what_is_in_the_changelog_and_not_committed_is_behind_the_end(
    bootstrap: str, store: str, tmp_path: Path
) -> None:
    """As a worker leaves it that is killed between the two steps of its commit; and the end never goes back."""
    with closing(open_log(bootstrap, tmp_path)) as log, Scene(bootstrap, log, tmp_path) as scene:
        worker = scene.start_worker()
        _, client = scene.start_server()
        scene.send([("a", 1), ("b", 1)])
        position = Position.from_json(scene.settle(client, store))
        before = ends_of(client, store)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        headers = (("v", b"\x00"), ("c", position.encode()))
        with closing(log.producer()) as producer:
            producer.produce(scene.topic(store), b"left", b"7", timestamp_ms=1, headers=headers, partition=1)
            producer.flush()
        assert ends_of(client, store)["end"] == before["end"]
        beyond = asked(client, store, 1, 0, before["end"]["1"] + 1, topic_id=before["topic_id"])
        assert beyond.status_code == 503
        scene.start_worker()
        seen = before["end"]

        def is_committed() -> bool:
            nonlocal seen
            now = ends_of(client, store)["end"]
            assert all(end >= seen[p] for p, end in now.items())
            seen = now
            return bool(seen["1"] > before["end"]["1"])

        wait_until(is_committed)
        rows = rows_between(client, store, before["end"], seen, before["topic_id"])
        assert [(row["key"], row["value"], row["partition"]) for row in rows] == [("left", 7, 1)]


@on_one_log("embedded", "either log tells another id of such a topic, as test_log_contract.py has it")
def test_of_a_topic_that_was_made_anew_nothing_is_given(bootstrap: str, tmp_path: Path) -> None:
    with closing(open_log(bootstrap, tmp_path)) as log, Scene(bootstrap, log, tmp_path) as scene:
        worker = scene.start_worker()
        _, client = scene.start_server()
        scene.send([("a", 1)])
        scene.settle(client)
        told = ends_of(client, "counts", "earliest")
        worker.terminate()
        worker.wait(HANGING_S)
        with closing(log.admin()) as admin:
            admin.delete_topics([scene.topic("counts")])
            gone = asked(client, "counts", 1, 0, told["end"]["1"], topic_id=told["topic_id"])
            admin.create_topics([NewTopic(scene.topic("counts"), PARTITIONS)])
        again = asked(client, "counts", 1, 0, told["end"]["1"], topic_id=told["topic_id"])
        for answer in (gone, again):
            assert (answer.status_code, answer.json()["reason"]) == (410, "CURSOR_EXPIRED"), answer.text


@long_only("test_change_feed.py has topics whose beginning is deleted")
@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_what_retention_has_deleted_is_refused_and_not_passed_over(bootstrap: str, tmp_path: Path) -> None:
    with closing(open_log(bootstrap, tmp_path)) as log, Scene(bootstrap, log, tmp_path) as scene:
        scene.start_worker()
        _, client = scene.start_server()
        scene.send([("a", n) for n in range(10)])
        scene.settle(client, "newest")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.delete_records([KafkaTopicPartition(scene.source, 1, 4)]).values():
            future.result(HANGING_S)
        told = ends_of(client, "newest", "earliest")
        assert (told["begin"]["1"], told["end"]["1"]) == (4, 10)
        assert asked(client, "newest", 1, 3, 10, topic_id=told["topic_id"]).status_code == 410
        rows = rows_between(client, "newest", told["begin"], told["end"], told["topic_id"])
        assert [row["offset"] for row in rows] == list(range(4, 10))


# Batches

TYPES: dict[str, tuple[Serde, st.SearchStrategy[Any]]] = {
    "string": (serdes.string, st.text(max_size=5)),
    "json": (serdes.json, st.integers() | st.text(max_size=5)),
    "int32": (serdes.int32, st.integers(-(2**31), 2**31 - 1)),
    "int64": (serdes.int64, st.integers(-(2**63), 2**63 - 1)),
    "float64": (serdes.float64, st.floats(allow_nan=False, allow_infinity=False)),
}
KINDS = ("key_value", "timestamped_key_value", "window", "timestamped_window", "session", "versioned")


@given(data=st.data(), kind=st.sampled_from(KINDS), type_=st.sampled_from(sorted(TYPES)))
def test_a_batch_says_what_the_change_feed_says(data: st.DataObject, kind: Any, type_: str) -> None:
    serde, values = TYPES[type_]
    definition = StoreDefinition("s", kind, serdes.int32, serde, window_size_ms=10)
    time = st.integers(0, 2**60)
    records = []
    for offset in range(data.draw(st.integers(0, 6))):
        key = serdes.int32.serialize(data.draw(st.integers(-(2**31), 2**31 - 1)))
        if definition.plain_kind == "window":
            key = window_key(key, data.draw(time))
        elif definition.plain_kind == "session":
            key = session_key(key, data.draw(time), data.draw(time))
        value = data.draw(st.none() | values)
        stored = None if value is None else serde.serialize(value)
        records.append(Record("log", 3, offset, data.draw(time), key, stored))
    batch = change_batch(definition, records, change_schema(definition))
    batch.validate(full=True)
    for row, record in zip(batch.to_pylist(), records, strict=True):
        told = orjson.loads(orjson.dumps(change_members(definition, record)))
        value = row["value"]
        if type_ == "json" and value is not None:
            value = json.loads(value)
        assert {**row, "value": value} == told


def test_bytes_that_are_not_of_the_type_are_damage() -> None:
    numbers = StoreDefinition("s", "key_value", serdes.int64, serdes.int64)
    windows = StoreDefinition("s", "window", serdes.bytes, serdes.bytes, window_size_ms=1)
    for definition in (numbers, windows):
        with pytest.raises(DamagedDataError):
            change_batch(definition, [Record("log", 0, 3, 1, b"short", None)], change_schema(definition))


@given(sizes=st.lists(st.integers(0, 3 * BATCH_BYTES), max_size=8))
def test_pieces_are_small_and_lose_nothing(sizes: list[int]) -> None:
    records = [Record("log", 0, n, 1, b"", bytes(size)) for n, size in enumerate(sizes)]
    found = list(pieces(records, lambda: 5))
    assert [record for some in found for record in some] == records
    assert all(len(some) == 1 or sum(len(r.value or b"") for r in some) <= BATCH_BYTES for some in found)
