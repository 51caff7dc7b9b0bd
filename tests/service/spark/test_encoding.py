"""Result rows as records: what Arrow's kernels make of them is what plain Python makes of each (`row_oracle`)."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from service.spark.row_oracle import encoded, expected
from stateline import serdes
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.topic import Topic
from stateline.serde.plain import Serde
from stateline.spark.sink.json_texts import json_texts
from stateline.spark.sink.result_checks import check_schema
from stateline.spark.sink.result_records import result_records, topic_names
from stateline_store import RecordError, TopologyError

# Spark reads schemas that are written as text.
pytestmark = pytest.mark.usefixtures("session")

HOUR_MS = 3_600_000
SCHEMA = """
    name string, n int, big long, small tinyint, ok boolean, x double, f float, money decimal(12, 3),
    tiny decimal(20, 12), day date, at timestamp, local timestamp_ntz, raw binary,
    window struct<start: timestamp, end: timestamp>,
    nested struct<`a.b`: struct<at: timestamp, x: double>, tags: array<string>, `A`: int, a: int>,
    times array<timestamp>, xs array<double>, by_name map<string, double>, by_number map<int, struct<raw: binary>>,
    nothing void, `dotted.name` string, `NAME` string, _hidden string, _deleted boolean, _topic string, _order bigint
