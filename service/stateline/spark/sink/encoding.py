"""Encodes a pipeline's result rows, as Arrow (`stateline.spark.sink.result_records` has the columns). Pure.

A record's key is made of the pipeline's `key` columns. One column is written by the result topic's key serde, several
are joined as texts by "|" (`sink.result_keys`). The times of a window or session follow. The value is the JSON of every
column whose name does not begin with "_" (`sink.json_texts`). The timestamp is the pipeline's `timestamp` column, or
the time of the micro-batch.

Arrow's kernels work by column and need no plan per micro-batch. Spark's own functions took as long as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from stateline.model.pipeline import Pipeline
from stateline.spark.columns import DELETED, KEY, OFFSET, ORDER, TOPIC
from stateline.spark.sink.json_texts import SHOWN_CHARACTERS, object_texts, without_json
from stateline.spark.sink.result_checks import named_columns, value_columns
from stateline.spark.sink.result_keys import inner_keys, window_suffixes
from stateline.spark.sink.result_records import ENCODED, topic_names

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
