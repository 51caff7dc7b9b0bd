"""`/v1/sql`: one SELECT over the stores that the caller may read.

    POST {"sql": "select …", "params": […] or {…}, …}      GET ?q=select …&params=[…]

The rows come as JSON, NDJSON, CSV or Arrow. Headers say what they are of: `Stateline-Position`,
`Stateline-Isolation-Level`, `Stateline-Cut` (whether all tables are of one moment), `Age` (seconds), `ETag`. A GET with
`If-None-Match` gets 304 if the result is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.config.extras import install_line
from stateline.config.settings import Config
from stateline.server.contract.formats import ARROW, CSV, JSON, NDJSON
from stateline.server.contract.openapi import Operation
from stateline.server.contract.written_arguments import Argument, from_body, from_query_string
from stateline.server.guard.caller import may_read
from stateline.server.relay.large_reads import LargeReads, note_body
from stateline.server.routing.bounds import PositionBounds
from stateline.server.sql.request import SqlRequest, read_sql
from stateline.server.state.served_stores import ServedStores
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import while_there
from stateline_store import NotReadyError, SqlNotInstalledError
from stateline_store.clock import now_ms

if TYPE_CHECKING:
    from stateline.server.sql.statements import SqlResult, Statements

PATH = "/v1/sql"
MAX_BODY_BYTES = 256 * 1024
_PROBLEMS = (403, 404, 406, 412, 413, 421, 422, 429, 500, 501, 503, 504)
_STREAMS = (NDJSON, CSV, ARROW)
_ROWS = {
    "description": "The rows as objects. With details=all, an object with `rows` and what they are of.",
    "oneOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}],
}
_MEASURED_ROWS = 2_000  # a result of more rows is rendered in a thread


@dataclass(eq=False, repr=False)
class SqlRoutes:
    """The endpoint of one process. `statements` is None in a process that relays them. `_has_engine`: DuckDB is
    installed."""

    _config: Config
    _stores: ServedStores
    _bounds: PositionBounds
    _bodies: Bodies
    _large: LargeReads
    statements: Statements | None
    _has_engine: bool

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.answer, methods=["GET", "POST"])]

    async def answer(self, request: Request) -> Response:
        if not self._has_engine:
            raise SqlNotInstalledError(
                f"SQL needs DuckDB, which this server does not have: run `{install_line('sql')}`."
            )
        given = from_query_string(request.scope["query_string"])
        if request.method != "POST":
            return await self._answer(request, given)

        def parse(body: bytes) -> tuple[Mapping[str, Argument], int]:
            note_body(request, body)
            return from_body(body), 0

        async with self._bodies.read(request, parse, MAX_BODY_BYTES) as members, while_there(request):
            return await self._answer(request, {**given, **members})

    async def _answer(self, request: Request, given: Mapping[str, Argument]) -> Response:
        asked = read_sql(request, given, self._config, self._bounds)
        if self.statements is None:
            if (answer := await self._large.answer(request)) is None:
                raise NotReadyError("The scan process, which answers SQL, is not there at the moment: ask again.")
            return answer
        visible = tuple(name for name in sorted(self._stores.names) if may_read(request, name))
        result = await self.statements.run(asked, visible)
        return await _response(request, asked, result)


async def _response(request: Request, asked: SqlRequest, result: SqlResult) -> Response:
    from stateline.server.sql.results import rendered  # loads pyarrow

    position = result.position.to_json()
    age_ms = max(0, now_ms() - result.made_at_ms)
    envelope = None
    if asked.details and asked.media_type == JSON:
        envelope = {
            "position": position, "isolation_level": result.level.value, "cut": result.is_cut, "age_ms": age_ms,
            "rows_read": result.rows_read, "reads": list(result.reads),
            "positions": {table: each.to_json() for table, each in result.positions.items()},
        }  # fmt: skip
    if result.table.num_rows > _MEASURED_ROWS:
        body = await asyncio.to_thread(rendered, result.table, asked.media_type, envelope)
    else:
        body = rendered(result.table, asked.media_type, envelope)
    headers = {
        "Stateline-Position": orjson.dumps(position).decode(),
        "Stateline-Isolation-Level": result.level.value,
        "Stateline-Cut": "true" if result.is_cut else "false",
        "Age": str(age_ms // 1000),
        "Cache-Control": "private, no-cache",
    }
    if envelope is None:
        headers["ETag"] = tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if request.method != "POST" and tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, asked.media_type)


_ASKED = (
    "isolation_level",
    "position_bound",
    "wait_ms",
    "as_of",
    "max_staleness_ms",
    "require_active",
    "format",
    "details",
)
OPERATIONS = (
    Operation(
        PATH,
        "get",
        "Rows of one SELECT, in SQL.",
        ("q", "params", "timeout_ms", "max_age_ms", *_ASKED),
        problems=_PROBLEMS,
        streams=_STREAMS,
        answer=_ROWS,
    ),
    Operation(
        PATH,
        "post",
        "Rows of one SELECT, in SQL, as a JSON body.",
        problems=_PROBLEMS,
        streams=_STREAMS,
        members={"sql": True, **dict.fromkeys(("params", "timeout_ms", "max_age_ms", *_ASKED), False)},
        answer=_ROWS,
    ),
)
