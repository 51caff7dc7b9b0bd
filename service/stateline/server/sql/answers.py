"""`SqlResult`: the rows of a statement. `RenderedAnswer`: what equal requests get, made here or by the scan process."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request
from starlette.responses import Response

from stateline.server.contract.formats import CSV, JSON
from stateline.server.contract.observation import observed
from stateline.server.relay.siblings import Siblings
from stateline.server.rows.streams import OwningStream
from stateline.server.sql.request import SqlRequest
from stateline.server.sql.shown_commits import ReadCommits
from stateline_store import IsolationLevel, Position
from stateline_store.clock import now_ms

if TYPE_CHECKING:
    import pyarrow as pa

_READ_AT = "stateline-read-at"  # between processes alone
_MEASURED_ROWS = 2_000  # a result of more rows is rendered in a thread


@dataclass(frozen=True, slots=True)
class RenderedAnswer:
    """An answer without `Age`. `read_at_ms` is None for a problem, which has a `reason`."""

    body: bytes
    headers: Mapping[str, str]
    read_at_ms: int | None
    rows: int
    status: int = 200
    reason: str = ""

    @property
    def age_ms(self) -> int:
        """How old its rows are now."""
        return 0 if self.read_at_ms is None else max(0, now_ms() - self.read_at_ms)

    def response(self, request: Request) -> Response:
        """Return it for this request: with its age, or as 304 if the client has the same."""
        observed().rows, observed().reason = self.rows, self.reason
        headers = dict(self.headers)
        if self.read_at_ms is not None:
            headers["age"] = str(self.age_ms // 1000)
            if Siblings.was_relayed(request.scope):
                headers[_READ_AT] = str(self.read_at_ms)
        tag = headers.get("etag")
        if tag and request.method != "POST" and tag.removeprefix("W/") in request.headers.get("if-none-match", ""):
            return Response(None, 304, {name: text for name, text in headers.items() if name[:8] != "content-"})
        return Response(self.body, self.status, headers)


@dataclass(slots=True)
class SqlResult:
    """The rows of a statement, and the state that they are of. Times are milliseconds. Only `renew` changes it."""

    table: pa.Table
    position: Position
    level: IsolationLevel
    no_cut: str
    """Why what was read is not of one cut. Empty if it is."""
    read_at_ms: int
    rows_read: int
    reads: tuple[str, ...]
    """What was read of each table, as text."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """The Position of each table."""
    by_store: Mapping[str, Position] | None = None
    """The Position of each store, for a header. None: no header."""
    answers: dict[tuple[str, bool], RenderedAnswer] = field(default_factory=dict)
    """What was rendered so far, by media type and whether it has the envelope."""

    shown: ReadCommits | None = None
    """The commits that its rows are of. None: only a run says whether they are of now."""

    def renew(self) -> None:
        """Note that its rows are of now. An envelope has the time of the run, and is made again."""
        self.read_at_ms = now_ms()
        kept = {kind: answer for kind, answer in self.answers.items() if not kind[1]}
        self.answers = {kind: replace(answer, read_at_ms=self.read_at_ms) for kind, answer in kept.items()}

    @property
    def size(self) -> int:
        """Bytes of the rows and of what was rendered."""
        return int(self.table.nbytes) + sum(len(answer.body) for answer in self.answers.values())


async def answer_of(result: SqlResult, asked: SqlRequest) -> RenderedAnswer:
    """Return this result in the wanted format. It is rendered once."""
    kind = asked.media_type, asked.details and asked.media_type == JSON
    if kind not in result.answers:
        result.answers[kind] = await _rendered(result, *kind)
    return result.answers[kind]


async def _rendered(result: SqlResult, media_type: str, has_envelope: bool) -> RenderedAnswer:
    from stateline.server.sql.results import rendered  # loads pyarrow

    position, envelope = result.position.to_json(), None
    if has_envelope:
        envelope = {
            "position": position, "isolation_level": result.level.value, "cut": not result.no_cut,
            "read_at": result.read_at_ms, "rows_read": result.rows_read, "reads": list(result.reads),
            "positions": {table: each.to_json() for table, each in result.positions.items()},
            "no_cut": result.no_cut or None,
        }  # fmt: skip
    rows = result.table.num_rows
    if rows > _MEASURED_ROWS:
        body = await asyncio.to_thread(rendered, result.table, media_type, envelope)
    else:
        body = rendered(result.table, media_type, envelope)
    headers = {
        "stateline-position": orjson.dumps(position).decode(),
        "stateline-isolation-level": result.level.value,
        "stateline-cut": "false" if result.no_cut else "true",
        "cache-control": "private, no-cache",
        "content-type": f"{media_type}; charset=utf-8" if media_type == CSV else media_type,
    }
    if result.by_store is not None:
        headers["stateline-store-positions"] = json.dumps(
            {name: each.to_json() for name, each in result.by_store.items()}
        )
    if envelope is None:
        headers["etag"] = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    return RenderedAnswer(body, headers, result.read_at_ms, rows)


async def relayed_answer(stream: OwningStream) -> RenderedAnswer:
    """Return the answer of a scan process, for this request and equal ones. Raises `OSError` if it breaks off."""
    body = await stream.collected()
    headers = dict(stream.headers)
    read_at = headers.pop(_READ_AT, None)
    read_at_ms = None if read_at is None else int(read_at)
    return RenderedAnswer(body, headers, read_at_ms, observed().rows, stream.status_code, observed().reason)
