"""What is asked of a snapshot comes and nothing else. What a filter leaves out of one use of a DataFrame is there in
the next one, whatever Spark is told to push down."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.spark.source.scenes import STORES, Kinds, as_counted, read, reader, rows
from stateline.client.lean.client import LeanClient, LeanRequest
from stateline.client.lean.snapshot_rows import PartAddress
from stateline.spark.reading.cut import cut
from stateline.spark.reading.row_types import default_schema
from stateline.spark.reading.snapshot_reader import RowsPartition, SnapshotReader
from stateline.spark.reading.source_options import (
    BYTES_AT_ONCE,
    KEYS_AT_ONCE,
    distinct_keys,
    in_pieces,
    read_keys,
    read_options,
)
from stateline_store import InvalidArgumentError
from support.processes.query_server import OwningWorker
from support.run.length import long_only, long_or_short

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", pytest.param("false", marks=long_only("Spark filters what is not pushed down"))])
def pushdown(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether Spark is told to give Python sources its filters."""
    before = session.conf.get(_PUSHDOWN)
    session.conf.set(_PUSHDOWN, request.param)
    yield request.param
    session.conf.set(_PUSHDOWN, str(before))


@pytest.mark.usefixtures("pushdown")
def test_uses_of_one_dataframe_take_nothing_from_each_other(session: SparkSession, kinds: Kinds) -> None:
    expected = kinds.expected("plain")
    of_key = {key: [row for row in expected if row["key"] == key] for key in ("a", "b")}
    assert all(of_key.values())
    frame = read(session, kinds.url, "plain")
    a, b = (frame.where(f"key = '{key}'") for key in of_key)
    assert a.count() == len(of_key["a"])
    assert frame.count() == len(expected), "all of it, after a part of it"
    assert a.union(b).count() == len(of_key["a"]) + len(of_key["b"])
    assert frame.union(a).count() == len(expected) + len(of_key["a"])
    assert as_counted(rows(b)) == as_counted(of_key["b"])


@pytest.mark.parametrize("store", long_or_short(STORES, ["plain", "visits"]))
def test_rows_of_some_keys_are_those_of_these_keys(session: SparkSession, kinds: Kinds, store: str) -> None:
    wanted = ["a", "zürich", "nobody", "a"]
    found = rows(read(session, kinds.url, store, keys=json.dumps(wanted)))
    assert as_counted(found) == as_counted(row for row in kinds.expected(store) if row["key"] in wanted)
    assert not rows(read(session, kinds.url, store, keys="[]"))


def test_keys_of_every_type_are_written_as_in_a_body(
    session: SparkSession, client: httpx.Client, worker: OwningWorker
) -> None:
    def put() -> None:
        worker.stores["counts", 0].put((-2).to_bytes(8, "big", signed=True), bytes(8))
        worker.stores["blobs", 0].put(b"\x00\xff", b"")

    worker.run(put)
    worker.commit()
    for store, written, key in (("counts", -2, -2), ("blobs", "AP8=", b"\x00\xff")):
        frame = read(session, str(client.base_url), store, keys=json.dumps([written]))
        assert [row.key for row in frame.collect()] == [key]


_OTHER_TYPE = long_only("a text in place of an integer is in the gate")


