"""Every parameter of a request, as the OpenAPI document shows it; `arguments` reads what is given for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stateline.server.contract.formats import FORMATS, SHAPING
from stateline_store import IsolationLevel


class Parameter(NamedTuple):
    """A parameter as the OpenAPI document shows it."""

    schema: Mapping[str, Any]
    description: str


_POSITION_SCHEMA = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    },
}
_KEY = {"description": "As the store's key type is written.", "not": {"type": "null"}}
_TIME = {
    "type": ["integer", "string"],
    "description": "Milliseconds since the epoch, in a body as a number; or ISO 8601 as a text (UTC unless it says).",
}

SPLIT_BYTES = 128 * 1024 * 1024
PARAMETERS: dict[str, Parameter] = {
    "isolation_level": Parameter(
        {"type": "string", "enum": [level.value for level in IsolationLevel]},
        "Which records may be seen; the store's default otherwise.",
    ),
    "position_bound": Parameter(_POSITION_SCHEMA, "The least position accepted: JSON, topic → partition → offset."),
    "wait_ms": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "How long to wait for the bound, in milliseconds; at most the setting server.wait.max.ms.",
    ),
    "require_active": Parameter(
        {"type": "boolean", "default": False}, "Accept only an active copy, not a standby or restoring one."
    ),
    "max_staleness_ms": Parameter(
        {"type": "integer", "minimum": 0},
        "Accept a copy whose owner cannot be reached when its lag_ms is at most this.",
    ),
    "partition": Parameter(
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        "Ask only these partitions: repeated, or separated by commas.",
    ),
    "allow_partial": Parameter(
        {"type": "boolean", "default": False},
        "Answer 200 when some partitions fail, with the failures beside.",
    ),
    "limit": Parameter(
        {"type": "integer", "minimum": 1},
        "The most entries of an answer; the settings server.limit.default and server.limit.max apply.",
    ),
    "order": Parameter(
        {"type": "string", "enum": ["asc", "desc"]},
        "Up or down, by serialized key or by time; versions come the newest first unless told, all else up.",
    ),
    "lower": Parameter(_KEY, "The first key, inclusive; open when left out."),
    "upper": Parameter(_KEY, "The last key, inclusive; open when left out."),
    "prefix": Parameter(_KEY, "What keys begin with; instead of lower and upper."),
    "key": Parameter(_KEY, "The key to look up."),
    "query": Parameter({}, "What the store's method `query` is asked: any JSON value."),
    "keys": Parameter({"type": "array", "items": {"description": _KEY["description"]}}, "The keys to look up."),
    "keys_as": Parameter(
        {"type": "string", "enum": ["json", "text"], "default": "json"},
        "How this body has keys: as JSON, or each as the text that a URL would have, such as the `key_text` of an "
        "answer.",
    ),
    "from": Parameter(
        _TIME, "The first time, inclusive; open when left out. Of windows their start, of sessions the end."
    ),
    "to": Parameter(
        _TIME,
        "The last time, inclusive, open when left out. Of windows their start, of the sessions of a key, too; of the "
        "sessions of all keys the end.",
    ),
    "as_of": Parameter(_TIME, "A time in the past: versioned stores only, other kinds answer UNKNOWN_QUERY_TYPE."),
    "exact": Parameter(
        {"type": "boolean", "default": False}, "Count the entries, which reads all of them, instead of an estimate."
    ),
    "cursor": Parameter(
        {"type": "string"},
        "The next page, of the state that the first one showed: the `cursor` of an answer, alone or with a limit.",
    ),
    "format": Parameter(
        {"type": "string", "enum": list(FORMATS)},
        "The answer's format; that of Accept otherwise. Answers without entries are JSON; many keys are not Arrow.",
    ),
    "details": Parameter(
        {"type": "string", "enum": ["all", "none"], "default": "all"}, "none leaves out position and partitions."
    ),
    "type": Parameter({"type": "string"}, "The kind of query."),
    "changes.from": Parameter(
        {"type": ["string", "object"], "default": "latest"},
        "Where to begin: earliest, latest, an event's id, or the position of an answer. Last-Event-ID goes before.",
    ),
    "changes.isolation_level": Parameter(
        {"type": "string", "enum": [IsolationLevel.READ_COMMITTED.value]}, "There are changes of committed state only."
    ),
    "offsets.from": Parameter(
        {"type": "string"},
        "Where to begin: earliest, latest, an event's id, or the position of an answer; without it there is no begin.",
    ),
    "rows.partition": Parameter({"type": "integer", "minimum": 0}, "The partition; it has to be there."),
    "begin": Parameter({"type": "integer", "minimum": 0}, "The first offset that is wanted; it has to be there."),
    "end": Parameter({"type": "integer", "minimum": 0}, "The offset after the last one; it has to be there."),
    "topic_id": Parameter({"type": "string"}, "The id of the topic that the offsets are of; it has to be there."),
    "columns": Parameter(
        {"type": "string"}, "Members of the answer, or of its entries, separated by commas; all when left out."
    ),
    "after": Parameter(_KEY, "Read on behind this key: key-value stores only, where rows come by key."),
    "skip": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "Leave out so many of the rows, from the first on: those that a stream had before it broke off.",
    ),
    "split": Parameter({"type": "string"}, "Only the rows of this part of the partition: one that …/splits gives."),
    "size_bytes": Parameter(
        {"type": "integer", "minimum": 1, "default": SPLIT_BYTES},
        "About how many bytes on disk the rows of a split have.",
    ),
    "pin": Parameter(
        {"type": "string", "minLength": 1, "maxLength": 64},
        "What you call this snapshot: asked for again, of the same stores, it is the same one.",
    ),
    "stores": Parameter({"type": "array", "items": {"type": "string"}, "minItems": 1}, "The stores' names."),
    "ttl_s": Parameter(
        {"type": "integer", "minimum": 1},
        "For how many seconds from now; 300 unless given, at most the setting server.snapshot.ttl.max.ms.",
    ),
}

COMMON = (
    "isolation_level",
    "position_bound",
    "wait_ms",
    "require_active",
    "max_staleness_ms",
    "partition",
    "allow_partial",
    *SHAPING,
)
