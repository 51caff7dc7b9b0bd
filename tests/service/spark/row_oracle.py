"""What a result row must become, in plain Python: a row at a time, from Arrow's Python values."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from stateline.model.pipeline import Pipeline
from stateline.serde.plain import Serde
from stateline.serde.windowed import WindowedSerde
from stateline.spark.sink.encoding import encoded_rows
from stateline.spark.sink.result_records import ENCODED
from stateline_store import InvalidArgumentError


class Expected(NamedTuple):
    """A record; the value as JSON's values, None for a tombstone. With `bad` the rest is void."""

    topic: str
    key: bytes
    value: Any
    timestamp_ms: int | None
    bad: str | None = None


def encoded(table: pa.Table, pipeline: Pipeline) -> pa.Table:
    """What the product makes of these rows, for comparison."""
    return pa.Table.from_batches([encoded_rows(batch, pipeline) for batch in table.to_batches()], ENCODED)


def expected(given: dict[str, Any], pipeline: Pipeline) -> Expected:
    """The record of this row."""
    try:
        topic = _topic(given, pipeline)
        key = _key(given, pipeline)
        _check_numbers(given)
    except InvalidArgumentError as error:
        return Expected("", b"", None, None, str(error).rstrip("."))
    value = {name: jsonable(member) for name, member in given.items() if not name.startswith("_")}
    time = given[pipeline.timestamp] if pipeline.timestamp else None
    return Expected(topic, key, None if given.get("_deleted") else value, _ms(time))


def jsonable(value: Any) -> Any:
    """What JSON says of a value."""
    if isinstance(value, dict):
        return {str(name): jsonable(member) for name, member in value.items()}
    if isinstance(value, list):
        return [jsonable(member) for member in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return base64.b64encode(bytes(value)).decode() if isinstance(value, bytes) else value


def _check_numbers(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if not (name.startswith("_") or given.get("_deleted") or _finite(value)):
            raise InvalidArgumentError(f"the column {name!r} holds NaN or an infinity, which JSON does not have")


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, [*value, *(value.values() if isinstance(value, dict) else [])]))
    return not isinstance(value, float) or math.isfinite(value)


def _topic(given: dict[str, Any], pipeline: Pipeline) -> str:
    names = [topic.name for topic in (pipeline.writes, *pipeline.branches)]
    topic = given.get("_topic")
    if topic is not None and topic not in names:
        raise InvalidArgumentError(f"_topic is {topic!r}, and the pipeline writes to {', '.join(names)}")
    return topic or names[0]


def _key(given: dict[str, Any], pipeline: Pipeline) -> bytes:
    parts = [given[name] for name in pipeline.key]
    for name, part in zip(pipeline.key, parts, strict=True):
        if part is None:
            raise InvalidArgumentError(f"the key column {name!r} is null")
        if isinstance(part, dict | list) and not _finite(part):
            raise InvalidArgumentError(f"the key column {name!r} holds NaN or an infinity, which JSON does not have")
    serde = pipeline.writes.key
    if not isinstance(serde, WindowedSerde):
        return _inner(parts, serde, pipeline)
    key = _inner(parts, serde.inner, pipeline)
    assert pipeline.windowing is not None
    window = given[pipeline.windowing.column]
    start, end = (None, None) if window is None else (_ms(window["start"]), _ms(window["end"]))
    if start is None or end is None:
        raise InvalidArgumentError(f"the {serde.kind} column {pipeline.windowing.column!r} is null")
    if serde.kind == "window":
        return key + start.to_bytes(8, "big") + bytes(4)
    return key + (end - pipeline.windowing.size_ms).to_bytes(8, "big") + start.to_bytes(8, "big")


def _inner(parts: list[Any], serde: Serde, pipeline: Pipeline) -> bytes:
    if len(parts) > 1 or serde.name == "string":
        texts = [_text(part) for part in parts]
        whole = [text.replace("\\", r"\\").replace("|", r"\|") for text in texts] if len(parts) > 1 else texts
        return "|".join(whole).encode()
    try:
        return serde.serialize(parts[0])
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the key of {pipeline.writes.name!r} is {serde.name}, and {error}") from error


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    told = jsonable(value)
    return told if isinstance(told, str) else json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _ms(time: Any) -> int | None:
    if not isinstance(time, datetime):
        return None if time is None else int(time)
    since = _utc(time) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)
