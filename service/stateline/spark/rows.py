"""From a micro-batch's Arrow table to the records of the result topic. Pure.

A record's key is made of the pipeline's `key` columns: one as the result topic's key serde writes it (a
string serde takes the column's text), several as their texts joined by "|". Its value is the JSON of every
column whose name does not begin with "_"; times are ISO 8601 in UTC (``2013-01-01T05:00:00Z``), numbers
that JSON cannot write (NaN, infinities) are null, decimals are text, binary is base64. Its timestamp is the
pipeline's `timestamp` column, or the time of the micro-batch where there is none.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stateline.topology import Pipeline
from stateline_store import InvalidArgumentError, RecordError, TopologyError

_JSON_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC | orjson.OPT_NON_STR_KEYS
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
SHOWN_CHARACTERS = 300  # of a row in an error


class ResultRecord(NamedTuple):
    """One record to produce."""

    key: bytes
    value: bytes
    timestamp_ms: int


def check_pipeline(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Raise `TopologyError` unless rows of these columns can become records of the result topic."""
    needed = [*pipeline.key, *([pipeline.timestamp] if pipeline.timestamp else [])]
    for column in needed:
        if column not in columns:
            raise TopologyError(
                f"Pipeline {pipeline.name!r} names the column {column!r}, and its result has only "
                f"{', '.join(columns)}: add it, or name another."
            )
    if not pipeline.key:
        raise TopologyError(f"Pipeline {pipeline.name!r} names no key column: name at least one.")
    if len(pipeline.key) > 1 and pipeline.writes.key.name != "string":
        raise TopologyError(
            f"Pipeline {pipeline.name!r} joins {len(pipeline.key)} key columns to a text, but keys of "
            f"{pipeline.writes.name!r} are {pipeline.writes.key.name}: declare that topic with key=serdes.string."
        )
    if pipeline.writes.value.name != "json":
        raise TopologyError(
            f"Pipeline {pipeline.name!r} writes JSON, but values of {pipeline.writes.name!r} are "
            f"{pipeline.writes.value.name}: declare that topic with value=serdes.json."
        )


def result_records(table: pa.Table, pipeline: Pipeline, batch_time_ms: int) -> Iterator[ResultRecord]:
    """One record per row, in the table's order.

    Raises `RecordError` naming the row for a key that is null or that the topic's key serde cannot write.
    """
    names = [name for name in table.column_names if not name.startswith("_")]
    for batch in table.to_batches():
        columns = {name: _plain(batch.column(name)) for name in {*names, *pipeline.key}}
        keys = _keys(columns, pipeline)
        timestamps = _timestamps(batch, pipeline, batch_time_ms)
        rows = zip(*(columns[name] for name in names), strict=True) if names else iter([()] * len(batch))
        for key, row, timestamp_ms in zip(keys, rows, timestamps, strict=True):
            value = orjson.dumps(dict(zip(names, row, strict=True)), default=_other, option=_JSON_OPTIONS)
            yield ResultRecord(key, value, timestamp_ms)


def _plain(array: pa.Array) -> list[Any]:
    """The column's values as Python's, ready for JSON."""
    kind = array.type
    if pa.types.is_timestamp(kind) and _is_whole_seconds(array):
        # Text straight from Arrow: several times faster than a datetime per row.
        return pc.strftime(array.cast(pa.timestamp("s", tz="UTC")), format="%Y-%m-%dT%H:%M:%SZ").to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        rows = zip(*(_plain(child) for child in array.flatten()), strict=True)
        return [
            dict(zip(names, row, strict=True)) if valid else None
            for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_map(kind):
        return array.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]  # pyarrow is untyped
    return array.to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def _is_whole_seconds(array: pa.Array) -> bool:
    seconds = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False)
    # Years beyond four digits, or before 1000, are left to datetime, which refuses them.
    return bool(pc.all(pc.equal(seconds.cast(array.type), array), min_count=0).as_py())


def _keys(columns: dict[str, list[Any]], pipeline: Pipeline) -> Iterable[bytes]:
    parts = [columns[name] for name in pipeline.key]
    for name, values in zip(pipeline.key, parts, strict=True):
        if None in values:
            raise _bad_key(f"the key column {name!r} is null", values.index(None), columns, pipeline)
    serde = pipeline.writes.key
    if len(parts) > 1:
        return ["|".join(map(_text, row)).encode() for row in zip(*parts, strict=True)]
    to_value: Callable[[Any], Any] = _text if serde.name == "string" else lambda value: value
    keys: list[bytes] = []
    for value in parts[0]:
        try:
            keys.append(serde.serialize(to_value(value)))
        except InvalidArgumentError as error:
            what = f"the key of {pipeline.writes.name!r} is {serde.name}, and {str(error).rstrip('.')}"
            raise _bad_key(what, len(keys), columns, pipeline) from error
    return keys


def _bad_key(what: str, at: int, columns: dict[str, list[Any]], pipeline: Pipeline) -> RecordError:
    row = {column: values[at] for column, values in columns.items()}
    shown = orjson.dumps(row, default=_other, option=_JSON_OPTIONS).decode()
    return RecordError(
        f"Pipeline {pipeline.name!r}: {what} in the result row {shown[:SHOWN_CHARACTERS]}: filter such rows, or fill "
        "the column."
    )


def _text(value: Any) -> str:
    """A key column's value as text: times as in the JSON, a struct (such as a window) as its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return orjson.dumps(value, default=_other, option=_JSON_OPTIONS).decode().strip('"')
    return str(value)


def _timestamps(batch: pa.RecordBatch, pipeline: Pipeline, batch_time_ms: int) -> list[int]:
    if pipeline.timestamp is None:
        return [batch_time_ms] * len(batch)
    array = batch.column(pipeline.timestamp)
    if pa.types.is_timestamp(array.type):
        array = array.cast(_MILLISECONDS, safe=False)
    elif not pa.types.is_integer(array.type):
        raise TopologyError(
            f"Pipeline {pipeline.name!r}: the timestamp column {pipeline.timestamp!r} is {array.type}: make it a "
            "timestamp, or milliseconds since the epoch."
        )
    numbers: list[int] = pc.fill_null(array.cast(pa.int64()), batch_time_ms).to_pylist()
    return numbers


def _other(value: Any) -> Any:
    """JSON for what orjson does not know."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(datetime.now(UTC).timestamp() * 1000)
