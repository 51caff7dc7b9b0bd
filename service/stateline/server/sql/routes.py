"""`/v1/sql`: one SELECT over the stores that the caller may read.

    POST {"sql": "select …", "params": […] or {…}, …}      GET ?q=select …&params=[…]

The rows come as JSON, NDJSON, CSV or Arrow. Headers say what they are of: `Stateline-Position`,
`Stateline-Isolation-Level`, `Stateline-Cut` (whether all that was read is of one moment), `Age` (seconds), `ETag`. With
`store_bounds`, `Stateline-Store-Positions` has the Position of each store. A GET with `If-None-Match` gets 304 if the
result is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.config.extras import install_line
from stateline.config.settings import Config
from stateline.server.contract.formats import ARROW, CSV, NDJSON
from stateline.server.contract.observation import observed
from stateline.server.contract.openapi import Operation
from stateline.server.contract.problems import problem_response
from stateline.server.contract.written_arguments import Argument, from_body, from_query_string
from stateline.server.guard.caller import caller_of, may_read
from stateline.server.relay.large_reads import LargeReads, note_body
from stateline.server.routing.bounds import PositionBounds
from stateline.server.sql.answers import RenderedAnswer, relayed_answer
from stateline.server.sql.request import SqlRequest, read_sql
from stateline.server.sql.shared_results import Run, SharedResults
from stateline.server.state.served_stores import ServedStores
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.compression import takes_gzip
from stateline.server.wire.time_limits import TimeLimits, while_there
from stateline_store import NotReadyError, SqlInvalidError, SqlNotAllowedError, SqlNotInstalledError

if TYPE_CHECKING:
    from stateline.server.sql.statements import Statements

PATH = "/v1/sql"
MAX_BODY_BYTES = 256 * 1024
_LOOK_AGAIN_S = 0.05
_BESIDE_S = 20.0
"""How long an answer may take beside its own times: a query process may start, and its rows are rendered."""
_PROBLEMS = (403, 404, 406, 412, 413, 421, 422, 429, 500, 501, 503, 504)
_STREAMS = (NDJSON, CSV, ARROW)
_ROWS = {
    "description": "The rows as objects. With details=all, an object with `rows` and what they are of.",
    "oneOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}],
}


@dataclass(eq=False, repr=False)
class SqlRoutes:
    """The endpoint of one process. `statements` is None in a process that relays them. `_has_engine`: DuckDB is
    installed."""

    _config: Config
    _stores: ServedStores
    _bounds: PositionBounds
    _bodies: Bodies
    _limits: TimeLimits
    _large: LargeReads
    statements: Statements | None
    _has_engine: bool
    _shared: SharedResults[RenderedAnswer] = field(
        default_factory=lambda: SharedResults(lambda answer: len(answer.body))
    )

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.answer, methods=["GET", "POST"])]

    async def answer(self, request: Request) -> Response:
        if not self._has_engine:
            raise SqlNotInstalledError(
                f"SQL needs DuckDB, which this server does not have: run `{install_line('sql')}`."
            )
        given = from_query_string(request.scope["query_string"])
        if request.method != "POST":
            async with while_there(request):
                return await self._answer(request, given)

        def parse(body: bytes) -> tuple[Mapping[str, Argument], int]:
            note_body(request, body)
            return from_body(body), 0

        async with self._bodies.read(request, parse, MAX_BODY_BYTES) as members, while_there(request):
            return await self._answer(request, {**given, **members})

    async def _answer(self, request: Request, given: Mapping[str, Argument]) -> Response:
        asked = read_sql(request, given, self._config, self._bounds)
        visible = tuple(name for name in sorted(self._stores.names) if may_read(request, name))
        if self.statements is None:
            answer = await self._relayed(request, asked, visible)
            return answer.response(request)
        try:
            answer = await self.statements.answer(
                asked, visible, caller_of(request), partial(self._large.place, request)
            )
        except (SqlInvalidError, SqlNotAllowedError) as error:  # a query process knows no path but the statement's
            return problem_response(error, given=asked.text)
        return answer.response(request)

    async def _relayed(self, request: Request, asked: SqlRequest, visible: tuple[str, ...]) -> RenderedAnswer:
        """Return the answer of a scan process. It joins requests for rows of now."""
        ask = partial(self._ask, request, asked)
        if asked.max_age_ms:
            key = asked.key(visible, asked.media_type, asked.details, takes_gzip(request.scope))
            answer = await self._shared.get(key, asked.max_age_ms, ask)
        else:
            answer = await ask(Run(0))
        observed().is_relayed = True
        return answer

    async def _ask(self, request: Request, asked: SqlRequest, run: Run[RenderedAnswer]) -> RenderedAnswer:
        headers = [each for each in request.scope["headers"] if each[0] != b"if-none-match"]
        patience_s = _longest_s(asked)
        try:
            async with asyncio.timeout(patience_s) as limit:
                answer = await self._passed_on(Request({**request.scope, "headers": headers}), asked.timeout_ms)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise NotReadyError(
                f"The scan process, which answers SQL, gave no answer within {patience_s:g} s: ask again. If it gives "
                "none either, end that process, and the server starts another one."
            ) from error
        if answer.read_at_ms is not None:
            run.note_read(answer.age_ms)
        return answer

    async def _passed_on(self, relayed: Request, timeout_ms: int) -> RenderedAnswer:
        until_s = time.monotonic() + timeout_ms / 1000
        while (stream := await self._large.answer(relayed)) is None:  # it starts, also after a crash
            if time.monotonic() > until_s:
                raise NotReadyError("The scan process, which answers SQL, is not there at the moment: ask again.")
            with contextlib.suppress(TimeoutError):
                async with self._limits.within(_LOOK_AGAIN_S):
                    await asyncio.Event().wait()
        try:
            return await relayed_answer(stream)
        except OSError as error:
            raise NotReadyError("The scan process, which answers SQL, ended while it answered: ask again.") from error


def _longest_s(asked: SqlRequest) -> float:
    """Return how long the scan process may take: the statement waits for its bound and for a query process, and runs.
    To wait for a bound it needs a query process once more."""
    statements = 2 if asked.wait_ms and asked.has_bound else 1
    return (asked.wait_ms + statements * 2 * asked.timeout_ms) / 1000 + statements * _BESIDE_S


_ASKED = (
    "isolation_level",
    "position_bound",
    "store_bounds",
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
