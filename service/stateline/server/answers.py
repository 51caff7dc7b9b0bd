"""Successful answers as JSON: the members that every one carries, entries in the store's types.

A `json` value goes out byte for byte as it is stored. What is stored and cannot be shown in its declared type
is damage, not the caller's mistake: it raises `DamagedDataError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from stateline.query import Answer, Entry, Outcome, Terms, answers_of, failures_of, merged_position
from stateline.server.problems import failures_json
from stateline.store_definition import StoreDefinition
from stateline_store import DamagedDataError, InvalidArgumentError

_TIMESTAMP_BYTES = 8


def json_response(content: Any, status: int = 200) -> Response:
    """`content` as JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def answer_body(terms: Terms, outcomes: Mapping[int, Outcome], result: Mapping[str, Any]) -> dict[str, Any]:
    """`result` with the members that every answer carries; partitions that failed stand beside."""
    answers = answers_of(outcomes)
    body = {
        "store": terms.store,
        "isolation_level": terms.isolation_level.value,
        **result,
        "position": merged_position(answers.values()).to_json(),
        "partitions": {str(partition): _partition(answer) for partition, answer in answers.items()},
    }
    if failures := failures_of(outcomes):
        body["failures"] = failures_json(failures)
    return body


def value_members(definition: StoreDefinition, stored: bytes | None) -> dict[str, Any]:
    """`value` and `timestamp` of stored bytes; null for an absent value and an unknown timestamp."""
    if stored is None:
        return {"value": None, "timestamp": None}
    timestamp = None
    if definition.timestamped:
        timestamp = int.from_bytes(stored[:_TIMESTAMP_BYTES], "big", signed=True)
        stored = stored[_TIMESTAMP_BYTES:]
    try:
        value = definition.value.to_json(stored)
    except InvalidArgumentError as error:
        raise _damaged(definition, "value", error) from error
    return {"value": value, "timestamp": None if timestamp == -1 else timestamp}


def entry_members(definition: StoreDefinition, entry: Entry) -> dict[str, Any]:
    """`key`, `value` and `timestamp` of one entry."""
    try:
        key = definition.key.key_to_json(entry[0])
    except InvalidArgumentError as error:
        raise _damaged(definition, "key", error) from error
    return {"key": key, **value_members(definition, entry[1])}


def found_members(definition: StoreDefinition, key: bytes, stored: bytes | None) -> dict[str, Any]:
    """`found`, `key`, `value` and `timestamp` of a key that was looked up."""
    return {
        "found": stored is not None,
        "key": definition.key.key_to_json(key),
        **value_members(definition, stored),
    }


def _partition(answer: Answer) -> dict[str, Any]:
    copy = answer.copy
    return {
        "position": answer.position.to_json(),
        "served_by": copy.served_by,
        "staged_records": copy.staged_records,
        "staged_bytes": copy.staged_bytes,
        "committed_at_ms": copy.committed_at_ms,
    }


def _damaged(definition: StoreDefinition, what: str, error: InvalidArgumentError) -> DamagedDataError:
    return DamagedDataError(
        f"A stored {what} of {definition.name!r} cannot be shown: {error} Declare the type that was written, "
        "or correct the topic it comes from."
    )
