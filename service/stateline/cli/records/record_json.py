"""A topic's record as a JSON object in one line: what `stateline consume --format jsonl` writes, `produce` reads.

    {"key", "value", "timestamp", "headers": [[name, text or null]], "partition", "topic", "offset"}

- `key` and `value` are as the topic's types show them in answers, null where there is none: a value of null deletes.
- `key_base64` and `value_base64` are bytes as they are. `consume` writes them where `produce` would not make the same
  bytes of `key` or `value`. If both are there, `produce` writes the bytes, and refuses a line in which they differ.
- A header's value is text, or ``{"base64": …}``. `headers` may be an object of names and texts.
- `timestamp` is milliseconds, or ISO 8601 with a zone. With an `offset` it may be negative: the record was in a log.
- `topic`, `offset` and `dead_letter` are of `consume` alone; `produce` passes them over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from stateline.log.interface import Headers
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.plain import Serde, holds_large_integer, load_exactly, shown
from stateline.serde.record_members import members_of
from stateline.serde.registered import innermost
from stateline_store import InvalidArgumentError
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

Format: TypeAlias = Literal["text", "jsonl"]
FORMATS: tuple[Format, ...] = ("text", "jsonl")
_MEMBERS = ("key", "value", "key_base64", "value_base64", "timestamp", "headers", "partition")
_PASSED_OVER = ("topic", "offset", "dead_letter")


class NewRecord(NamedTuple):
    """A record to write. None: no own timestamp or partition. `is_copy`: it was read from a log."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Headers = ()
    partition: int | None = None
    is_copy: bool = False


def read_record(text: str, key: Serde, value: Serde) -> NewRecord:
    """Read the record of one line. Raises `InvalidArgumentError` with the member and its value."""
    found = _read_object(text)
    for name in found:
        if name not in _MEMBERS + _PASSED_OVER:
            raise InvalidArgumentError(f"{shown(name)} is no member of a record: {', '.join(_MEMBERS)} are.")
    if not found.keys() & {"key", "value", "key_base64", "value_base64"}:
        raise InvalidArgumentError(f"{shown(text)} has neither key nor value.")
    partition = found.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise InvalidArgumentError(f"partition: {shown(partition)} is not the number of a partition.")
    at, is_copy = found.get("timestamp"), type(found.get("offset")) is int
    if at is not None and not (is_copy and type(at) is int and -(1 << 63) <= at < 1 << 63):
        at = read_timestamp(at)
    key_bytes, value_bytes = _read_bytes(found, "key", key), _read_bytes(found, "value", value)
    return NewRecord(key_bytes, value_bytes, at, _read_headers(found.get("headers")), partition, is_copy)


def written_members(data: bytes | None, name: str, serde: Serde | None) -> dict[str, Any]:
    """Return the key or value as members from which `read_record` makes the same bytes. `serde` None: unknown type. A
    serde of a registry must be a `looking_up` one."""
    members = members_of(data, name, serde)
    if data is None or name not in members:
        return members
    read = _parsed(orjson.dumps(members[name]))
    if serde is not None and _bytes_again(read, serde) == data:
        return members
    raw = {f"{name}_base64": base64.b64encode(data).decode()}
    return raw if read is None else {**members, **raw}


def _bytes_again(read: Any, serde: Serde) -> bytes | None:
    """The bytes that `read_record` would make. None if it would refuse this, or take it for no value."""
    if getattr(innermost(serde), "is_unordered", False):
        return None
    try:
        return None if read is None else serde.from_json(read)
    except InvalidArgumentError:
        return None


def read_timestamp(given: Any) -> int:
    """Milliseconds since the epoch. Raises `InvalidArgumentError` if this is neither milliseconds nor ISO 8601."""
    try:
        digits = isinstance(given, str) and given.isascii() and given.isdigit()
        at = int(given) if digits else epoch_ms(iso_time(given)) if isinstance(given, str) else given
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"timestamp: {error}.") from error
    except ValueError as error:  # more digits than Python converts
        raise InvalidArgumentError(f"timestamp: {shown(given)} is too large.") from error
    if type(at) is not int or not 0 <= at <= MAX_TIMESTAMP_MS:
        raise InvalidArgumentError(f"timestamp: {shown(given)} is not a number of milliseconds since 1970.")
    return at


def _read_object(text: str) -> dict[str, Any]:
    try:
        found = _parsed(text.encode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{shown(text)} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f'{shown(text)} is no JSON object: write {{"key": …, "value": …}}.')
    return found


def _parsed(data: bytes) -> Any:
    return load_exactly(data) if holds_large_integer(data) else orjson.loads(data)


def _read_bytes(found: Mapping[str, Any], name: str, serde: Serde) -> bytes | None:
    if (raw := f"{name}_base64") in found:
        data = _from_base64(found[raw], raw)
        if name in found and not _shows(found[name], data, name, serde):
            raise InvalidArgumentError(f"{name} and {raw} are both given, and they differ: give one.")
        return data
    given = found.get(name)
    try:
        return None if given is None else serde.from_json(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name} ({serde.name}): {error}") from error


def _shows(given: Any, data: bytes, name: str, serde: Serde) -> bool:
    """Whether `consume` shows these bytes like this, with this type or without one."""
    shown = [members_of(data, name, each).get(name) for each in (serde, None)]
    return given in [_parsed(orjson.dumps(each)) for each in shown]


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
