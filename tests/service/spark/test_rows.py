"""Result rows as records, and the arithmetic of the embedded source."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest

from service.spark.row_oracle import encoded
from stateline import serdes
from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.serde.plain import Serde
from stateline.spark.sink.result_checks import check_pipeline
from stateline.spark.sink.result_records import ResultRecord, result_records
from stateline.spark.sources.embedded_offsets import limited, to_json, to_offsets, to_topic_ids
from stateline_store import RecordError, TopicPartition, TopologyError

WHEN = datetime(2013, 1, 1, 5, tzinfo=UTC)
MICRO = pa.timestamp("us", tz="UTC")


def pipeline(*key: str, key_serde: Serde = serdes.string, timestamp: str | None = None) -> Pipeline:
    return Pipeline("p", print, (), Topic("out", key_serde, serdes.json), key, timestamp=timestamp)


def records(columns: dict[str, pa.Array], pipeline: Pipeline) -> list[ResultRecord]:
    made = result_records(encoded(pa.table(columns), pipeline), pipeline, 99, {"out": 4})
    return [ResultRecord(*parts) for parts in made]


def one(columns: dict[str, pa.Array], pipeline: Pipeline) -> tuple[bytes, Any, int]:
    (record,) = records(columns, pipeline)
    return record.key, orjson.loads(record.value or b"null"), record.timestamp_ms


def test_a_row_is_json_of_every_column_but_those_with_an_underscore() -> None:
    columns = {
        "k": pa.array(["a"]),
        "at": pa.array([WHEN], MICRO),
        "fine": pa.array([WHEN.replace(microsecond=1500)], MICRO),
        "window": pa.array([{"start": WHEN, "n": 1}], pa.struct([("start", MICRO), ("n", pa.int32())])),
        "money": pa.array([Decimal("1.50")]),
        "raw": pa.array([b"\x00\xff"]),
        "day": pa.array([date(2013, 1, 1)]),
        "tags": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int32())),
        "times": pa.array([[WHEN]], pa.list_(MICRO)),
        "none": pa.array([None], MICRO),
        "_hidden": pa.array([1]),
    }
    assert one(columns, pipeline("k")) == (
        b"a",
        {
            "k": "a",
            "at": "2013-01-01T05:00:00Z",
            "fine": "2013-01-01T05:00:00.001500Z",
            "window": {"start": "2013-01-01T05:00:00Z", "n": 1},
            "money": "1.50",
            "raw": "AP8=",
            "day": "2013-01-01",
            "tags": {"x": 1},
            "times": ["2013-01-01T05:00:00Z"],
            "none": None,
        },
        99,
    )


def test_several_key_columns_are_joined_as_text() -> None:
    columns = {"a": pa.array(["x"]), "b": pa.array([WHEN], MICRO), "c": pa.array([-3])}
    assert one(columns, pipeline("a", "b", "c"))[0] == b"x|2013-01-01T05:00:00Z|-3"


def test_one_key_column_is_written_by_the_key_serde() -> None:
    key, _, _ = one({"n": pa.array([5])}, pipeline("n", key_serde=serdes.int64))
    assert key == (5).to_bytes(8, "big")


def test_a_key_that_its_serde_cannot_write_is_refused_with_the_row() -> None:
    columns = {"n": pa.array([5, 2**31]), "v": pa.array(["fine", "too large"])}
    with pytest.raises(RecordError, match=r"key of 'out' is int32.*2147483648.*too large"):
        records(columns, pipeline("n", key_serde=serdes.int32))


def test_a_hidden_column_can_be_the_key_and_the_timestamp() -> None:
    columns = {"_k": pa.array(["a"]), "_t": pa.array([WHEN], MICRO), "v": pa.array([1])}
    expected = (b"a", {"v": 1}, int(WHEN.timestamp() * 1000))
    assert one(columns, pipeline("_k", timestamp="_t")) == expected


def test_a_row_without_a_time_gets_that_of_the_batch() -> None:
    columns = {"k": pa.array(["a"]), "_t": pa.array([None], pa.int64())}
    assert one(columns, pipeline("k", timestamp="_t"))[2] == 99


@pytest.mark.parametrize(
    ("broken", "columns"),
    [
        (pipeline("k"), ["other"]),
        (pipeline("k", timestamp="t"), ["k"]),
        (pipeline("a", "b", key_serde=serdes.int64), ["a", "b"]),
    ],
)
def test_a_pipeline_whose_rows_cannot_become_records_is_refused(broken: Pipeline, columns: list[str]) -> None:
    with pytest.raises(TopologyError):
        check_pipeline(broken, columns)


def test_offsets_survive_json_and_equal_ones_have_equal_text() -> None:
    one_way = {TopicPartition("b", 10): 3, TopicPartition("b", 2): 1, TopicPartition("a", 0): 0}
    ids = {"a": "id of a", "b": "id of b"}
    json = to_json(one_way, ids)
    assert orjson.dumps(json) == orjson.dumps(to_json(dict(reversed(one_way.items())), dict(reversed(ids.items()))))
    assert to_offsets(json) == {TopicPartition("b", 10): 3, TopicPartition("b", 2): 1}
    assert to_topic_ids(json) == {"b": "id of b"}


def test_a_limit_is_shared_in_proportion_and_no_partition_starves() -> None:
    a, b, c = (TopicPartition("t", n) for n in range(3))
    assert limited({a: 100}, {a: 1100, b: 9000, c: 1}, 100) == {a: 109, b: 89, c: 1}
    assert limited({a: 100}, {a: 105}, 100) == {a: 105}
    assert limited({}, {a: 105}, None) == {a: 105}
