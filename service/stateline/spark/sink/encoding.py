"""Encodes a pipeline's result rows, as Arrow (`stateline.spark.sink.result_records` has the columns). Pure.

A record's key is made of the pipeline's `key` columns. One column is written by the result topic's key serde, several
are joined as texts by "|" (`sink.result_keys`). The times of a window or session follow. The value is the JSON of every
column whose name does not begin with "_" (`sink.json_texts`). The timestamp is the pipeline's `timestamp` column, or
the time of the micro-batch.

Arrow's kernels work by column and need no plan per micro-batch. Spark's own functions took as long as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.serde.windowed import WindowedSerde
from stateline.spark.columns import DELETED, KEY, OFFSET, ORDER, TOPIC
from stateline.spark.sink.json_texts import SHOWN_CHARACTERS, object_texts, without_json
from stateline.spark.sink.result_keys import inner_keys, window_suffixes
from stateline.spark.sink.result_records import ENCODED, topic_names
from stateline_store import TopologyError

_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def encoded_rows(batch: pa.RecordBatch, pipeline: Pipeline) -> pa.RecordBatch:
    """Return one encoded row per row of the result, in the same order."""
    count = len(batch)
    topics, bad_topic = _topics(batch, pipeline)
    keys, *bad = inner_keys(batch, pipeline)
    if pipeline.windowing is not None:
        suffixes, *bad_windows = window_suffixes(batch, pipeline.windowing)
        keys, bad = pc.binary_join_element_wise(keys, suffixes, b""), [*bad, *bad_windows]
    members = {name: batch.column(name) for name in value_columns(batch.schema.names)}
    values = object_texts(members, count).cast(pa.binary())
    bad_numbers = list(_bad_numbers(members))
    if DELETED in batch.schema.names:
        gone = pc.fill_null(batch.column(DELETED), fill_value=False)
        values = pc.if_else(gone, pa.scalar(None, pa.binary()), values)
        bad_numbers = [pc.if_else(gone, pa.scalar(None, pa.string()), said) for said in bad_numbers]
    reasons = pc.coalesce(bad_topic, *bad, *bad_numbers)
    times, order = _timestamps(batch, pipeline), _order(batch, pipeline)
    arrays = [keys, values, times, topics, order, _bad(batch, pipeline, reasons)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)


def _topics(batch: pa.RecordBatch, pipeline: Pipeline) -> tuple[pa.Array, pa.Array]:
    count, names = len(batch), topic_names(pipeline)
    if TOPIC not in batch.schema.names:
        return pa.repeat(pa.scalar(0, pa.int32()), count), pa.nulls(count, pa.string())
    given = batch.column(TOPIC)
    found = pc.index_in(given, pa.array(names))
    unknown = pc.and_(pc.is_null(found), pc.is_valid(given))
    said = pc.binary_join_element_wise(f"{TOPIC} is '", given, f"', and the pipeline writes to {', '.join(names)}", "")
    return pc.fill_null(found, 0), pc.if_else(unknown, said, pa.scalar(None, pa.string()))


def _bad_numbers(members: dict[str, pa.Array]) -> Iterator[pa.Array]:
    """Yield errors for rows with numbers that JSON lacks, one array per column that has such rows."""
    for name, array in members.items():
        if (found := without_json(array)) is not None:
            said = f"the column {name!r} holds NaN or an infinity, which JSON does not have"
            yield pc.if_else(found, pa.scalar(said), pa.scalar(None, pa.string()))


def _timestamps(batch: pa.RecordBatch, pipeline: Pipeline) -> pa.Array:
    if pipeline.timestamp is None:
        return pa.nulls(len(batch), pa.int64())
    array = batch.column(pipeline.timestamp)
    return (array.cast(_MILLISECONDS, safe=False) if pa.types.is_timestamp(array.type) else array).cast(pa.int64())


def _order(batch: pa.RecordBatch, pipeline: Pipeline) -> pa.Array:
    """Return the column `_order`. Records or changes of one topic that keep their key have the offset instead."""
    own = KEY in pipeline.key and len(pipeline.reads or pipeline.tables) == 1
    name = next((name for name in (ORDER, *([OFFSET] if own else [])) if name in batch.schema.names), None)
    return pa.nulls(len(batch), pa.int64()) if name is None else batch.column(name).cast(pa.int64())


def _bad(batch: pa.RecordBatch, pipeline: Pipeline, reasons: pa.Array) -> pa.Array:
    if reasons.null_count == len(reasons):
        return reasons
    shown = dict.fromkeys([*value_columns(batch.schema.names), *named_columns(pipeline)])
    rows = object_texts({name: batch.column(name) for name in shown}, len(batch))
    rows = pc.utf8_slice_codeunits(rows, 0, SHOWN_CHARACTERS)
    return pc.binary_join_element_wise(reasons, " in the result row ", rows, "")


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
