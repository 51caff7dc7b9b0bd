"""Snapshots as DataFrames: of every kind of store the rows that the records make, pinned, typed, pruned."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import stateline.spark
from service.spark.source.scenes import OF_EACH_KIND, STORES, Kinds, as_counted, read, reader, rows, snapshots
from stateline.spark import json_value
from support.processes.query_server import OwningWorker
from support.run.length import long_only, long_or_short

_BESIDE_A_BACKUP = long_only("test_backup_frames.py compares the rows of this store over HTTP, too")


@pytest.mark.parametrize(
    "store", [pytest.param(store, marks=_BESIDE_A_BACKUP) if store in OF_EACH_KIND else store for store in STORES]
)
def test_a_frame_has_the_rows_that_the_records_make(session: SparkSession, kinds: Kinds, store: str) -> None:
    expected = kinds.expected(store)
    assert len(expected) > 5
    frame = read(session, kinds.url, store)
    assert as_counted(rows(frame)) == as_counted(expected)
    assert frame.rdd.getNumPartitions() == 3


def test_keys_and_values_have_the_types_of_the_store(
    session: SparkSession, client: httpx.Client, worker: OwningWorker
) -> None:
    def put() -> None:
        for n in (-5, 0, 7):
            worker.stores["counts", 1].put(n.to_bytes(8, "big", signed=True), (n * n).to_bytes(8, "big"))
        worker.stores["blobs", 2].put(b"\x00\xff", b"\xfe")
        worker.stores["places", 0].put(b'{"a":[1]}', b"[1, 2]")

    worker.run(put)
    worker.put("typed", {"n": 1})
    worker.commit()
    url = str(client.base_url)
    counts, blobs, places = (read(session, url, store) for store in ("counts", "blobs", "places"))
    assert counts.schema.simpleString() == "struct<key:bigint,value:bigint>"
    assert sorted(map(tuple, counts.collect())) == [(-5, 25), (0, 0), (7, 49)]
    assert blobs.schema.simpleString() == "struct<key:binary,value:binary>"
    assert [(bytes(key), bytes(value)) for key, value in blobs.collect()] == [(b"\x00\xff", b"\xfe")]
    assert list(map(tuple, places.collect())) == [('{"a":[1]}', "[1, 2]")]
    aircraft = read(session, url, "aircraft")
    assert aircraft.schema.simpleString() == "struct<key:string,value:string,timestamp:timestamp>"
    assert counts.where("key in (7, -5, 9)").count() == 2
    assert blobs.where(sf.col("key") == sf.lit(b"\x00\xff")).count() == 1
    assert places.where(sf.col("key") == '{"a":[1]}').count() == 1
    assert places.where(sf.col("key") == "no JSON").count() == 0


def test_a_frame_is_of_one_state_however_often_it_is_read(
    session: SparkSession, client: httpx.Client, worker: OwningWorker
) -> None:
    worker.put_all({f"pin-{n}": n for n in range(20)})
    worker.commit()
    frame = read(session, str(client.base_url), "aircraft", prefix="pin-")
    before = snapshots(client).keys()
    assert frame.count() == 20
    worker.put_all({f"pin-{n}": n for n in range(20, 30)})
    worker.commit()
    assert frame.count() == 20
    assert frame.alias("a").join(frame.alias("b"), "key").count() == 20
    assert len(snapshots(client).keys() - before) == 1, "one for all scans"
    assert read(session, str(client.base_url), "aircraft", prefix="pin-").count() == 30


def test_a_schema_chooses_columns_their_order_and_how_times_are_told(session: SparkSession, kinds: Kinds) -> None:
    expected = [(row["timestamp"], row["key"]) for row in kinds.expected("stamped")]
    frame = reader(session, kinds.url, "stamped").schema("timestamp BIGINT, key STRING").load()
    assert sorted(map(tuple, frame.collect())) == sorted(expected)
    named = read(session, kinds.url, "stamped", columns="value, key")
    assert named.columns == ["value", "key"]
    assert named.count() == len(expected)


def test_a_json_value_is_read_as_the_struct_that_the_schema_gives(session: SparkSession, kinds: Kinds) -> None:
    expected = sorted((row["key"], row["value"]["n"], row["value"]["x"]) for row in kinds.expected("plain"))
    ddl = "n BIGINT, x ARRAY<BIGINT>, absent STRING"
    strict = reader(session, kinds.url, "plain").schema(f"key STRING, value STRUCT<{ddl}>").load()
    lenient = read(session, kinds.url, "plain").withColumn("value", json_value(ddl))
    for frame in (strict, lenient):
        found = frame.select("key", "value.n", "value.x", "value.absent").collect()
        assert sorted((row.key, row.n, row.x) for row in found) == expected
        assert {row.absent for row in found} == {None}
    wrong = reader(session, kinds.url, "plain").schema("key STRING, value STRUCT<n: STRING>").load()
    with pytest.raises(Exception, match=r"A value is not of the type that the schema gives.*json_value"):
        wrong.collect()


_OTHER_TYPE = long_only("a time as a date is in the gate: it is refused in the same way")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param("key INT", "key int", marks=_OTHER_TYPE),
        pytest.param("nope STRING", "nope string", marks=_OTHER_TYPE),
        ("key STRING, value MAP<STRING, STRING>", "json_value"),
        ("key STRING, value STRUCT<n: INT NOT NULL>", "NOT NULL"),
        ("timestamp DATE", "timestamp date"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused(session: SparkSession, kinds: Kinds, schema: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        reader(session, kinds.url, "stamped").schema(schema).load().collect()


def test_versions_are_read_as_of_a_time(session: SparkSession, kinds: Kinds) -> None:
    expected = kinds.expected("history")
    ends = sorted({row["valid_to"] for row in expected if row["valid_to"] is not None})
    moments = ends[-1] - 1, ends[-1], max(row["timestamp"] for row in expected)
    asked = [(at, as_of) for at in moments for as_of in (at, datetime.fromtimestamp(at / 1000, UTC).isoformat())]
    for at, as_of in long_or_short(asked, asked[:4:3]):  # before and after a version ends, each in its own form
        valid = [r for r in expected if r["timestamp"] <= at and (r["valid_to"] is None or r["valid_to"] > at)]
        assert as_counted(rows(read(session, kinds.url, "history", as_of=as_of))) == as_counted(valid)


def test_a_cut_has_several_stores_of_one_moment_and_goes_with_its_block(session: SparkSession, kinds: Kinds) -> None:
    with stateline.spark.cut(session, kinds.url, ["plain", "visits"], ttl_s=60) as cut:
        details = kinds.client.get(f"/v1/snapshots/{cut.id}").json()
        assert cut.position.to_json() == details["position"]
        assert cut.stores == ("plain", "visits")
        plain = cut.frame("plain", columns=["key", "value"])
        visits = cut.frame("visits", schema="key STRING, start BIGINT, value BIGINT")
        counted = visits.groupBy("key").agg(sf.sum("value").alias("visits"))
        joined = {row.key: (json.loads(row.value), row.visits) for row in plain.join(counted, "key").collect()}
        assert cut.frame("plain", prefix="k").count() == len([k for k in joined if k.startswith("k")])
    expected: dict[str, Any] = {}
    for row in kinds.expected("visits"):
        expected[row["key"]] = expected.get(row["key"], 0) + row["value"]
    values = {row["key"]: row["value"] for row in kinds.expected("plain")}
    assert joined == {key: (values[key], total) for key, total in expected.items() if key in values}
    assert kinds.client.get(f"/v1/snapshots/{cut.id}").status_code == 410
    with pytest.raises(Exception, match=r"lease of the snapshot .* has ended"):
        plain.count()


def test_an_existing_snapshot_is_read_and_left_as_it_is(session: SparkSession, kinds: Kinds) -> None:
    made = kinds.client.post("/v1/snapshots", json={"stores": ["plain", "counts"], "ttl_s": 600}).json()
    found = rows(read(session, kinds.url, "counts", snapshot=made["id"]))
    assert as_counted(found) == as_counted(kinds.expected("counts"))
    assert kinds.client.get(f"/v1/snapshots/{made['id']}").json() == made
    with pytest.raises(Exception, match=r"has no 'visits', but plain, counts"):
        read(session, kinds.url, "visits", snapshot=made["id"]).collect()


@long_only("test_connect.py counts the snapshots of a pin")
def test_frames_of_one_pin_are_of_one_cut(session: SparkSession, kinds: Kinds) -> None:
    before = snapshots(kinds.client).keys()
    for store in ("plain", "visits"):
        assert read(session, kinds.url, store, pin="both", stores="visits,plain").count() > 0
    assert len(snapshots(kinds.client).keys() - before) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefx": "a"}, "There is no option 'prefx'"),
        ({"columns": "nope"}, "nope"),
        ({"snapshot": "x"}, "no id of a snapshot"),
        ({"snapshot": "0" * 24}, "no snapshot|never|0{24}"),
        ({"ttl_s": "soon"}, "ttl_s='soon'"),
        ({"prefix": "a", "lower": "b"}, "prefix stands alone"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    session: SparkSession, kinds: Kinds, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        read(session, kinds.url, "plain", **options).collect()


@pytest.mark.parametrize(
    ("store", "option", "says"),
    [
        ("plain", "as_of", "as_of is for stores of kind versioned, and 'plain' is of kind key_value"),
        ("visits", "as_of", "as_of is for stores of kind versioned, and 'visits' is of kind"),
        ("plain", "from", "from is for stores of kind timestamped_key_value, window, session, versioned"),
    ],
)
def test_times_that_a_store_does_not_have_are_refused_by_load(
    session: SparkSession, kinds: Kinds, store: str, option: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        read(session, kinds.url, store, **{option: "5"})
