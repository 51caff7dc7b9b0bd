"""The queries of the contract as the OpenAPI document shows them."""

from __future__ import annotations

from stateline.server.contract.formats import ARROW, CSV, NDJSON
from stateline.server.contract.openapi import Operation
from stateline.server.contract.parameters import COMMON
from stateline.server.queries.requests import BODY_PARAMETERS, RANGE_PARAMETERS, TIME_PARAMETERS

STORE = "/v1/stores/{store}"
KEY = f"{STORE}/keys/{{key}}"

_PROBLEMS = (404, 406, 412, 421, 422, 500, 503)
_OF_KINDS = (400, *_PROBLEMS)  # not every kind of store answers it
_PAGED = (400, 404, 406, 410, 412, 421, 422, 429, 500, 503)  # 429: of scans, cursors and large bodies
_STREAMS = (NDJSON, CSV, ARROW)
_TIMES = (*TIME_PARAMETERS, *COMMON)

OPERATIONS = (
    Operation(KEY, "get", "The value of a key, now or at a time.", ("as_of", *COMMON), "key", _OF_KINDS),
    Operation(f"{KEY}/windows", "get", "The windows of a key, by start.", _TIMES, "windows", _PAGED, streams=_STREAMS),
    Operation(f"{KEY}/sessions", "get", "The sessions of a key, by end.", _TIMES, "sessions", _PAGED, streams=_STREAMS),
    Operation(
        f"{KEY}/versions",
        "get",
        "The versions of a key that were valid at some time between `from` and `to`.",
        _TIMES,
        "versions",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/range",
        "get",
        "Entries of a range of keys or of a prefix, by serialized key. In a versioned store, now or at a time.",
        (*RANGE_PARAMETERS, *COMMON),
        "range",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/windows",
        "get",
        "The windows of all keys, segment by segment of time. Within a segment by key and start.",
        _TIMES,
        "windows",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/sessions",
        "get",
        "The sessions of all keys that end between `from` and `to`, by serialized key, then end.",
        _TIMES,
        "sessions",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/count",
        "get",
        "The number of entries, counted or estimated.",
        ("exact", *COMMON),
        "count",
        _PROBLEMS,
    ),
    Operation(f"{STORE}/position", "get", "The Position of each partition.", COMMON, "position", _PROBLEMS),
    Operation(
        f"{STORE}/query",
        "post",
        "Any query, as a JSON body.",
        problems=_PAGED,
        body={kind: (*names, *COMMON) for kind, names in BODY_PARAMETERS.items()},
        streams=_STREAMS,
    ),
)
