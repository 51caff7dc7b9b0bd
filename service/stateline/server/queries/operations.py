"""The queries of the contract as the OpenAPI document shows them, from `stateline.query.kinds`."""

from __future__ import annotations

from stateline.query.kinds import KINDS
from stateline.query.query_kind import QueryKind
from stateline.server.contract.formats import ARROW, CSV, NDJSON
from stateline.server.contract.openapi import Operation
from stateline.server.contract.parameters import COMMON

STORE = "/v1/stores/{store}"

_PROBLEMS = (404, 406, 412, 421, 422, 500, 503)
_OF_KINDS = (400, *_PROBLEMS)  # not every kind of store answers it
_COUNTED = (*_PROBLEMS, 429)  # an exact count is a scan
_PAGED = (400, 404, 406, 410, 412, 421, 422, 429, 500, 503)  # 429: of scans, cursors and large bodies
_STREAMS = (NDJSON, CSV, ARROW)


def _operations(kind: QueryKind, *, of_key: bool) -> list[Operation]:
    problems = _PAGED if kind.is_scan else _PROBLEMS if kind.of_every_store else _OF_KINDS
    problems = _COUNTED if "exact" in kind.parameters else problems
    parameters, streams = (*kind.url_parameters, *COMMON), _STREAMS if kind.is_scan else ()
    return [
        Operation(f"{STORE}{path}", "get", summary, parameters, kind.word, problems, streams=streams)
        for path, summary, is_of_key in kind.paths()
        if is_of_key is of_key
    ]


OPERATIONS = (
    *(each for of_key in (True, False) for kind in KINDS for each in _operations(kind, of_key=of_key)),
    Operation(
        f"{STORE}/query",
        "post",
        "Any query, as a JSON body.",
        problems=_PAGED,
        body={kind.word: (*kind.parameters, *COMMON) for kind in KINDS},
        streams=_STREAMS,
    ),
)
