"""Checks that the rows of a pipeline's result can become records of its topics, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.serde.windowed import WindowedSerde
from stateline.spark.columns import DELETED, ORDER, TOPIC
from stateline_store import TopologyError

TIMES = (t.TimestampType, t.TimestampNTZType)
_NO_JSON = (t.DayTimeIntervalType, t.YearMonthIntervalType, t.CalendarIntervalType, t.VariantType, t.UserDefinedType)
_OWN = {DELETED: (t.BooleanType, "boolean"), ORDER: (t.IntegralType, "bigint"), TOPIC: (t.StringType, "string")}


def value_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that become members of the value."""
    return [name for name in columns if not name.startswith("_")]


def named_columns(pipeline: Pipeline) -> list[str]:
    """Return the columns that the pipeline names. Its result must have them."""
    windowing = [pipeline.windowing.column] if pipeline.windowing else []
    return [*pipeline.key, *windowing, *([pipeline.timestamp] if pipeline.timestamp else [])]


def check_pipeline(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Raise `TopologyError` unless rows of these columns can become records of the pipeline's topics."""
    for column in named_columns(pipeline):
        if column not in columns:
            raise TopologyError(
                f"Pipeline {pipeline.name!r} names the column {column!r}, and its result has only "
                f"{', '.join(columns)}: add it, or name another."
            )
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        raise TopologyError(
            f"Pipeline {pipeline.name!r}: its result has more than one column {twice[0]!r}: rename one, or drop it."
        )
    if pipeline.output_mode == "complete" and pipeline.result == "stream":
        raise TopologyError(
            f"Pipeline {pipeline.name!r}: with output_mode='complete' rows that are gone are deleted, and a topic with "
            "result='stream' forgets what that needs: use 'update', or result='table'."
        )
    for topic in (pipeline.writes, *pipeline.branches):
        _check_topic(pipeline, topic)


def check_schema(pipeline: Pipeline, schema: t.StructType) -> None:
    """Raise `TopologyError` unless rows with these columns and types can become records of the pipeline's topics."""
    check_pipeline(pipeline, schema.names)
    kinds = {field.name: field.dataType for field in schema.fields}
    for name, (wanted, spoken) in _OWN.items():
        if name in kinds and not isinstance(kinds[name], wanted):
            raise _wrong_type(pipeline, name, kinds[name], f"cast it to {spoken}")
    for name in {*value_columns(schema.names), *pipeline.key}:
        if without := next((part for part in _parts(kinds[name]) if isinstance(part, _NO_JSON)), None):
            raise _wrong_type(pipeline, name, without, "cast it to a number or a text")
    if pipeline.timestamp and not isinstance(kinds[pipeline.timestamp], (*TIMES, t.IntegralType)):
        advice = "make it a timestamp, or milliseconds since the epoch"
        raise _wrong_type(pipeline, pipeline.timestamp, kinds[pipeline.timestamp], advice)
    if pipeline.windowing and not _is_window(kinds[pipeline.windowing.column]):
        advice = "make it a struct of the timestamps start and end, as window() and session_window() do"
        raise _wrong_type(pipeline, pipeline.windowing.column, kinds[pipeline.windowing.column], advice)


def _check_topic(pipeline: Pipeline, topic: Topic) -> None:
    windowing, key = pipeline.windowing, topic.key
    kind = key.kind if isinstance(key, WindowedSerde) else None
    if kind != (windowing.kind if windowing else None):
        wanted = {None: "string", "window": "windowed(…)", "session": "session_windowed(…)"}
        raise TopologyError(
            f"Pipeline {pipeline.name!r} has results of {windowing.kind if windowing else 'no window'}s, but keys of "
            f"{topic.name!r} are {key.name}: declare that topic with key=serdes."
            f"{wanted[windowing.kind if windowing else None]}, or change the pipeline's windowing."
        )
    inner = key.inner if isinstance(key, WindowedSerde) else key
    if len(pipeline.key) > 1 and inner.name != "string":
        raise TopologyError(
            f"Pipeline {pipeline.name!r} joins {len(pipeline.key)} key columns to a text, but keys of "
            f"{topic.name!r} are {key.name}: declare that topic with key=serdes.string."
        )
    if key.name != pipeline.writes.key.name:
        raise TopologyError(
            f"Pipeline {pipeline.name!r} writes to {pipeline.writes.name!r} and {topic.name!r}, but keys are "
            f"{pipeline.writes.key.name} in one and {key.name} in the other: declare both with the same serde."
        )
    if topic.value.name != "json":
        raise TopologyError(
            f"Pipeline {pipeline.name!r} writes JSON, but values of {topic.name!r} are "
            f"{topic.value.name}: declare that topic with value=serdes.json."
        )


def _parts(kind: t.DataType) -> list[t.DataType]:
    if isinstance(kind, t.StructType):
        return [kind, *(part for field in kind.fields for part in _parts(field.dataType))]
    if isinstance(kind, t.ArrayType):
        return [kind, *_parts(kind.elementType)]
    if isinstance(kind, t.MapType):
        return [kind, *_parts(kind.keyType), *_parts(kind.valueType)]
    return [kind]


def _is_window(kind: t.DataType) -> bool:
    return isinstance(kind, t.StructType) and all(
        name in kind.names and isinstance(kind[name].dataType, TIMES) for name in ("start", "end")
    )


def _wrong_type(pipeline: Pipeline, column: str, kind: t.DataType, advice: str) -> TopologyError:
    return TopologyError(f"Pipeline {pipeline.name!r}: the column {column!r} is {kind.simpleString()}: {advice}.")
