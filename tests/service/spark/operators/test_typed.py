"""Keys and values as typed columns: those of the serdes, what cannot be read, and what helpers keep of any type."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.operators.bench import OperatorBench, declare, newest
from stateline import serdes
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.model.topic import Topic
from stateline.spark import KTable
from stateline.spark.operators.packing import packed, struct_type, unpacked
from stateline.spark.sources.frames import TopicFrames, topic_frames
from stateline_store import TopologyError
from support.run.length import long_only

DOUBLES = [
    0.0,
    -0.0,
    1.5,
    -1e300,
    5e-324,
    2.2250738585072014e-308,
    math.inf,
    -math.inf,
    math.nan,
    0.1,
    1.7976931348623157e308,
]


class Backwards:
    """A serde of one's own: text from its end to its beginning."""

    name = "backwards"

    def serialize(self, value: str) -> bytes:
        return value[::-1].encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()[::-1]


def written(bench: OperatorBench, topic: Topic, records: Iterable[tuple[bytes | None, bytes | None]]) -> TopicFrames:
    """Frames that refuse what cannot be read, of a log with these records in the topic."""
    log = bench.log
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(topic.name, 1)])
    with closing(log.producer()) as producer:
        for key, value in records:
            producer.produce(topic.name, key, value, timestamp_ms=0)
        producer.flush()
    return topic_frames(bench.session, bench.config, log)


def batch(frames: TopicFrames, topic: Topic) -> list[tuple[Any, Any]]:
    return [(row["key"], row["value"]) for row in frames.static(topic).toArrow().to_pylist()]


def test_numbers_are_read_as_the_serdes_read_them(bench: OperatorBench) -> None:
    chance = random.Random(1)
    doubles = DOUBLES + [struct.unpack(">d", chance.randbytes(8))[0] for _ in range(300)]
    topic = Topic("numbers", serdes.int64, serdes.float64)
    keys = [0, -1, (1 << 63) - 1, -(1 << 63), *range(2, 2 + len(doubles))]
    records = dict(zip(keys, doubles, strict=False))
    frames = written(
        bench, topic, ((serdes.int64.serialize(k), serdes.float64.serialize(v)) for k, v in records.items())
    )
    found = {key: struct.pack(">d", value) for key, value in batch(frames, topic) if not math.isnan(value)}
    assert found == {key: struct.pack(">d", value) for key, value in records.items() if not math.isnan(value)}
    small = Topic("small", serdes.int32, serdes.string)
    numbers = [0, -1, (1 << 31) - 1, -(1 << 31)]
    frames = written(bench, small, ((serdes.int32.serialize(n), "ä".encode()) for n in numbers))
    assert sorted(batch(frames, small)) == [(number, "ä") for number in sorted(numbers)]


def test_a_serde_of_ones_own_comes_as_binary(bench: OperatorBench) -> None:
    topic = Topic("own", serdes.string, Backwards())  # type: ignore[arg-type]  # nothing else of it is used
    frames = written(bench, topic, [(b"k", b"cba")])
    read = F.udf(Backwards().deserialize, "string")
    assert frames.static(topic).select(read("value").alias("value")).toArrow().to_pylist() == [{"value": "abc"}]


STRING, INT32, INT64, JSON = serdes.string, serdes.int32, serdes.int64, serdes.json
BAD = {
    "keys": (Topic("keys", INT64, STRING), b"1234567", b"v", "key of record keys-0 offset 1 is not an int64, it has 7"),
    "values": (Topic("values", STRING, INT32), b"k", b"12345", "values-0 offset 1 is not an int32, it has 5"),
    "reals": (Topic("reals", STRING, serdes.float64), b"k", b"", "reals-0 offset 1 is not an float64, it has 0"),
    "texts": (
        Topic("texts", STRING, serdes.bytes),
        b"\xff",
        b"",
        "key of record texts-0 offset 1 is not UTF-8 text: FF",
    ),
    "rows": (Topic("rows", INT32, JSON, "n int"), b"key", b'{"n": 1}', "key of record rows-0 offset 1 is not an int32"),
    "parsed": (
        Topic("parsed", STRING, JSON, "n int"),
        b"k",
        b'{"n": "x"}',
        "parsed-0 offset 1 is not JSON of the topic",
    ),
}
GOOD = {
    "keys": (serdes.int64.serialize(1), b"v"),
    "values": (b"g", serdes.int32.serialize(1)),
    "reals": (b"g", serdes.float64.serialize(1)),
    "texts": (b"g", b""),
    "rows": (serdes.int32.serialize(1), b'{"n": 1}'),
    "parsed": (b"g", b'{"n": 1}'),
}


