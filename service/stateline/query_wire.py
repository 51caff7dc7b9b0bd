"""What a server and a worker say to each other over a unix socket: length-prefixed JSON, pure.

    frame   := length:u32 (big-endian) json            length counts the JSON alone, 1 to MAX_FRAME_BYTES
    request := {"id", "type": "query", "store", "partition", "isolation_level", "bound", "require_active",
                "wait_ms", "query": query}
             | {"id", "type": "status"} | {"id", "type": "subscribe"}
    query   := {"type": "key", "key"} | {"type": "keys", "keys"} | {"type": "count"} | {"type": "position"}
             | {"type": "range", "lower", "upper", "prefix", "reverse", "limit"}
    reply   := {"id", "outcome"} | {"id", "status": {"pid", "connections", "waiting"}} | {"id", "error": text}
    outcome := {"entries": [[key, value]], "truncated", "count", "position",
                "copy": [served_by, staged_records, staged_bytes, committed_at_ms]}
             | {"error": class name, "detail", "position"}
    event   := {"event": "commit"}                     to subscribers, at most one unread

Bytes travel as base64 text, absent ones as null; a position as `Position.to_json` writes it. Replies come in
any order. Both ends run the same version of Stateline, on one machine and under one user: there is no version
field. Every `decode_…` raises `InvalidArgumentError` for what it cannot read.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from stateline.query import (
    Answer,
    CopyStatus,
    CountQuery,
    Failure,
    KeyQuery,
    KeysQuery,
    Outcome,
    PositionQuery,
    Query,
    RangeQuery,
    Rows,
    Terms,
)
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    Position,
    PositionBound,
    StatelineError,
)

LENGTH = struct.Struct(">I")
# Holds the largest scan (query.MAX_RESULT_BYTES, a third more in base64) and the largest request body.
MAX_FRAME_BYTES = 64 * 1024 * 1024
COMMIT_EVENT = {"event": "commit"}

# Errors that keep their meaning on the other side; every other one arrives as a plain StatelineError.
_ERRORS: dict[str, type[StatelineError]] = {
    error.__name__: error
    for error in (InvalidArgumentError, NotActiveError, NotPresentError, NotReadyError, NotUpToBoundError)
}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One query of one partition, and how long the worker may wait for the bound. `id` comes back in the
    reply.
    """

    id: int
    terms: Terms
    partition: int
    query: Query
    wait_ms: int = 0


def frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message. Raises `InvalidArgumentError` when it is larger than a frame may be."""
    body = orjson.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidArgumentError(
            f"A message of {len(body)} bytes is larger than {MAX_FRAME_BYTES}: ask for fewer keys at once."
        )
    return LENGTH.pack(len(body)) + body


def frame_size(header: bytes | bytearray) -> int:
    """The length of the JSON that follows this header. Raises when no frame can be so long."""
    (size,) = LENGTH.unpack_from(header)
    if not 1 <= size <= MAX_FRAME_BYTES:
        raise InvalidArgumentError(f"A frame of {size} bytes: 1 to {MAX_FRAME_BYTES} are accepted.")
    return int(size)


def decode_message(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of one frame."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"A frame that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise InvalidArgumentError("A frame that is not a JSON object.")
    return message


def encode_request(request: WireRequest) -> dict[str, Any]:
    """The message of a query request."""
    return {
        "id": request.id,
        "type": "query",
        "store": request.terms.store,
        "partition": request.partition,
        "isolation_level": request.terms.isolation_level.value,
        "bound": request.terms.bound.position.to_json(),
        "require_active": request.terms.require_active,
        "wait_ms": request.wait_ms,
        "query": _query_out(request.query),
    }


def decode_request(message: Mapping[str, Any]) -> WireRequest:
    """The query request that `encode_request` wrote."""
    try:
        terms = Terms(
            str(message["store"]),
            IsolationLevel(message["isolation_level"]),
            PositionBound(Position.from_json(message["bound"])),
            bool(message["require_active"]),
        )
        query = _query_in(message["query"])
        return WireRequest(int(message["id"]), terms, int(message["partition"]), query, int(message["wait_ms"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"Not a query request: {error!r}") from error


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    """An answer or a failure, as a reply carries it."""
    if isinstance(outcome, Failure):
        position = None if outcome.position is None else outcome.position.to_json()
        return {"error": type(outcome.error).__name__, "detail": str(outcome.error), "position": position}
    rows, copy = outcome.rows, outcome.copy
    return {
        "entries": [(_text(key), _text(value)) for key, value in rows.entries],
        "truncated": rows.truncated,
        "count": rows.count,
        "position": outcome.position.to_json(),
        "copy": (copy.served_by, copy.staged_records, copy.staged_bytes, copy.committed_at_ms),
    }


def decode_outcome(value: Any) -> Outcome:
    """What `encode_outcome` wrote."""
    try:
        if "error" in value:
            error = _ERRORS.get(value["error"], StatelineError)(value["detail"])
            return Failure(error, None if value["position"] is None else Position.from_json(value["position"]))
        entries = [(_bytes(key), _bytes(data)) for key, data in value["entries"]]
        rows = Rows(entries, value["truncated"], value["count"])
        return Answer(rows, Position.from_json(value["position"]), CopyStatus(*value["copy"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"Not the outcome of a query: {error!r}") from error


def _query_out(query: Query) -> dict[str, Any]:
    match query:
        case KeyQuery(key):
            return {"type": "key", "key": _text(key)}
        case KeysQuery(keys):
            return {"type": "keys", "keys": [_text(key) for key in keys]}
        case RangeQuery(lower, upper, prefix, reverse, limit):
            ends = {"lower": _optional(lower), "upper": _optional(upper), "prefix": _optional(prefix)}
            return {"type": "range", **ends, "reverse": reverse, "limit": limit}
        case CountQuery():
            return {"type": "count"}
        case PositionQuery():
            return {"type": "position"}


def _query_in(value: Mapping[str, Any]) -> Query:
    match value["type"]:
        case "key":
            return KeyQuery(_bytes(value["key"]))
        case "keys":
            return KeysQuery(tuple(_bytes(key) for key in value["keys"]))
        case "range":
            lower, upper, prefix = (_optional_bytes(value[name]) for name in ("lower", "upper", "prefix"))
            return RangeQuery(lower, upper, prefix, bool(value["reverse"]), int(value["limit"]))
        case "count":
            return CountQuery()
        case "position":
            return PositionQuery()
        case other:
            raise InvalidArgumentError(f"No query is of type {other!r}.")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _optional(data: bytes | None) -> str | None:
    return None if data is None else _text(data)


def _bytes(text: Any) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgumentError("Bytes that are not base64 text.") from error


def _optional_bytes(text: Any) -> bytes | None:
    return None if text is None else _bytes(text)
