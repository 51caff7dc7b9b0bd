"""Every parameter of a request, as the OpenAPI document and the reference show it. `arguments` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stateline.server.contract.formats import FORMATS, SHAPING
from stateline_store import IsolationLevel


class Parameter(NamedTuple):
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
KEY = {"description": "A key, written as the store's key type.", "not": {"type": "null"}}
TIME = {
    "type": ["integer", "string"],
    "description": "Milliseconds since the epoch, or ISO 8601. A time without a zone is UTC.",
}

SPLIT_BYTES = 128 * 1024 * 1024
PARAMETERS: dict[str, Parameter] = {
    "isolation_level": Parameter(
        {"type": "string", "enum": [level.value for level in IsolationLevel]},
        "Which rows are visible. By default read_uncommitted, and read_committed under exactly_once_v2. The setting "
        "default.interactive.query.isolation.level changes this.",
    ),
    "position_bound": Parameter(_POSITION_SCHEMA, "The least Position accepted: JSON, topic → partition → offset."),
    "wait_ms": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "How long to wait for the bound or a copy, in milliseconds. At most the setting server.wait.max.ms.",
    ),
    "require_active": Parameter(
        {"type": "boolean", "default": False}, "Accept only the owner's copy, no standby or restoring copy."
    ),
    "max_staleness_ms": Parameter(
        {"type": "integer", "minimum": 0},
        "If another machine may have the partition: accept a copy whose lag_ms is at most this.",
    ),
    "partition": Parameter(
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        "Ask only these partitions. Repeat the parameter, or separate numbers with commas.",
    ),
    "allow_partial": Parameter(
        {"type": "boolean", "default": False}, "Answer 200 if some partitions fail. The answer then has `failures`."
    ),
    "limit": Parameter(
        {"type": "integer", "minimum": 1},
        "Entries of a page, at most. The settings server.limit.default and server.limit.max apply.",
    ),
    "order": Parameter(
        {"type": "string", "enum": ["asc", "desc"]},
        "By serialized key or by time. Versions are desc by default, everything else is asc. "
        "A stream of windows of all keys has no order by default.",
    ),
    "lower": Parameter(KEY, "The first key, inclusive. Without it, the range is open at this end."),
    "upper": Parameter(KEY, "The last key, inclusive. Without it, the range is open at this end."),
    "prefix": Parameter(KEY, "The beginning of the keys. Excludes lower and upper."),
    "key": Parameter(KEY, "The key to look up."),
    "query": Parameter({}, "The argument of the store's method `query`: any JSON value."),
    "keys": Parameter({"type": "array", "items": {"description": KEY["description"]}}, "The keys to look up."),
    "keys_as": Parameter(
        {"type": "string", "enum": ["json", "text"], "default": "json"},
        "How the body writes keys: as JSON, or as the text of a URL, such as the `key_text` of an answer.",
    ),
    "from": Parameter(TIME, "The first time, inclusive: the start of windows, the end of sessions. Open without it."),
    "to": Parameter(
        TIME,
        "The last time, inclusive: the start of windows and of a key's sessions, the end of sessions of all keys. "
        "Open without it.",
    ),
    "as_of": Parameter(TIME, "The versions that were valid at this time. Versioned stores only."),
    "exact": Parameter({"type": "boolean", "default": False}, "Read and count all entries, instead of an estimate."),
    "cursor": Parameter(
        {"type": "string"}, "The next page of the same state: the `cursor` of an answer, alone or with a limit."
    ),
    "format": Parameter(
        {"type": "string", "enum": list(FORMATS)},
        "The format of the answer. By default the one of Accept. Answers without entries are JSON only.",
    ),
    "details": Parameter(
        {"type": "string", "enum": ["all", "none"], "default": "all"}, "none leaves out position and partitions."
    ),
    "type": Parameter({"type": "string"}, "The name of the query."),
    "sql": Parameter({"type": "string", "minLength": 1}, "One SELECT in DuckDB's SQL. A table is a store."),
    "q": Parameter({"type": "string", "minLength": 1}, "One SELECT in DuckDB's SQL. A table is a store."),
    "params": Parameter(
        {"type": ["array", "object"]}, "Values for $1, $2 … as an array, or for $name as an object. In a URL as JSON."
    ),
    "store_bounds": Parameter(
        {"type": "object"},
        "A position_bound for each store: store → Position. Other stores than those of the statement are ignored.",
    ),
    "timeout_ms": Parameter(
        {"type": "integer", "minimum": 100}, "How long the statement may run. At most the setting sql.timeout.ms."
    ),
    "max_age_ms": Parameter(
        {"type": "integer", "minimum": 0, "default": 1000},
        "How old a shared result, or the moment of several tables, may be. 0: run it now.",
    ),
    "changes.from": Parameter(
        {"type": ["string", "object"], "default": "latest"},
        "The beginning: earliest, latest, an event's id, or the position of an answer. Last-Event-ID overrides it.",
    ),
    "changes.isolation_level": Parameter(
        {"type": "string", "enum": [IsolationLevel.READ_COMMITTED.value]}, "A change feed has committed changes only."
    ),
    "offsets.from": Parameter(
        {"type": "string"}, "The beginning: earliest, latest, an event's id, or the position of an answer."
    ),
    "rows.partition": Parameter({"type": "integer", "minimum": 0}, "The partition. Required."),
    "begin": Parameter({"type": "integer", "minimum": 0}, "The first offset. Required."),
    "end": Parameter({"type": "integer", "minimum": 0}, "The offset after the last one. Required."),
    "topic_id": Parameter({"type": "string"}, "The id of the topic of these offsets. Required."),
    "columns": Parameter(
        {"type": "string"},
        "Only these members of each entry, separated by commas. Without entries: members of the answer.",
    ),
    "after": Parameter(KEY, "Only rows after this key. Key-value stores only."),
    "skip": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "Rows to leave out at the beginning, such as the rows that a broken stream delivered.",
    ),
    "split": Parameter({"type": "string"}, "Only the rows of this part of the partition, as …/splits lists it."),
    "size_bytes": Parameter(
        {"type": "integer", "minimum": 1, "default": SPLIT_BYTES},
        "About how many bytes on disk the rows of a split have.",
    ),
    "pin": Parameter(
        {"type": "string", "minLength": 1, "maxLength": 64},
        "Your name for this snapshot. The same name and stores return the same snapshot.",
    ),
    "stores": Parameter({"type": "array", "items": {"type": "string"}, "minItems": 1}, "The names of the stores."),
    "ttl_s": Parameter(
        {"type": "integer", "minimum": 1},
        "The lease in seconds, from now. 300 by default. At most the setting server.snapshot.ttl.max.ms.",
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
