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
    Operation(KEY, "get", "The value of one key, or what it was.", ("as_of", *COMMON), "key", _OF_KINDS),
    Operation(f"{KEY}/windows", "get", "The windows of a key, by start.", _TIMES, "windows", _PAGED, streams=_STREAMS),
    Operation(f"{KEY}/sessions", "get", "The sessions of a key, by end.", _TIMES, "sessions", _PAGED, streams=_STREAMS),
    Operation(
        f"{KEY}/versions",
        "get",
        "The versions of a key that were valid at some time from `from` to `to`.",
        _TIMES,
        "versions",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/range",
        "get",
        "Entries from lower to upper, both inclusive, or of a prefix, in the order of serialized keys; of a versioned "
        "store those of now or of a time.",
        (*RANGE_PARAMETERS, *COMMON),
        "range",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/windows",
        "get",
        "The windows of all keys: segment by segment of time, by key and start within one.",
        _TIMES,
        "windows",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/sessions",
        "get",
        "The sessions of all keys that end from `from` to `to`, by serialized key, then end.",
        _TIMES,
        "sessions",
        _PAGED,
        streams=_STREAMS,
    ),
    Operation(
        f"{STORE}/count",
        "get",
        "How many entries there are, counted or estimated.",
        ("exact", *COMMON),
        "count",
        _PROBLEMS,
    ),
    Operation(f"{STORE}/position", "get", "How far each partition has come.", COMMON, "position", _PROBLEMS),
    Operation(
        f"{STORE}/query",
        "post",
        "Any query as a body.",
        problems=_PAGED,
        body={kind: (*names, *COMMON) for kind, names in BODY_PARAMETERS.items()},
        streams=_STREAMS,
    ),
)
