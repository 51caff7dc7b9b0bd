"""Messages between a server and a worker over a unix socket: length-prefixed JSON, pure.

    frame   := length:u32 (big-endian) json            length counts the JSON alone, 1 to MAX_FRAME_BYTES
    request := {"id", "type": "query", "store", "partition", "isolation_level", "bound", "require_active",
                "max_staleness_ms", "limit", "wait_ms", "query": query,
                "timestamped": how who asks has declared the store, between nodes}
             | {"id", "type": "more", "scan", "limit"} | {"id", "type": "drop", "scan"}
             | {"id", "type": "snapshot", "copy" or "backup", "snapshot", "places": [[store, partition]]}
             | {"id", "type": "copying", "task", "ended", "why"}      of a copy that the worker waits for; has no reply
             | {"id", "type": "unreached", "why"}          no other node links with this one; has no reply
             | {"id", "type": "status"} | {"id", "type": "subscribe"}
    query   := {"type": name of a class of `stateline_store.reads.query_types`, or "CustomQuery", …: its fields}
    reply   := {"id", "outcome"} | {"id", "rows": rows} | {"id", "status": status}
             | {"id", "status", "stores": {name: what it is, in words}}      to "subscribe"
             | {"id", "parts": [as `CheckpointPart.to_json`]} | {"id", "error": text}
    status  := {"pid", "connections", "waiting", "lease_until_ms": by `clock.boot_ms`; null: it does not end,
                "copies": {task: [stores]} that it wants to have from another node,
                "fault": why it does not run its tasks, in whole sentences; empty while it does,
                "figures": as of `deployment.workers.figures`, if its file cannot be written; null otherwise}
    outcome := {"rows": rows, "position", "copy": copy, "epochs", "worker", "offset"}
             | {"error": class name, "detail", "position", "owner"}
    copy    := [served_by, staged_records, staged_bytes, committed_at_ms, lag_ms, lag_records]
    rows    := {"entries": [entry], "count", "interval_ms", "scan": number of its rest, or null}
    entry   := [key, value] | [key, start, end, value] | [key, value, timestamp, valid_to]
    event   := {"event": "commit"}                     to subscribers, at most one unread
             | {"event": "commit", "status"}           to subscribers, when lease or fault have changed

An unfinished scan stays open at the worker until its end was read ("more"), it is dropped, or the connection ends.
"more" of a scan that is gone gets a `CursorExpiredError`. "drop" has no reply. Bytes are base64 text, absent ones null.
A Position is that of `Position.to_json`. Replies come in any order. There is no version field, because both ends run
the same version of Stateline. Every `decode_…` raises `InvalidArgumentError` for an unreadable message.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import orjson

from stateline.problem_kinds import ERROR_CLASSES
from stateline.query.kinds import CustomQuery
from stateline.query.values import CopyStatus, Entry, Failure, Outcome, PartitionAnswer, QueryRows, Rest, Terms
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    Order,
    Position,
    PositionBound,
    Query,
    StatelineError,
    VersionedRecord,
    Windowed,
    queries,
)

LENGTH = struct.Struct(">I")
# Holds the largest scan (query.MAX_RESULT_BYTES, a third more in base64) and the largest request body.
MAX_FRAME_BYTES = 64 * 1024 * 1024
_QUERIES: Mapping[str, type[Any]] = {**queries.QUERIES, CustomQuery.__name__: CustomQuery}
COMMIT_EVENT = {"event": "commit"}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One query of one partition, and how long the worker may wait for the bound. The reply has the same `id`.

    `timestamped`: whether the asking end wants values with timestamps. None: as the answering end declares the
    store."""

    id: int
    terms: Terms
    partition: int
    query: Query[Any]
    wait_ms: int = 0
    timestamped: bool | None = None


def frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message. Raises `InvalidArgumentError` when it is larger than a frame may be."""
    body = orjson.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidArgumentError(
            f"A message of {len(body)} bytes is larger than {MAX_FRAME_BYTES}: ask for fewer keys at once."
        )
    return LENGTH.pack(len(body)) + body


def frame_size(header: bytes | bytearray, at: int = 0) -> int:
    """The length of the JSON that follows the header that begins there. Raises when no frame can be so long."""
    (size,) = LENGTH.unpack_from(header, at)
    if not 1 <= size <= MAX_FRAME_BYTES:
        raise InvalidArgumentError(f"A frame of {size} bytes: 1 to {MAX_FRAME_BYTES} are accepted.")
    return int(size)


class Frames:
    """Takes a stream of frames apart, whose pieces come as they please."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def completed_by(self, piece: bytes) -> Iterator[bytes | bytearray]:
        """The bodies of those frames that this next piece completes. Raises `InvalidArgumentError` for a size that no
        frame has."""
        received: bytes | bytearray = piece
        if self._begun:
            self._begun += piece
            received = self._begun
        at, end = 0, len(received)
        while end - at >= LENGTH.size:
            body_at = at + LENGTH.size
            size = frame_size(received, at)
            if end - body_at < size:
                break
            at = body_at + size
            yield received[body_at:at]
        if received is self._begun:
            del self._begun[:at]
        else:
            self._begun += piece[at:]


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
    declared = {} if request.timestamped is None else {"timestamped": request.timestamped}
    return declared | {
        "id": request.id,
        "type": "query",
        "store": request.terms.store,
        "partition": request.partition,
        "isolation_level": request.terms.isolation_level.value,
        "bound": request.terms.bound.position.to_json(),
        "require_active": request.terms.require_active,
        "max_staleness_ms": request.terms.max_staleness_ms,
        "limit": request.terms.limit,
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
            int(message["limit"]),
            message["max_staleness_ms"],
        )
        query = _query_in(message["query"])
        number, partition, wait_ms = int(message["id"]), int(message["partition"]), int(message["wait_ms"])
        timestamped = message.get("timestamped")
        if not isinstance(timestamped, bool | None):
            raise TypeError(f"timestamped is {timestamped!r:.50}")
        return WireRequest(number, terms, partition, query, wait_ms, timestamped)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"Not a query request: {error!r}") from error