"""
PARTS = ["", "a", "a|b", "|", "\\", "a\\|"]
TEXTS = [*PARTS, 'quote " and \\', "tab\tnewline\n\x01\x1f\x7f", "äöü € 𝄞", "</script>", "null", "x" * 400]
NUMBERS = [0.0, -0.0, 0.1, 7.0, 1e10, 1.5e-7, 1e16, 1e300, 123456789.123, 5e-324]
WITHOUT_JSON = [math.nan, math.inf, -math.inf]
FIRST = datetime(1970, 1, 1, tzinfo=UTC)


def _time(chance: random.Random) -> datetime:
    seconds = chance.choice([0, chance.randrange(4_000_000_000), chance.randrange(4_000_000_000)])
    return FIRST + timedelta(seconds=seconds, microseconds=chance.choice([0, 0, 1, 500_000, 123_456, 999_999]))


def _number(chance: random.Random) -> float:
    return chance.choice(WITHOUT_JSON if chance.random() < 0.03 else NUMBERS)


def _row(chance: random.Random) -> tuple[Any, ...]:
    start = FIRST + timedelta(hours=chance.randrange(400_000))
    values: list[Any] = [
        chance.choice(TEXTS),
        chance.choice([0, -1, 2**31 - 1, -(2**31), chance.randrange(1000)]),
        chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(1000)]),
        chance.randrange(-128, 128),
        chance.random() < 0.5,
        _number(chance),
        chance.choice([0.1, 3.5, 1e30]),
        Decimal(chance.randrange(-(10**9), 10**9)) / 1000,
        Decimal(chance.choice([0, 1, -5, 10**13])) / 10**12,
        date(chance.randrange(1, 9999), 2, 28),
        _time(chance),
        _time(chance).replace(tzinfo=None),
        chance.randbytes(chance.randrange(90)),
        (start, start + timedelta(hours=1)),
        ((_time(chance), _number(chance)), [chance.choice(TEXTS), None], 1, None),
        [_time(chance), None],
        [_number(chance), None],
        {chance.choice(TEXTS): chance.choice([_number(chance), None])},
        {chance.randrange(9): (chance.randbytes(3),)},
        None,
        chance.choice(TEXTS),
        chance.choice(TEXTS),
        "hidden",
        chance.choice([True, False, None]),
        chance.choice(["out", "branch", "neither", None]),
        chance.randrange(10),
    ]
    return tuple(None if chance.random() < 0.1 else value for value in values)


def pipeline(*key: str, serde: Serde = serdes.string, windowing: Windowing | None = None, **more: Any) -> Pipeline:
    branch = (Topic("branch", serde, serdes.json),)
    return Pipeline("p", print, (), Topic("out", serde, serdes.json), key, branches=branch, windowing=windowing, **more)


WINDOWS = Windowing("window", "window", HOUR_MS)
SESSIONS = Windowing("session", "window", HOUR_MS // 2)
PIPELINES = [
    pipeline("name", timestamp="at"),
    pipeline("at", "name", "money", "tiny", "day", "raw", "ok", "n", "x", "local", timestamp="local"),
    pipeline("window"),
    pipeline("n", serde=serdes.int32, timestamp="big"),
    pipeline("big", serde=serdes.int32),
    pipeline("small", serde=serdes.int64),
    pipeline("raw", serde=serdes.bytes),
    pipeline("x", serde=serdes.float64),
    pipeline("name", serde=serdes.json),
    pipeline("name", serde=serdes.int32),
    pipeline("name", "n", serde=serdes.windowed(serdes.string), windowing=WINDOWS),
    pipeline("n", serde=serdes.session_windowed(serdes.int64), windowing=SESSIONS),
]


@pytest.fixture(scope="module")
def table(session: SparkSession) -> pa.Table:
    """A result as Spark hands it over, in several batches."""
    chance = random.Random(1)
    frame = session.createDataFrame([_row(chance) for _ in range(400)], SCHEMA, verifySchema=False)
    return frame.toArrow()


def check_against_oracle(table: pa.Table, pipeline: Pipeline) -> None:
    rows = encoded(table, pipeline).to_pylist()
    for row, given_row in zip(rows, table.to_pylist(maps_as_pydicts="strict"), strict=True):
        topic, key, value, timestamp_ms, bad = expected(given_row, pipeline)
        assert (row["bad"] or "").partition(" in the result row ")[0] == (bad or "")
        if bad is None:
            assert (topic_names(pipeline)[row["topic"]], row["key"]) == (topic, key)
            assert (None if row["value"] is None else json.loads(row["value"])) == value
            assert (row["timestamp_ms"], row["order"]) == (timestamp_ms, given_row.get("_order"))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_rows_of_all_types_are_what_plain_python_makes_of_them(table: pa.Table, pipeline: Pipeline) -> None:
    check_against_oracle(table, pipeline)
    check_against_oracle(table.slice(7, 11), pipeline)  # arrays that do not begin with their buffers
    check_against_oracle(table.slice(0, 0), pipeline)


# --- Keys of several columns


def keys_of(table: pa.Table) -> list[str]:
    made = encoded(table, pipeline(*table.schema.names))
    assert made["bad"].null_count == len(made)
    return [key.decode() for key in made["key"].to_pylist()]


def parts_of(key: str) -> tuple[str, ...]:
    """As `docs/formats/keys-and-values.md` says."""
    parts = re.findall(r"(?:^|\|)((?:[^\\|]|\\.)*)", key, re.S)
    return tuple(re.sub(r"\\(.)", r"\1", part, flags=re.S) for part in parts)


def test_keys_of_several_columns_have_worked_examples() -> None:
    ends = {("AT|T", "NY"): r"AT\|T|NY", ("AT", "T|NY"): r"AT|T\|NY", ("a\\", "b"): r"a\\|b", ("", ""): "|"}
    as_ever = {("JFK", "2013-01-01T05:00:00Z"): "JFK|2013-01-01T05:00:00Z", ("a b/c", "ü"): "a b/c|ü", ("", "a"): "|a"}
    for parts, key in (ends | as_ever).items():
        assert keys_of(pa.table({"x": [parts[0]], "y": [parts[1]]})) == [key]
    assert keys_of(pa.table({"x": [r"AT|\T"]})) == [r"AT|\T"]  # of one column the text itself


def test_no_two_keys_of_several_columns_are_the_same_and_each_gives_its_parts_back(session: SparkSession) -> None:
    parts = ["".join(letters) for length in range(4) for letters in itertools.product("a|\\", repeat=length)]
    names = session.createDataFrame([(part,) for part in parts], "x string")
    pairs = names.crossJoin(names.withColumnRenamed("x", "y")).toArrow()
    keys = keys_of(pairs)
    assert len(set(keys)) == len(parts) ** 2
    assert [parts_of(key) for key in keys] == list(zip(*pairs.to_pydict().values(), strict=True))


@given(st.lists(st.lists(st.text(st.sampled_from("a|\\\n") | st.characters(codec="utf-8")), min_size=3, max_size=3)))
def test_any_parts_come_back_out_of_their_key(rows: list[list[str]]) -> None:
    table = pa.table({name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate("xyz")})
    assert [parts_of(key) for key in keys_of(table)] == [tuple(row) for row in rows]


def test_a_prefix_of_whole_parts_finds_the_keys_that_begin_with_these_parts_alone() -> None:
    firsts = ["AT", "AT|T", "AT\\", "AT\\|", "ATX"]
    keys = keys_of(pa.table({"x": firsts, "y": ["T|NY"] * 5}))
    assert [key for key in keys if key.startswith("AT|")] == keys[:1]
    assert [key for key in keys if key.startswith(r"AT\|T|")] == keys[1:2]


@given(st.lists(st.text() | st.none(), max_size=20))
def test_any_texts_are_written_as_json(texts: list[str | None]) -> None:
    assert [json.loads(text) for text in json_texts(pa.array(texts, pa.string())).to_pylist()] == texts


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=20))
def test_any_numbers_are_written_exactly_and_as_doubles(numbers: list[float | None]) -> None:
    read = [json.loads(text) for text in json_texts(pa.array(numbers, pa.float64())).to_pylist()]
    assert [repr(number) for number in read] == [repr(number) for number in numbers]


@given(st.lists(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)) | st.none(), max_size=20))
def test_any_times_are_written_in_utc(times: list[datetime | None]) -> None:
    check_against_oracle(
        pa.table({"name": ["a"] * len(times), "at": pa.array(times, pa.timestamp("us", tz="UTC"))}), PIPELINES[0]
    )


def records(pipeline: Pipeline, **columns: Any) -> list[tuple[Any, ...]]:
    made = encoded(pa.table({name: [value] for name, value in columns.items()}), pipeline)
    return list(result_records(made, pipeline, 99, {"out": 4, "branch": 2}))


def test_a_row_of_hidden_columns_alone_is_an_empty_object_at_the_time_of_the_batch() -> None:
    assert records(pipeline("_k"), _k="a") == [("out", b"a", b"{}", 99, None)]


def test_a_deleted_row_may_hold_what_json_does_not_have() -> None:
    assert records(pipeline("name"), name="a", x=math.nan, _deleted=True) == [("out", b"a", None, 99, None)]


def test_numbers_that_json_does_not_have_are_fine_in_hidden_columns_and_in_keys_that_are_text() -> None:
    assert records(pipeline("_x"), _x=math.inf, _y=[math.nan]) == [("out", b"inf", b"{}", 99, None)]


def test_keys_of_type_json_have_times_as_text() -> None:
    key = {"at": datetime(2013, 1, 1, 5, 0, 0, 1500, tzinfo=UTC), "days": [date(2013, 1, 2)]}
    made = records(pipeline("_k", serde=serdes.json), _k=key)
    assert made[0][1] == b'{"at":"2013-01-01T05:00:00.001500+00:00","days":["2013-01-02"]}'


def test_bytes_that_are_no_text_are_replaced_in_a_value() -> None:
    torn = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"a\xff"]).buffers())
    assert json_texts(torn).to_pylist() == ['"ok"', '"a\N{REPLACEMENT CHARACTER}"']


def test_a_key_that_is_no_text_is_refused() -> None:
    torn = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"a\xff"]).buffers())
    with pytest.raises(RecordError, match=r"'name' is not UTF-8 text in the result row .*n.:2"):
        result_records(
            encoded(pa.table({"name": torn, "n": [1, 2]}), pipeline("name")), pipeline("name"), 0, {"out": 1}
        )


def _window(start_ms: int, end_ms: int) -> dict[str, datetime]:
    return {"start": FIRST + timedelta(milliseconds=start_ms), "end": FIRST + timedelta(milliseconds=end_ms)}


BAD = [
    pytest.param(pipeline("name"), {"name": None, "v": 2.5}, r"'name' is null.*2\.5", id="null key"),
    pytest.param(pipeline("k", serde=serdes.int32), {"k": 1 << 31}, "int32, and 2147483648 is", id="int32"),
    pytest.param(pipeline("k", serde=serdes.int64), {"k": "x"}, "int64, and 'x' is", id="int64"),
    pytest.param(pipeline("name"), {"name": "a", "_topic": "c"}, "_topic is 'c'.* out, branch", id="topic"),
    pytest.param(
        PIPELINES[10], {"name": "a", "n": 1, "window": _window(0, 5)}, "5 ms long.*windows of 3600000", id="window"
    ),
    pytest.param(PIPELINES[11], {"n": 1, "window": _window(0, 5)}, "session.*5 ms long.*gap of 1800000", id="session"),
    pytest.param(PIPELINES[10], {"name": "a", "n": 1, "window": _window(-HOUR_MS, 0)}, "before 1970", id="1969"),
    pytest.param(pipeline("name"), {"name": "a", "x": math.nan}, "'x' holds NaN or an infinity", id="nan"),
    pytest.param(pipeline("name"), {"name": "a", "x": [{"y": -math.inf}]}, "'x' holds NaN or an inf", id="nested"),
    pytest.param(pipeline("_k"), {"_k": {"x": math.nan}, "n": 1}, "key column '_k' holds NaN", id="key"),
    pytest.param(pipeline("x", serde=serdes.json), {"x": math.nan}, "'out' is json, and nan cannot", id="json key"),
]


@pytest.mark.parametrize(("pipeline", "columns", "says"), BAD)
def test_a_row_that_cannot_become_a_record_is_named(pipeline: Pipeline, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(RecordError, match=f"'p'.*{says}.*filter such rows"):
        records(pipeline, **columns)


def schema_of(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


REFUSED = [
    ("name string, _deleted int", "'_deleted' is int: cast it to boolean"),
    ("name string, _order string", "'_order' is string: cast it to bigint"),
    ("name string, _topic int", "'_topic' is int: cast it to string"),
    ("name string, at string", "timestamp, or milliseconds"),
    ("name string, v interval day", "'v' is interval day: cast it"),
    ("name string, v array<variant>", "'v' is variant: cast it"),
    ("name string, name string", "more than one column 'name': rename"),
]


@pytest.mark.parametrize(("columns", "says"), REFUSED)
def test_columns_that_cannot_be_written_are_refused_with_what_to_do(columns: str, says: str) -> None:
    schema = StructType([schema_of(column).fields[0] for column in columns.split(", ")])
    with pytest.raises(TopologyError, match=says):
        check_schema(pipeline("name", timestamp="at" if "at" in schema.names else None), schema)


def test_windows_and_sessions_need_a_struct_of_times() -> None:
    with pytest.raises(TopologyError, match=r"'window' is struct<start:string>: make it a struct of the timestamps"):
        check_schema(PIPELINES[10], schema_of("name string, n int, window struct<start: string>"))


REFUSED_PIPELINES = [
    (pipeline("k", serde=serdes.windowed(serdes.string)), r"no windows, but keys of 'out' are windowed-string"),
    (pipeline("k", windowing=Windowing("window", "w", 5)), r"of windows, but .*key=serdes\.windowed"),
    (pipeline("k", windowing=Windowing("session", "w", 5)), r"of sessions, but .*key=serdes\.session_windowed"),
    (pipeline("k", output_mode="complete", result="stream"), r"complete.*use 'update'"),
]


@pytest.mark.parametrize(("pipeline", "says"), REFUSED_PIPELINES)
def test_a_pipeline_whose_topics_do_not_fit_is_refused(pipeline: Pipeline, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        check_schema(pipeline, schema_of("k string, w struct<start: timestamp, end: timestamp>"))
