"""Defaults of fields that a record lacks: one value, whether the record is read, written again or put without them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest

from service.serde.shop import of_topic, registry
from stateline import App, serdes
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


def field(kind: Any, *default: Any, name: str = "n") -> dict[str, Any]:
    return {"name": name, "type": kind, **({"default": default[0]} if default else {})}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


A = field("long", name="a")
N = record(field("int", 3, name="x"), field("bytes", "\u00ff", name="raw"), name="N")
DEEP = record(field(N, {}, name="n"), field({"type": "array", "items": "shop.N"}, [{}, {"x": 1}], name="all"), name="D")
X3 = {"x": 3, "raw": b"\xff"}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "record": (N, {}, X3),
    "part of a record": (N, {"x": 4}, {**X3, "x": 4}),
    "records in records": (DEEP, {}, {"n": X3, "all": [X3, {**X3, "x": 1}]}),
    "array": ({"type": "array", "items": N}, [{}], [X3]),
    "empty array": ({"type": "array", "items": "int"}, [], []),
    "map": ({"type": "map", "values": N}, {"k": {}}, {"k": X3}),
    "empty map": ({"type": "map", "values": N}, {}, {}),
    "union of a record": ([N, "null"], {}, X3),
    "union of bytes and text": (["bytes", "string"], "\u00ff", b"\xff"),
    "union of null": (["null", N], None, None),
    "second type of a union": (["null", N], {}, X3),
    "bytes": ("bytes", "\u00ff\u0001", b"\xff\x01"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, "\u00ffa", b"\xffa"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "Y", "Y"),
    "text": ("string", "none", "none"),
    "double": ("double", 0, 0.0),
    "double as an object": ({"type": "double"}, 1.5, 1.5),
    "NaN": ("double", "NaN", math.nan),
    "float": ({"type": "float"}, 0.1, 0.10000000149011612),
    "time of day": (logical("int", "time-millis"), 1000, time(0, 0, 1)),
    "timestamp": (logical("long", "timestamp-millis"), 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "date": (logical("int", "date"), 3, date(1970, 1, 4)),
    "decimal": (logical("bytes", "decimal", precision=5, scale=2), "\u0001", Decimal("0.01")),
    "uuid": (
        logical("string", "uuid"),
        "0198c0de-0000-7000-8000-0000000000ab",
        UUID(int=0x0198C0DE0000700080000000000000AB),
    ),
    "union of a time": (
        ["null", logical("long", "timestamp-micros")],
        5,
        datetime(1970, 1, 1, microsecond=5, tzinfo=UTC),
    ),
}


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # NaN, and 0 is not 0.0


@pytest.mark.parametrize("case", CASES)
def test_a_default_is_one_value_however_the_record_is_read_and_written(case: str) -> None:
    kind, default, value = CASES[case]
    at = registry()
    older, newer = of_topic(serdes.avro(record(A)), at), of_topic(serdes.avro(record(A, field(kind, default))), at)
    read = newer.deserialize(older.serialize({"a": 1}))
    assert same(read, {"a": 1, "n": value})
    written = newer.serialize({"a": 1})
    assert written == newer.serialize(read)
    assert same(newer.deserialize(written), read)
    assert same(orjson.dumps(newer.to_json(older.serialize({"a": 1}))), orjson.dumps(newer.to_json(written)))


@pytest.mark.parametrize(
    ("kind", "default"), [(logical("string", "uuid"), ""), (logical("int", "date"), 2**31 - 1)], ids=["uuid", "date"]
)
def test_a_default_that_only_the_type_below_the_logical_one_has_is_read_as_it_stands(kind: Any, default: Any) -> None:
    at = registry()
    older, newer = of_topic(serdes.avro(record(A)), at), of_topic(serdes.avro(record(A, field(kind, default))), at)
    assert newer.deserialize(older.serialize({"a": 1})) == {"a": 1, "n": default}


def test_records_within_arrays_maps_and_unions_get_defaults_too() -> None:
    def items(of: dict[str, Any]) -> Any:
        inner = [field({"type": "array", "items": of}, name="all"), field({"type": "map", "values": "I"}, name="by")]
        return serdes.avro(record(*inner, field(["null", "I"], None, name="one")))

    at, none, one = registry(), record(A, name="I"), record(A, field(N, {}), name="I")
    older, newer = of_topic(items(none), at), of_topic(items(one), at)
    given = {"all": [{"a": 1}, {"a": 2}], "by": {"k": {"a": 3}}, "one": {"a": 4}}
    read = newer.deserialize(older.serialize(given))
    assert read["all"] == [{"a": 1, "n": X3}, {"a": 2, "n": X3}]
    assert (read["by"], read["one"]) == ({"k": {"a": 3, "n": X3}}, {"a": 4, "n": X3})
    assert newer.serialize(given) == newer.serialize(read)


def test_a_default_that_a_function_changes_is_whole_in_the_next_record() -> None:
    at = registry()
    older = of_topic(serdes.avro(record(A)), at)
    newer = of_topic(serdes.avro(record(A, field({"type": "array", "items": "int"}, []), field(N, {}, name="m"))), at)
    data = older.serialize({"a": 1})
    for _ in range(2):
        read = newer.deserialize(data)
        assert read == {"a": 1, "n": [], "m": X3}
        read["n"].append(1)
        read["m"]["x"] = 9
        assert newer.serialize({"a": 1}) == newer.serialize({"a": 1, "n": [], "m": X3})


def test_what_is_written_stays_as_it_is_beside_defaults() -> None:
    serde = of_topic(serdes.avro(record(A, field(DEEP, {}), field(["int", "string"], "u", name="u"))), registry())
    value = {"a": 2**62, "n": {"n": {"x": 0, "raw": b""}, "all": []}, "u": 5}
    assert serde.deserialize(serde.serialize(value)) == value


@pytest.mark.parametrize(
    ("kind", "default", "says"),
    [
        (record(field("int", name="x"), name="N"), {}, "No default value for field x in shop.N"),
        (record(field("int", 3, name="x"), name="N"), {"x": "three"}, "'three' is no default of type int"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", "'abc' is no default of type fixed"),
        ({"type": "enum", "name": "E", "symbols": ["X"]}, "Y", "'Y' is no default of type enum"),
        ("bytes", "\u0100", "is no default of type bytes"),
        ("Endless", {}, "the default of the field n of shop.Endless has no end"),
    ],
)
def test_a_default_that_is_no_value_of_its_field_is_refused_where_it_is_declared(
    kind: Any, default: Any, says: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        serdes.avro(record(field(kind, default), name="Endless"))


def test_a_table_its_copy_a_function_and_rows_show_the_same_value_of_one_record() -> None:
    config = {"schema.registry.url": "mock://avro-defaults"}
    old, new = App("old"), App("new")
    old.table(old.topic("w", key=serdes.string, value=serdes.avro(record(A))), store="kept")
    with TestDriver(old, config=config) as driver:
        driver.pipe("w", "k", {"a": 1})
        kept: Any = driver.store("kept").of_partition(0)
        data = kept.get(b"k")
    topic = new.topic("w", key=serdes.string, value=serdes.avro(record(A, field(DEEP, {}))))
    got: list[Any] = []
    new.table(topic, store="table")
    new.stream(topic).to_table("copy")
    new.stream(topic).peek(lambda key, value: got.append(value)).to_table("after")
    with TestDriver(new, config=config) as driver:
        driver.pipe_bytes("w", b"k", data)
        stores = {name: driver.store(name).get("k") for name in ("table", "copy", "after")}
        ask = driver.client.get
        answers = [ask(f"/v1/stores/{name}/keys/k").json()["value"] for name in stores]
        rows = [ask(f"/v1/stores/{name}/range", headers={"Accept": "application/x-ndjson"}).text for name in stores]
    whole = {"a": 1, "n": CASES["records in records"][2]}
    assert [*stores.values(), *got] == [whole] * 4
    assert answers[0]["n"]["all"][1] == {"x": 1, "raw": "/w=="}
    assert answers == [answers[0]] * 3
    assert [orjson.loads(row.splitlines()[0])["value"] for row in rows] == answers