def encode_outcome(outcome: Outcome, scan: int | None = None) -> dict[str, Any]:
    """An answer or a failure, as a reply carries it; `scan` is the number of what its rows left."""
    if isinstance(outcome, Failure):
        position = None if outcome.position is None else outcome.position.to_json()
        return {
            "error": type(outcome.error).__name__,
            "detail": str(outcome.error),
            "position": position,
            "owner": outcome.owner,
        }
    copy = outcome.copy
    return {
        "rows": encode_rows(outcome.rows, scan),
        "position": outcome.position.to_json(),
        "copy": [
            copy.served_by, copy.staged_records, copy.staged_bytes, copy.committed_at_ms, copy.lag_ms, copy.lag_records
        ],
        "epochs": outcome.epochs,
        "worker": outcome.worker,
        "offset": outcome.offset,
    }  # fmt: skip


def decode_outcome(value: Any, rest_of: Callable[[int], Rest]) -> Outcome:
    """Read the text of `encode_outcome`. `rest_of` makes the rest of the rows from a scan's number."""
    try:
        if "error" in value:
            error = ERROR_CLASSES.get(value["error"], StatelineError)(value["detail"])
            position = None if value["position"] is None else Position.from_json(value["position"])
            return Failure(error, position, value["owner"])
        rows = decode_rows(value["rows"], rest_of)
        position, copy = Position.from_json(value["position"]), CopyStatus(*value["copy"])
        epochs, worker, offset = tuple(value["epochs"]), value["worker"], value["offset"]
        return PartitionAnswer(rows, position, copy, epochs, worker, offset=offset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"Not the outcome of a query: {error!r}") from error


def scan_of(reply: Mapping[str, Any]) -> int | None:
    """The number of the scan that this reply leaves open; None where it leaves none."""
    outcome = reply.get("outcome")
    rows = outcome.get("rows") if isinstance(outcome, dict) else reply.get("rows")
    scan = rows.get("scan") if isinstance(rows, dict) else None
    return scan if isinstance(scan, int) else None


def encode_rows(rows: QueryRows, scan: int | None) -> dict[str, Any]:
    """Rows, as an outcome or a reply to "more" carries them."""
    return {
        "entries": [_entry_out(entry) for entry in rows.entries],
        "count": rows.count,
        "interval_ms": rows.interval_ms,
        "scan": scan,
    }


def decode_rows(value: Any, rest_of: Callable[[int], Rest]) -> QueryRows:
    """Read the text of `encode_rows`."""
    try:
        entries = [_entry_in(entry) for entry in value["entries"]]
        rest = None if value["scan"] is None else rest_of(int(value["scan"]))
        return QueryRows(entries, int(value["count"]), int(value["interval_ms"]), rest)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Not the rows of a query: {error!r}") from error


def _entry_out(entry: Entry) -> list[Any]:
    name, value = entry
    if isinstance(value, VersionedRecord):
        assert isinstance(name, bytes)
        return [_text(name), _text(value.value), value.timestamp, value.valid_to]
    if isinstance(name, Windowed):
        return [_text(name.key), name.start_ms, name.end_ms, _text(value)]
    return [_text(name), _text(value)]


def _entry_in(fields: Any) -> Entry:
    match fields:
        case [key, value]:
            return _bytes(key), _bytes(value)
        case [key, int(start_ms), int(end_ms), str(value)]:
            return Windowed(_bytes(key), start_ms, end_ms), _bytes(value)
        case [key, value, int(timestamp), int(valid_to) | (None as valid_to)]:
            return _bytes(key), VersionedRecord(_bytes(value), timestamp, valid_to)
    raise InvalidArgumentError(f"Not an entry of a query: {fields!r:.100}")


def _query_out(query: Query[Any]) -> dict[str, Any]:
    name = type(query).__name__
    return {"type": name, **{field: _field_out(getattr(query, field)) for field in _FIELDS[name]}}


def _field_out(value: Any) -> Any:
    match value:
        case bytes():
            return _text(value)
        case tuple():
            return [_text(key) for key in value]
        case Order():
            return value.value
    return value


def _query_in(value: Mapping[str, Any]) -> Query[Any]:
    name = value["type"]
    if name not in _QUERIES:
        raise InvalidArgumentError(f"No query is of type {name!r}.")
    query: Query[Any] = _QUERIES[name](**{field: read(value[field]) for field, read in _FIELDS[name].items()})
    return query


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: Any) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgumentError("Bytes that are not base64 text.") from error


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


# The type of a field, as its class declares it → how it is read. `queries.run` refuses a None that must not be.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "bytes": _optional(_bytes),
    "bytes | None": _optional(_bytes),
    "int | None": _optional(int),
    "tuple[bytes, ...]": lambda value: tuple(map(_bytes, value)),
    "Order": Order,
}
_FIELDS = {name: {each.name: _READ[str(each.type)] for each in fields(kind)} for name, kind in _QUERIES.items()}
