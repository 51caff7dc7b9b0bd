"""Successful answers as JSON: the members of every answer, and entries in the store's types.

A `json` value is sent byte for byte as it is stored. A stored value that cannot be shown in its declared type is
damage: it raises `DamagedDataError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response

from stateline.model.store_definition import StoreDefinition
from stateline.model.stored_value import taken_apart
from stateline.query.values import (
    Entry,
    Outcome,
    PartitionAnswer,
    Terms,
    Value,
    answers_of,
    failures_of,
    merged_position,
)
from stateline.serde.key_text import key_text, may_have_text
from stateline.serde.plain import JsonSerde, Serde, StringSerde
from stateline.serde.record_members import headers_of
from stateline.server.contract.formats import WHOLE, Shape
from stateline.server.contract.observation import observed
from stateline.server.contract.problems import failures_json
from stateline_store import DamagedDataError, InvalidArgumentError, Windowed
from stateline_store.rows.timestamped_rows import TIMESTAMP, UNKNOWN_TIMESTAMP


def json_response(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def head_response(media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the headers of an answer to a HEAD, without a length: the body is not made."""
    response = Response(headers=headers, media_type=media_type)
    del response.headers["content-length"]
    return response


def answer_body(
    terms: Terms, outcomes: Mapping[int, Outcome], result: Mapping[str, Any], shape: Shape = WHOLE
) -> dict[str, Any]:
    """Return `result` with the members of every answer. Partitions that failed are in `failures`."""
    if result.get("found", False):
        observed().rows += 1
    body = result_members(terms, shape.only(result))
    answers = answers_of(outcomes)
    if shape.details:
        body |= standing_members(answers)
    if (why := stopped(answers.values())) is not None:
        body["stopped"] = why
    if failures := failures_of(outcomes):
        body["failures"] = failures_json(failures)
    return body


def result_members(terms: Terms, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first members of an answer."""
    return {"store": terms.store, "isolation_level": terms.isolation_level.value, **result}


def standing_members(answers: Mapping[int, PartitionAnswer]) -> dict[str, Any]:
    """Return where the partitions stand that answered."""
    partitions = {str(partition): _partition(answer) for partition, answer in answers.items()}
    if len(partitions) == 1:
        position = next(iter(partitions.values()))["position"]
    else:
        position = merged_position(answers.values()).to_json()
    return {"position": position, "partitions": partitions}


def stopped(answers: Iterable[PartitionAnswer]) -> str | None:
    """Return why no worker runs the store any more; None while one may."""
    return next((answer.stopped for answer in answers if answer.stopped is not None), None)


def value_members(definition: StoreDefinition, stored: Value | None) -> dict[str, Any]:
    """Return `value`, `timestamp`, `valid_to` of a versioned store, and `headers` of a store that keeps them. Null
    means an absent value, an unknown timestamp, or a version that is still valid."""
    if definition.kind == "versioned":
        assert not isinstance(stored, bytes), "what a versioned store answers are versions"
        if stored is None:
            return {"value": None, "timestamp": None, "valid_to": None}
        return {**_value(definition, stored.value), "timestamp": stored.timestamp, "valid_to": stored.valid_to}
    if stored is None:
        return {"value": None, "timestamp": None, **({"headers": None} if definition.headers else {})}
    assert isinstance(stored, bytes), "only a versioned store answers versions"
    value, timestamp, headers = taken_apart(definition, stored)
    members = {**_value(definition, value), "timestamp": timestamp}
    return members if headers is None else {**members, "headers": headers_of(headers)}


def entry_members(definition: StoreDefinition, entry: Entry, *, with_key: bool = True) -> dict[str, Any]:
    """Return `key` if wanted, `start` and `end` of a window or session, and `value_members`."""
    name, value = entry
    if isinstance(name, Windowed):
        key = _key(definition, name.key) if with_key else {}
        return {**key, "start": name.start_ms, "end": name.end_ms, **value_members(definition, value)}
    return {**(_key(definition, name) if with_key else {}), **value_members(definition, value)}


def found_members(definition: StoreDefinition, key: bytes, stored: Value | None) -> dict[str, Any]:
    """Return `found`, `key` and `value_members` of a key that was looked up."""
    return {"found": stored is not None, **key_members(definition.key, key), **value_members(definition, stored)}


# The same as `to_json` of these types for what can be shown, without a call in Python.
_QUICKLY: dict[type, Callable[[bytes], Any]] = {StringSerde: bytes.decode, JsonSerde: orjson.Fragment}


def found_reader(definition: StoreDefinition) -> Callable[[bytes, bytes], dict[str, Any]]:
    """Return `found_members` of a key-value store's rows, with what they have in common prepared. It takes half the
    time."""
    if not definition.timestamped or definition.headers or may_have_text(definition.key):
        return partial(found_members, definition)
    unpack = TIMESTAMP.unpack_from
    key_to_json = _QUICKLY.get(type(definition.key), definition.key.key_to_json)
    to_json = _QUICKLY.get(type(definition.value), definition.value.to_json)

    def members(key: bytes, stored: bytes) -> dict[str, Any]:
        try:
            (at,) = unpack(stored)
            timestamp = None if at == UNKNOWN_TIMESTAMP else at
            return {"found": True, "key": key_to_json(key), "value": to_json(stored[8:]), "timestamp": timestamp}
        except (InvalidArgumentError, UnicodeDecodeError, struct.error):
            return found_members(definition, key, stored)  # raises what is wrong

    return members


def key_members(serde: Serde, key: bytes) -> dict[str, Any]:
    """Return `key`, and `key_text` if `key` alone does not find it again."""
    text = key_text(serde, key)
    return {"key": serde.key_to_json(key)} if text is None else {"key": serde.key_to_json(key), "key_text": text}


def _value(definition: StoreDefinition, stored: bytes) -> dict[str, Any]:
    try:
        return {"value": definition.value.to_json(stored)}
    except InvalidArgumentError as error:
        raise _damaged(definition, "value", error) from error


def _key(definition: StoreDefinition, key: bytes) -> dict[str, Any]:
    try:
        return key_members(definition.key, key)
    except InvalidArgumentError as error:
        raise _damaged(definition, "key", error) from error


def _partition(answer: PartitionAnswer) -> dict[str, Any]:
    copy = answer.copy
    return {
        "position": answer.position.to_json(),
        "served_by": copy.served_by,
        "staged_records": copy.staged_records,
        "staged_bytes": copy.staged_bytes,
        "committed_at_ms": copy.committed_at_ms,
        **({"lag_ms": copy.lag_ms, "lag_records": copy.lag_records} if copy.served_by == "standby" else {}),
        **({} if answer.node is None else {"node": answer.node}),
    }


def _damaged(definition: StoreDefinition, what: str, error: InvalidArgumentError) -> DamagedDataError:
    return DamagedDataError(
        f"A stored {what} of {definition.name!r} cannot be shown: {error} Declare the type that was written, "
        "or correct the topic it comes from."
    )
