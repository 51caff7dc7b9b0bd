"""What is pushed down of filters leaves out no row that they keep: of every kind of store, every type of key."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from service.spark.source.scenes import STORES, Kinds, as_counted, read, rows
from stateline.client.lean.client import LeanClient, LeanRequest
from stateline.client.lean.snapshot_rows import Part, RowsQuery, batches
from stateline.spark.reading.filters import (
    BYTES_AT_ONCE,
    KEYS_AT_ONCE,
    KEYS_MOST,
    Narrowed,
    StoreShape,
    in_pieces,
    narrowed,
)
from stateline.spark.reading.row_types import default_schema
from stateline.spark.reading.snapshot_reader import FilteringSnapshotReader, RowsPartition
from stateline.spark.reading.source_options import SourceOptions
from support.processes.query_server import OwningWorker
from support.run.length import long_or_short

MEANT: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, among: value in among,
    "StringStartsWith": lambda value, begin: value.startswith(begin),
    "IsNotNull": lambda value, _: True,
}
COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Served:
    """A store in a snapshot, and all of its rows with times as Spark has them."""

    server: LeanClient
    paths: list[str]
    shape: StoreShape
    names: tuple[str, ...]

    def read(self, found: Narrowed) -> list[dict[str, Any]]:
        queries = [RowsQuery(self.names, tuple(found.bounds.items()), found.keys)]
        gathered = []
        for path in self.paths:
            for query in queries:
                for batch in batches(self.server, path, query):
                    gathered += [_as_spark(row) for row in batch.to_pylist()]
        return gathered


def _as_spark(row: dict[str, Any]) -> dict[str, Any]:
    times = ("timestamp", "start", "end", "valid_to")
    return {k: EPOCH + timedelta(milliseconds=v) if k in times and v is not None else v for k, v in row.items()}


def served(client: httpx.Client, store: str, stack: ExitStack) -> Served:
    made = client.post("/v1/snapshots", json={"stores": [store], "ttl_s": 600}).json()
    stack.callback(client.delete, f"/v1/snapshots/{made['id']}")
    said = client.get(f"/v1/stores/{store}").json()
    paths = [part["path"] for part in made["stores"][store].values()]
    names = tuple(column["name"] for column in said["columns"])
    server = LeanClient((str(client.base_url),))
    return Served(server, paths, StoreShape(said["kind"], said["key_type"]), names)


@pytest.fixture(scope="module")
def all_kinds(kinds: Kinds) -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        yield {store: served(kinds.client, store, stack) for store in STORES}


@pytest.fixture(scope="module")
def all_keys(client: httpx.Client, worker: OwningWorker) -> Iterator[dict[str, Served]]:
    def put() -> None:
        for n in (-(2**63), -300, -256, -2, -1, 0, 1, 255, 256, 70_000, 2**63 - 1):
            worker.stores["counts", n % 3].put(n.to_bytes(8, "big", signed=True), bytes(8))
        for key in (b"\x00", b"\x00\x01", b"a", b"a\xff", b"b", b"\xff", b"\xff\xff"):
            worker.stores["blobs", len(key)].put(key, b"")
        for key in (b"1", b'"a"', b"[1, 2]", b"[1,2]", b"{}"):
            worker.stores["places", 0].put(key, b"1")

    worker.run(put)
    for key in ("", "a", "a\x00", "ab", "b", "zürich", "\U0001f600", "\uffff"):
        worker.put(key, 1)
    worker.commit()
    with ExitStack() as stack:
        yield {store: served(client, store, stack) for store in ("aircraft", "counts", "blobs", "places")}


def keeps(filters: list[Any], row: dict[str, Any]) -> bool:
    return all(
        row[each.attribute[0]] is not None
        and MEANT[type(each).__name__](row[each.attribute[0]], getattr(each, "value", None))
        for each in filters
    )


def check_all(one: Served, filters: st.SearchStrategy[list[Any]], examples: int) -> int:
    """Compare what is read with what is kept of all rows; how often less was read than there is."""
    everything = one.read(Narrowed())
    narrower = 0

    @settings(FEW, max_examples=examples)
    @given(filters)
    def check(chosen: list[Any]) -> None:
        nonlocal narrower
        found = one.read(narrowed(chosen, one.shape, {}))
        kept = [row for row in everything if keeps(chosen, row)]
        told = [(type(each).__name__, each.attribute[0], getattr(each, "value", None)) for each in chosen]
        assert as_texts(row for row in found if keeps(chosen, row)) == as_texts(kept), told
        narrower += len(found) < len(everything)

    check()
    return narrower


def test_no_row_of_any_kind_of_store_is_left_out(all_kinds: dict[str, Served]) -> None:
    narrower = 0
    for one in all_kinds.values():
        everything = one.read(Narrowed())
        moments = sorted({row[name] for row in everything for name in row if isinstance(row[name], datetime)})
        moments += [moment + timedelta(microseconds=500) for moment in moments[:2]]
        keys = sorted({row["key"] for row in everything})
        times = [name for name in one.names if name in ("timestamp", "start", "end", "valid_to")]
        of_times = [st.builds(kind, st.just((name,)), st.sampled_from(moments)) for kind in COMPARED for name in times]
        of_keys = [st.builds(kind, st.just(("key",)), st.sampled_from([*keys, "m"])) for kind in COMPARED]
        of_keys.append(st.builds(In, st.just(("key",)), st.lists(st.sampled_from([*keys, "m"]), max_size=4)))
        of_keys.append(st.builds(StringStartsWith, st.just(("key",)), st.sampled_from(["", "a", "k", "zü"])))
        of_keys.append(st.builds(IsNotNull, st.just(("key",))))
        chosen = st.lists(st.one_of(*of_times, *of_keys), min_size=1, max_size=3)
        narrower += check_all(one, chosen, long_or_short(50, 25))
    assert narrower > long_or_short(100, 50), "hardly anything is pushed down: the test shows nothing"


def as_texts(found: Any) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in found)


@pytest.mark.parametrize("store", ["aircraft", "counts", "blobs", "places"])
def test_no_row_of_any_type_of_key_is_left_out(all_keys: dict[str, Served], store: str) -> None:
    one = all_keys[store]
    everything = one.read(Narrowed())
    keys = sorted({row["key"] for row in everything})
    if store == "counts":
        keys += [n + d for n in keys for d in (-1, 1) if -(2**63) <= n + d < 2**63]
    if store == "places":
        keys += ["no JSON", "[2]", "NaN"]
    some = [st.builds(kind, st.just(("key",)), st.sampled_from(keys)) for kind in COMPARED]
    some.append(st.builds(In, st.just(("key",)), st.lists(st.sampled_from([*keys, None]), max_size=5)))
    if store == "aircraft":
        some.append(st.builds(StringStartsWith, st.just(("key",)), st.sampled_from(["", "a", "\U0001f600"])))

    assert check_all(one, st.lists(st.one_of(*some), min_size=1, max_size=3), 150) > 20


@pytest.mark.parametrize(
    ("filters", "shape", "bounds"),
    [
        ([GreaterThan(("key",), "b"), LessThan(("key",), "d")], ("key_value", "string"), {"lower": "b", "upper": "d"}),
        ([GreaterThan(("key",), -5)], ("key_value", "int64"), {}),
        ([GreaterThan(("key",), -5), LessThan(("key",), 9)], ("key_value", "int64"), {}),
        ([LessThan(("key",), -5)], ("key_value", "int32"), {"lower": str(-(2**31)), "upper": "-5"}),
        ([GreaterThan(("key",), 5), LessThan(("key",), 9)], ("key_value", "int32"), {"lower": "5", "upper": "9"}),
        ([EqualTo(("key",), 0.5)], ("key_value", "float64"), {}),
        ([EqualTo(("key",), b"x")], ("key_value", "my-own"), {}),
        ([EqualTo(("value",), "b")], ("key_value", "string"), {}),
        ([EqualTo(("value", "key"), "b")], ("key_value", "string"), {}),
        ([GreaterThan(("timestamp",), 7)], ("key_value", "string"), {}),
        ([GreaterThan(("timestamp",), 7)], ("timestamped_key_value", "string"), {"from": "7"}),
        ([GreaterThan(("timestamp",), 2**24)], ("timestamped_key_value", "string"), {"from": "016777216"}),
        ([GreaterThan(("start",), 7), LessThan(("start",), 9)], ("window", "string"), {"from": "7", "to": "9"}),
        ([GreaterThan(("end",), 9), LessThan(("start",), 7)], ("session", "string"), {"to": "7"}),
        ([GreaterThan(("valid_to",), 9), LessThan(("timestamp",), 7)], ("versioned", "string"), {"to": "7"}),
        (
            [GreaterThan(("valid_to",), 5), LessThan(("timestamp",), 7)],
            ("versioned", "string"),
            {"from": "4", "to": "7"},
        ),
        ([EqualTo(("key",), "k" * 3000)], ("key_value", "string"), {}),
    ],
)
def test_bounds_are_what_can_be_told_without_losing_rows(
    filters: list[Any], shape: tuple[str, str], bounds: dict[str, str]
) -> None:
    assert narrowed(filters, StoreShape(*shape), {}).bounds == bounds


def test_bounds_of_the_user_go_before_filters() -> None:
    shape = StoreShape("versioned", "string")
    filters: list[Filter] = [EqualTo(("key",), "b"), LessThan(("timestamp",), 5)]
    assert narrowed(filters, shape, {"prefix": "a", "as_of": "7"}) == Narrowed({"prefix": "a", "as_of": "7"})
    assert narrowed(filters, shape, {"from": "9"}).bounds == {"from": "9", "lower": "b", "upper": "b"}


def test_many_keys_are_asked_for_in_pieces_and_too_many_as_a_range() -> None:
    shape = StoreShape("key_value", "string")
    keys = [f"k{n:05}" for n in range(KEYS_MOST)]
    found = narrowed([In(("key",), tuple(keys))], shape, {})
    assert found.keys == tuple(keys)
    more = narrowed([In(("key",), (*keys, "z"))], shape, {})
    assert more == Narrowed({"lower": "k00000", "upper": "z"})


def test_keys_of_many_bytes_are_asked_for_in_more_pieces_and_one_that_no_body_takes_as_a_range() -> None:
    shape = StoreShape("key_value", "string")
    keys = tuple(f"{n:03}{'鍵' * 20_000}" for n in range(100))  # six bytes each, as JSON: 12 MB
    assert narrowed([In(("key",), keys)], shape, {}).keys == keys
    pieces = list(in_pieces(keys))
    assert [key for piece in pieces for key in piece] == list(keys)
    assert max(len(json.dumps(piece)) for piece in pieces) <= BYTES_AT_ONCE
    assert [len(piece) for piece in in_pieces(range(1200))] == [KEYS_AT_ONCE, KEYS_AT_ONCE, 200]
    assert narrowed([In(("key",), ("a", "鍵" * 200_000))], shape, {}).keys is None


CONDITIONS = {
    "plain": ["key = 'a'", "key in ('a', 'b', 'none')", "key like 'k%'", "key > 'a' and key <= 'k2'", "key <=> 'a'"],
    "stamped": ["timestamp > '{middle}'", "timestamp <= '{middle}' and key >= 'b'", "timestamp is not null"],
    "newest": ["start >= '{middle}'", "start < '{middle}' and key in ('a', 'zürich')"],
    "visits": ["end >= '{middle}'", "start <= '{middle}'", "end > '{middle}' and start < '{middle}'"],
    "history": ["valid_to > '{middle}'", "timestamp <= '{middle}' and valid_to > '{middle}'", "valid_to is null"],
}


@pytest.mark.parametrize("store", long_or_short(list(CONDITIONS), ["plain", "history"]))
def test_spark_finds_the_same_with_and_without_pushdown(session: SparkSession, kinds: Kinds, store: str) -> None:
    whole = rows(read(session, kinds.url, store))
    times = sorted({row[name] for row in whole for name in ("timestamp", "start") if name in row})
    middle = datetime.fromtimestamp(times[len(times) // 2] / 1000, UTC).isoformat() if times else ""
    found: dict[bool, list[Any]] = {}
    for pushed in (True, False):
        session.conf.set("spark.sql.python.filterPushdown.enabled", str(pushed).lower())
        try:
            frame = read(session, kinds.url, store, pin=f"conditions of {store}")
            conditions = [each.format(middle=middle) for each in CONDITIONS[store]]
            found[pushed] = [as_counted(rows(frame.where(condition))) for condition in conditions]
        finally:
            session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert found[True] == found[False]
    assert all(
        0 < total.total() < len(whole) or "null" in each
        for total, each in zip(found[True], CONDITIONS[store], strict=True)
    )


def test_only_what_is_wanted_is_asked_of_the_server(kinds: Kinds) -> None:
    """Of 400 keys in pieces, each a seek: the rows of these and no others are sent."""
    said = LeanClient((kinds.url,)).ask(LeanRequest("GET", "/v1/stores/plain"))
    made = kinds.client.post("/v1/snapshots", json={"stores": ["plain"]}).json()
    options = SourceOptions(LeanClient((kinds.url,)), "plain", ("plain",))
    reader = FilteringSnapshotReader(options, "", default_schema(said), said)
    pushed: list[Filter] = [In(("key",), ("a", "k2", *(f"none-{n}" for n in range(1200))))]
    assert list(reader.pushFilters(pushed)) == pushed
    found: list[dict[str, Any]] = []
    for part in made["stores"]["plain"].values():
        for batch in reader.read(RowsPartition(Part.of(part))):
            found += batch.to_pylist()
    wanted = [{"key": r["key"], "value": r["value"]} for r in kinds.expected("plain") if r["key"] in ("a", "k2")]
    assert as_counted({**row, "value": json.loads(row["value"])} for row in found) == as_counted(wanted)
    kinds.client.delete(f"/v1/snapshots/{made['id']}")