@pytest.mark.parametrize(
    ("store", "keys", "says"),
    [
        pytest.param("aircraft", "[1]", "keys has 1, and those of 'aircraft' are string", marks=_OTHER_TYPE),
        ("counts", '["a"]', "keys has 'a', and those of 'counts' are int64"),
        pytest.param("counts", "[true]", "keys has True", marks=_OTHER_TYPE),
        ("places", "[[1, 2]]", "keys is not for keys of type json"),
    ],
)
def test_keys_of_another_type_are_refused_by_load(
    session: SparkSession, client: httpx.Client, store: str, keys: str, says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        read(session, str(client.base_url), store, keys=keys)
    # With a schema Spark asks nobody at `load()`.
    loaded = reader(session, str(client.base_url), store, keys=keys).schema("key string").load()
    with pytest.raises(PySparkException, match=says):
        loaded.collect()


def test_times_bound_the_timestamps_of_a_store_that_keeps_them(session: SparkSession, kinds: Kinds) -> None:
    expected = kinds.expected("stamped")
    middle = sorted(row["timestamp"] for row in expected)[len(expected) // 2]
    found = rows(read(session, kinds.url, "stamped", **{"from": middle}))
    assert as_counted(found) == as_counted(row for row in expected if row["timestamp"] >= middle)


def test_bounds_of_integers_that_have_nothing_between_them_are_refused(
    session: SparkSession, client: httpx.Client
) -> None:
    with pytest.raises(PySparkException, match="Read from -5 to -1, and from 0 to 5"):
        read(session, str(client.base_url), "counts", lower="-5", upper="5")


def test_columns_and_another_schema_are_refused(session: SparkSession, kinds: Kinds) -> None:
    loaded = reader(session, kinds.url, "plain", columns="key").schema("value STRING").load()
    with pytest.raises(PySparkException, match="leave out columns"):
        loaded.collect()


def test_a_cut_takes_how_to_ask_and_its_frames_what_of_it(session: SparkSession, kinds: Kinds) -> None:
    with cut(session, kinds.url, ["plain"], retryS="5") as made:
        found = rows(made.frame("plain", keys=["a", "zürich"]))
        assert as_counted(found) == as_counted(row for row in kinds.expected("plain") if row["key"] in ("a", "zürich"))
        with pytest.raises(InvalidArgumentError, match=r"columns='key' is a text: give a list, as in \['key'\]"):
            made.frame("plain", columns="key")
    with pytest.raises(InvalidArgumentError, match="no 'prefix'"), cut(session, kinds.url, ["plain"], prefix="a"):
        pass
    with pytest.raises(InvalidArgumentError, match="stores='plain' is a text"), cut(session, kinds.url, "plain"):
        pass


def test_many_keys_are_asked_for_in_pieces() -> None:
    keys = tuple(f"{n:03}{'鍵' * 20_000}" for n in range(100))  # six bytes each, as JSON: 12 MB
    assert read_keys(json.dumps(keys)) == keys
    pieces = list(in_pieces(keys))
    assert [key for piece in pieces for key in piece] == list(keys)
    assert max(len(json.dumps(piece)) for piece in pieces) <= BYTES_AT_ONCE
    assert [len(piece) for piece in in_pieces(range(1200))] == [KEYS_AT_ONCE, KEYS_AT_ONCE, 200]


@pytest.mark.parametrize(
    ("key_type", "given", "each_once"),
    [
        ("bytes", ["AP8=", "AP8", "AA=="], ["AP8=", "AA=="]),
        ("float64", [1, 1.0, 0.0, -0.0], [1, 0.0, -0.0]),
        ("int32", [5, 5], [5]),
        ("string", ["a", "b", "a"], ["a", "b"]),
        ("one's own", ["a", 1, "a"], ["a", 1]),
    ],
)
def test_keys_that_are_the_same_bytes_are_asked_for_once(
    key_type: str, given: list[object], each_once: list[object]
) -> None:
    assert repr(distinct_keys(given, "x", key_type)) == repr(tuple(each_once))


def test_of_more_keys_than_a_request_takes_all_come(kinds: Kinds) -> None:
    said = LeanClient((kinds.url,)).ask(LeanRequest("GET", "/v1/stores/plain"))
    made = kinds.client.post("/v1/snapshots", json={"stores": ["plain"]}).json()
    keys = json.dumps(["a", *(f"none-{n}" for n in range(1200)), "k2"])
    options = read_options({"url": kinds.url, "store": "plain", "keys": keys}, {})
    one = SnapshotReader(options, "", default_schema(said), said)
    found = [
        row
        for part in made["stores"]["plain"].values()
        for batch in one.read(RowsPartition(PartAddress.of(part)))
        for row in batch.to_pylist()
    ]
    wanted = [{"key": r["key"], "value": r["value"]} for r in kinds.expected("plain") if r["key"] in ("a", "k2")]
    assert as_counted({**row, "value": json.loads(row["value"])} for row in found) == as_counted(wanted)
    kinds.client.delete(f"/v1/snapshots/{made['id']}")
