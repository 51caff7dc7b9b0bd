"""A topic's record as a JSON object in one line: what `stateline consume --format jsonl` writes, `produce` reads.

    {"key", "value", "timestamp", "headers": [[name, text or null]], "partition", "topic", "offset"}

- `key` and `value` are as the topic's types show them in answers, null where there is none: a value of null deletes.
- What is no text of that type is in `key_base64`, `value_base64`, as it is. So is a JSON value that is null itself.
- A header's value is text, or ``{"base64": …}``. `headers` may be an object of names and texts.
- `timestamp` is milliseconds, or ISO 8601 with a zone.
- `topic`, `offset` and `dead_letter` are of `consume` alone; `produce` passes them over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from stateline.log.interface import Headers
from stateline.processing.event_times import zoned_time_ms
from stateline.serde.plain import Serde, holds_large_integer, load_exactly, shown
from stateline_store import InvalidArgumentError
from stateline_store.windowed_keys import MAX_TIMESTAMP_MS

Format: TypeAlias = Literal["text", "jsonl"]
"""What lines are: for people, or this."""
FORMATS: tuple[Format, ...] = ("text", "jsonl")
_MEMBERS = ("key", "value", "key_base64", "value_base64", "timestamp", "headers", "partition")
_PASSED_OVER = ("topic", "offset", "dead_letter")


class Given(NamedTuple):
    """A record to be written. None: no timestamp, or partition, of its own."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Headers = ()
    partition: int | None = None


def read_record(text: str, key: Serde, value: Serde) -> Given:
    """The record of one line. Raises `InvalidArgumentError`, which names the member and shows what is wrong with it."""
    found = _read_object(text)
    for name in found:
        if name not in _MEMBERS + _PASSED_OVER:
            raise InvalidArgumentError(f"{shown(name)} is no member of a record: {', '.join(_MEMBERS)} are.")
    if not found.keys() & {"key", "value", "key_base64", "value_base64"}:
        raise InvalidArgumentError(f"{shown(text)} has neither key nor value.")
    partition = found.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise InvalidArgumentError(f"partition: {shown(partition)} is not the number of a partition.")
    return Given(
        _read_bytes(found, "key", key),
        _read_bytes(found, "value", value),
        None if found.get("timestamp") is None else read_timestamp(found["timestamp"]),
        _read_headers(found.get("headers")),
        partition,
    )


def read_timestamp(given: Any) -> int:
    """Milliseconds since the epoch. Raises `InvalidArgumentError` for what is neither a number of them nor ISO 8601."""
    try:
        digits = isinstance(given, str) and given.isascii() and given.isdigit()
        at = int(given) if digits else zoned_time_ms(given) if isinstance(given, str) else given
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"timestamp: {error}.") from error
    except ValueError as error:  # more digits than Python reads
        raise InvalidArgumentError(f"timestamp: {shown(given)} is too large.") from error
    if type(at) is not int or not 0 <= at <= MAX_TIMESTAMP_MS:
        raise InvalidArgumentError(f"timestamp: {shown(given)} is not a number of milliseconds since 1970.")
    return at


def _read_object(text: str) -> dict[str, Any]:
    try:
        data = text.encode()
        found = load_exactly(data) if holds_large_integer(data) else orjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{shown(text)} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f'{shown(text)} is no JSON object: write {{"key": …, "value": …}}.')
    return found


def _read_bytes(found: Mapping[str, Any], name: str, serde: Serde) -> bytes | None:
    if (raw := f"{name}_base64") in found:
        if name in found:
            raise InvalidArgumentError(f"{name} and {raw} are both given: give one.")
        return _from_base64(found[raw], raw)
    given = found.get(name)
    try:
        return None if given is None else serde.from_json(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name} ({serde.name}): {error}") from error


def _from_base64(given: Any, where: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{where}: {shown(given)} is not base64.") from error


def _read_headers(given: Any) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise InvalidArgumentError(f'headers: {shown(given)} is neither an object nor a list of ["name", "text"].')
    return [(_header_name(name), _header_value(name, value)) for name, value in pairs]


def _header_name(given: Any) -> str:
    if not isinstance(given, str):
        raise InvalidArgumentError(f"headers: {shown(given)} is no text, and a header's name is one.")
    return given


def _header_value(name: str, given: Any) -> bytes | None:
    if isinstance(given, dict) and given.keys() == {"base64"}:
        return _from_base64(given["base64"], f"header {shown(name)}")
    if given is not None and not isinstance(given, str):
        raise InvalidArgumentError(f"header {shown(name)}: {shown(given)} is neither text nor null.")
    return None if given is None else given.encode()
