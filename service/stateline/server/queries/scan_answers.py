"""Answers with entries: a page and a cursor to the next one, or all of them as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from stateline.query.values import Outcome, ScanQuery, answers_of, failures_of
from stateline.query.words import check_answered
from stateline.server.contract.answers import answer_body, entry_members, head_response, json_response
from stateline.server.contract.problems import failure_response
from stateline.server.guard.caller import caller_of
from stateline.server.guard.limits import Limits
from stateline.server.queries.requests import ReadRequest
from stateline.server.rows.streams import JSON, OwningStream, chunks_of, headers_of, wanted_format
from stateline.server.serving import Serving
from stateline.server.state.cursors import Cursor, Page, Token, pinned
from stateline.server.state.merged_scan import MergedScan
from stateline.server.state.served_stores import ServedStore
from stateline_store import PositionQuery, PrefixQuery, Query, RangeQuery, WindowRangeQuery

# Entries that a stream reads of a partition at a time: enough that a step costs little per entry.
STREAMED_AT_ONCE = 8192


class ScanAnswers:
    """Of one server process; for the event loop's thread."""

    def __init__(self, serving: Serving, limits: Limits) -> None:
        self._serving = serving
        self._limits = limits
        self._cursors = serving.cursors

    async def begin(self, request: Request, read: ReadRequest, query: ScanQuery, limit: int) -> Response:
        """The first page, or the stream that the client accepts; to a HEAD what goes before it, and nothing is opened.
        Raises `TooManyRequestsError` beyond a limit."""
        read = read.from_now()
        if request.method == "HEAD":
            return await self._head(request, read, query)
        async with AsyncExitStack() as running:
            await running.enter_async_context(self._limits.scan())
            async with self._limits.query(read.wait_ms):
                at_once = limit if _format(request) == JSON else STREAMED_AT_ONCE
                terms = replace(read.terms, limit=at_once)
                outcomes = await self._serving.routing.scan(read.store, terms, query, read.partitions, read.deadline_s)
                scan = MergedScan(query, answers_of(outcomes), at_once)
                if refused := refusal(read, outcomes):
                    scan.close()
                    return refused
                with_key = isinstance(query, RangeQuery | PrefixQuery | WindowRangeQuery)
                outcomes = pinned(outcomes)
                if (media_type := _format(request)) == JSON:
                    cursor = Cursor(read.store, read.terms, outcomes, scan, limit, with_key, caller_of(request))
                    return _page_response(cursor, await self._cursors.begin(cursor))
            running.callback(scan.close)
            resources = running.pop_all()  # by the stream, to its end
        chunks = chunks_of(media_type, read.store.definition, scan, with_key=with_key)
        return OwningStream(chunks, resources, self._limits.timeout_s, media_type, headers_of(read.terms, outcomes))

    async def _head(self, request: Request, read: ReadRequest, query: ScanQuery) -> Response:
        check_answered(type(query), read.store.name, read.store.definition.kind)
        queries: dict[int, Query[Any]] = dict.fromkeys(read.partitions, PositionQuery())
        async with self._limits.query(read.wait_ms):
            outcomes = await self._serving.routing.ask(read.store, read.terms, queries, read.deadline_s)
        if refused := refusal(read, outcomes):
            return refused
        if (media_type := _format(request)) == JSON:
            return head_response(JSON)
        return head_response(media_type, headers_of(read.terms, outcomes))

    def token(self, cursor: str) -> Token:
        """As `Cursors.token`."""
        return self._cursors.token(cursor)

    async def follow(self, request: Request, store: ServedStore, token: Token, limit: int | None) -> Response:
        """The page that a cursor stands for, from the process that has it. Raises as `Cursors.follow`."""
        if token.process == self._cursors.process:
            if request.method == "HEAD":
                self._cursors.check(token, store)
                return head_response(JSON)
            async with self._limits.scan(), self._limits.query():
                return _page_response(*await self._cursors.follow(token, store, limit))
        wanted = f"cursor={self._cursors.text(token)}" + ("" if limit is None else f"&limit={limit}")
        url = f"/v1/stores/{quote(store.name, safe='')}/range?{wanted}"  # a cursor knows its query itself
        return await self._serving.siblings.hand_on(request, token.process, url)


def refusal(read: ReadRequest, outcomes: Mapping[int, Outcome]) -> Response | None:
    """The failure of the whole query, if partitions failed and the rest may not, or cannot, stand for it."""
    failures = failures_of(outcomes)
    if not failures or (read.allow_partial and len(failures) < len(outcomes)):
        return None
    return failure_response(read.terms, failures)


def _format(request: Request) -> str:
    return wanted_format(request.headers.get("accept", ""))


def _page_response(cursor: Cursor, page: Page) -> Response:
    definition = cursor.store.definition
    entries = [entry_members(definition, entry, with_key=cursor.with_key) for entry in page.entries]
    result = {"entries": entries, **({"cursor": page.cursor} if page.cursor is not None else {})}
    return json_response(answer_body(cursor.terms, cursor.outcomes, result))