_IN_THE_GATE = ("keys", "texts", "parsed")
_THE_SAME = long_only("a number of another length is among the keys in the gate")


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in _IN_THE_GATE else _THE_SAME) for each in BAD])
def test_bytes_that_cannot_be_read_fail_and_are_named_or_are_left_out(bench: OperatorBench, name: str) -> None:
    topic, key, value, message = BAD[name]
    frames = written(bench, topic, [GOOD[name], (key, value)])
    with pytest.raises(PySparkException, match=message):
        frames.static(topic).toArrow()
    skip = bench.config.model_copy(update={"deserialization_exception_handler": "skip"})
    left = topic_frames(bench.session, skip, bench.log).static(topic).toArrow()
    assert left.num_rows == 1


def test_a_value_is_parsed_once(bench: OperatorBench) -> None:
    topic = Topic("objects", STRING, JSON, "n int, m int")
    frames = written(bench, topic, [(b"k", b'{"n": 1, "m": 2}')])
    frame = frames.static(topic).select("_key", "n", "m").where("n > 0")
    plan = frame._jdf.queryExecution().optimizedPlan()
    assert plan.toString().count("from_json") == 1
    assert [tuple(row) for row in frame.collect()] == [("k", 1, 2)]


app = App("operators")
rows = app.topic("rows", key=serdes.string, value=serdes.json, schema="n int")
plain = app.topic("plain", key=serdes.int32, value=serdes.int64)


@declare(app, reads=[], tables=[rows], key="_key")
def copied(rows: KTable) -> KTable:
    """A table as it is."""
    return rows


@declare(app, reads=[], tables=[plain], key="_key")
def copied_plain(plain: KTable) -> DataFrame:
    """The same of a topic without a schema."""
    return plain.to_stream()


@declare(app, reads=rows, tables=[rows], key="_key")
def both_ways(stream: DataFrame, table: KTable) -> DataFrame:
    """A topic as a stream and as a table at once."""
    return stream.select("_key", "n").unionAll(table.to_stream().select("_key", "n"))


def test_a_table_has_tombstones_and_refuses_records_without_a_key(bench: OperatorBench) -> None:
    pipelines = app.topology().pipelines
    bench.write("rows", [("a", {"n": 1}, 0), ("b", {"n": 2}, 1), ("a", None, 2)])
    with closing(bench.log.admin()) as admin:
        admin.create_topics([NewTopic("plain", 1)])
    with closing(bench.log.producer()) as producer:
        producer.produce("plain", serdes.int32.serialize(-3), serdes.int64.serialize(7), timestamp_ms=0)
        producer.flush()
    found = bench.run(pipelines["copied"], pipelines["copied_plain"])
    assert [row["_deleted"] for row in found["copied"]].count(True) == 1
    assert newest(found["copied"], "_key") == {"b": {"n": 2}}
    assert newest(found["copied_plain"], "_key") == {-3: {"value": 7}}
    bench.write("rows", [(None, {"n": 3}, 3), ("c", b"no JSON", 4), ("d", {"n": 4}, 5)])
    skip = bench.config.model_copy(update={"deserialization_exception_handler": "skip"})
    found = bench.run(pipelines["copied"], pipelines["both_ways"], config=skip)
    assert newest(found["copied"], "_key") == {"b": {"n": 2}, "d": {"n": 4}}
    assert [row["n"] for row in found["both_ways"]].count(3) == 1  # a stream may have records without a key
    bench.write("rows", [("c", {"n": 5}, 6)])
    with pytest.raises(PySparkException, match=r"no key, and a row of a table needs one|is not JSON"):
        bench.run(pipelines["copied"])


ANY_TYPES = """
    SELECT CAST('NaN' AS double) AS d, CAST(-0.0 AS double) AS z, CAST('Infinity' AS float) AS f, 0.1D AS tenth,
    9223372036854775807L AS l, CAST(12345678901234567890.123456789 AS decimal(38, 9)) AS dec, 'ä "\u2028' AS s,
    X'00FF' AS b, DATE'0001-01-01' AS day, TIMESTAMP'1582-10-15 00:00:00.000001' AS at,
    TIMESTAMP_NTZ'2024-02-29 23:59:59.999999' AS local, true AS yes, CAST(NULL AS int) AS none,
    array(1, NULL) AS list, map('k', 1.5D) AS pairs, named_struct('x', NULL, 'a.b', array('y')) AS parts
"""


def test_what_helpers_keep_comes_back_as_it_was(session: SparkSession, tmp_path: Path) -> None:
    frame = session.sql(ANY_TYPES)
    text = frame.select(packed(frame.columns).alias("text"))
    back = text.select(unpacked("text", frame.schema).alias("s")).select("s.*")
    assert repr(back.collect()) == repr(frame.collect())
    seen = json.loads(text.collect()[0]["text"])  # what functions in Python get
    assert (seen["at"], seen["none"]) == ("1582-10-15T00:00:00.000001Z", None)


def test_a_schema_that_spark_refuses_is_told() -> None:
    with pytest.raises(TopologyError, match="one type"):
        struct_type("int")
