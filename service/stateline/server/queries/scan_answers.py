"""Answers with entries: a page and a cursor to the next one, or all of them as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from stateline.query.execution import OF_ALL_KEYS
from stateline.query.kinds import check_answered, every_entry, key_of, path_of
from stateline.query.values import Entry, Failure, Outcome, ScanQuery, ServedBy, answers_of, failures_of
from stateline.server.contract.answers import answer_body, entry_members, head_response, json_response
from stateline.server.contract.formats import JSON
from stateline.server.contract.observation import observed
from stateline.server.contract.problems import failure_response
from stateline.server.guard.caller import caller_of
from stateline.server.guard.limits import Limits
from stateline.server.guard.passing_on import token_to_pass_on
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.nodes.link import Link
from stateline.server.nodes.nodes import Nodes
from stateline.server.queries.requests import ReadRequest, entry_columns
from stateline.server.relay.large_reads import LargeReads
from stateline.server.relay.siblings import Siblings
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.rows.streams import OwningStream, chunks_of, entries_json, headers_of
from stateline.server.state.cursor_text import CursorToken, mark_of, never_given, node_mark
from stateline.server.state.cursors import Cursor, Cursors, Page, pinned
from stateline.server.state.epochs import close_rests
from stateline.server.state.merged_scan import READ_AT_ONCE, MergedScan
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline_store import (
    CursorExpiredError,
    DoesNotExistError,
    NotPresentError,
    NotReadyError,
    PositionBound,
    PositionQuery,
    Query,
    StatelineError,
)

# Headers of another node's answer that are passed back. The others are of its connection.
_KEPT = frozenset({"content-type", "retry-after", "www-authenticate"})


class Elsewhere(NamedTuple):
    """A cursor of another node. Only that node can tell whether it is genuine."""

    node: str
    cursor: str


@dataclass(eq=False, repr=False)
class ScanAnswers:
    """One per server process, for the event loop's thread."""

    _routing: QueryRouting
    _cursors: Cursors
    _partitions: Partitions
    _nodes: Nodes | None
    _large: LargeReads
    _limits: Limits
    _small_rows: int
    """The largest page that this process makes itself."""

    async def begin(self, request: Request, read: ReadRequest, query: ScanQuery, limit: int) -> Response:
        """Return the first page, or the stream of another type than JSON. To a HEAD return the headers alone.

        A request that waits for a commit holds no place of server.scans.max meanwhile. Raises `TooManyRequestsError`
        beyond a limit.
        """
        if request.method != "HEAD" and (answer := await self._elsewhere(request, read, query, limit)):
            return answer
        read = read.from_now()
        if request.method == "HEAD":
            return await self._head(read, query)
        at_once = min(limit, READ_AT_ONCE) if read.shape.media_type == JSON else READ_AT_ONCE
        return await self._run(request, read, query, at_once, partial(self._answered, request, read, query, limit))

    async def count(self, request: Request, read: ReadRequest) -> Response:
        """Return how many entries there are, by reading all of them. Limits are those of `begin`."""
        query = every_entry(read.store.definition.kind)
        if request.method == "HEAD":
            return await self._head(read.from_now(), query)
        if answer := await self._elsewhere(request, read, query, self._small_rows + 1):
            return answer
        read = read.from_now()

        async def counted(outcomes: Mapping[int, Outcome], running: AsyncExitStack) -> Response:
            scan = MergedScan(query, answers_of(outcomes), READ_AT_ONCE)
            running.callback(scan.close)
            if refused := refusal(read, outcomes):
                return refused
            result = {"exact_entries": await scan.count()}
            return json_response(answer_body(read.terms, pinned(outcomes), result, read.shape))

        return await self._run(request, read, query, READ_AT_ONCE, counted)

    async def _elsewhere(self, request: Request, read: ReadRequest, query: ScanQuery, limit: int) -> Response | None:
        """Return the answer of a scan process: to a stream, a large page, and windows or sessions of all
        keys. None if this process answers. Rows that only a worker can read stay here."""
        if not read.store.is_read_here(read.terms.isolation_level):
            return None
        of_all_keys = key_of(query) is None and read.store.definition.plain_kind in ("window", "session")
        is_large = of_all_keys or (read.shape.media_type or JSON) != JSON or limit > self._small_rows
        return await self._large.answer(request) if is_large else None

    def _takes_stored(self, read: ReadRequest, query: ScanQuery) -> bool:
        """Whether stored rows make the answer: a stream of windows or sessions of all keys that this process reads."""
        is_stream = (read.shape.media_type or JSON) != JSON
        is_here = self._nodes is None and read.store.is_read_here(read.terms.isolation_level)
        return is_stream and is_here and isinstance(query, OF_ALL_KEYS)

    async def _run(
        self,
        request: Request,
        read: ReadRequest,
        query: ScanQuery,
        at_once: int,
        answered: Callable[[Mapping[int, Outcome], AsyncExitStack], Awaitable[Response]],
    ) -> Response:
        """Return the answer to a scan that reads so many entries of a partition at once. It waits for the bound as long
        as the request says."""
        routing, store = self._routing, read.store
        until_s, may_wait = routing.waits_until_s(store, read.terms, read.deadline_s), True
        terms = replace(read.terms, limit=at_once, stored_rows=self._takes_stored(read, query))
        while True:
            async with AsyncExitStack() as running:
                await running.enter_async_context(self._limits.scan(caller_of(request)))
                async with self._limits.query():
                    outcomes = await routing.scan(store, terms, query, read.partitions)
                    if not may_wait or not routing.may_wait(store, terms, outcomes, until_s):
                        return await answered(outcomes, running)
                close_rests(outcomes)
            async with self._limits.query(read.wait_ms):
                may_wait = await routing.wait_for_scan(store, terms, outcomes, read.deadline_s)

    async def _answered(
        self,
        request: Request,
        read: ReadRequest,
        query: ScanQuery,
        limit: int,
        outcomes: Mapping[int, Outcome],
        running: AsyncExitStack,
    ) -> Response:
        """Return the answer of these outcomes. A stream takes over what is `running`."""
        stored = self._takes_stored(read, query)
        scan = MergedScan(query, answers_of(outcomes), min(limit, READ_AT_ONCE), stored=stored)
        if refused := refusal(read, outcomes):
            scan.close()
            return refused
        shape, definition = read.shape, read.store.definition
        columns = shape.columns or entry_columns(definition, with_key=key_of(query) is None)
        outcomes = pinned(outcomes)
        if (media_type := shape.media_type or JSON) == JSON:
            caller, with_key = caller_of(request), "key" in columns
            cursor = Cursor(read.store, read.terms, outcomes, scan, limit, with_key, caller, shape, path_of(query))
            return await _page_response(cursor, await self._cursors.begin(cursor))
        running.callback(scan.close)
        chunks = chunks_of(media_type, definition, scan, columns, chosen=shape.columns is not None, stored=stored)
        headers = headers_of(read.terms, outcomes, details=shape.details)
        return OwningStream(chunks, running.pop_all(), self._limits.timeout_s, media_type, headers)

    async def _head(self, read: ReadRequest, query: ScanQuery) -> Response:
        check_answered(type(query), read.store.name, read.store.definition.kind)
        queries: dict[int, Query[Any]] = dict.fromkeys(read.partitions, PositionQuery())
        async with self._limits.query(read.wait_ms):
            outcomes = await self._routing.ask(read.store, read.terms, queries, read.deadline_s)
        if refused := refusal(read, outcomes):
            return refused
        if (media_type := read.shape.media_type or JSON) == JSON:
            return head_response(JSON)
        return head_response(media_type, headers_of(read.terms, outcomes, details=read.shape.details))

    def token(self, cursor: str) -> CursorToken | Elsewhere:
        """Return what a cursor says.

        Raises `DoesNotExistError` for a cursor that no server has given, as far as this node can tell, and
        `NotReadyError` while other nodes are not known.
        """
        mark, nodes = mark_of(cursor), self._nodes
        try:
            return self._cursors.token(cursor)  # of this directory, whatever its node is called
        except DoesNotExistError:
            if nodes is None or mark in (None, self._cursors.node):
                raise
        node = next((node for node in nodes.known if node_mark(node) == mark), None)
        if node is None and not nodes.is_heard:
            raise NotReadyError(
                "The server has not heard of the other nodes yet, of which this cursor may be: ask again."
            )
        if node is None:
            raise never_given(cursor)
        return Elsewhere(node, cursor)

    async def follow(
        self, request: Request, store: ServedStore, token: CursorToken | Elsewhere, limit: int | None
    ) -> Response:
        """Return the page of a cursor, from the process that has it. Raises like `Cursors.follow`."""
        if isinstance(token, Elsewhere):
            return await self._from_node(request, token.node, _page_url(store, token.cursor, limit))
        if token.process == self._cursors.process:
            if request.method == "HEAD":
                _note_path(request, self._cursors.check(token, store))
                return head_response(JSON)
            # One of another node's has its place there, where it came in.
            place = nullcontext() if came_over_link(request) else self._limits.scan(caller_of(request))
            async with place, self._limits.query():
                cursor, page = await self._cursors.follow(token, store, limit)
                _note_path(request, cursor)
                await self._stand_now(cursor)
                return await _page_response(cursor, page)
        return await self._large.follow(request, token.process)

    async def _stand_now(self, cursor: Cursor) -> None:
        """Take back `served_by: active` of copies that are no longer their owner's."""
        nodes = self._nodes
        now: dict[int, ServedBy] = {}
        away: dict[int, str] = {}
        for p, answer in answers_of(cursor.outcomes).items():
            if answer.copy.served_by != "active":
                continue
            if nodes is None or answer.node in (None, nodes.own.node):
                now[p] = self._partitions.served_by(cursor.store, p)
            else:
                away[p] = answer.node
        if away and nodes is not None:
            there = await asyncio.gather(*(_stands_there(nodes.link(node), cursor, p) for p, node in away.items()))
            now |= dict(zip(away, there, strict=True))
        cursor.let_go({p: served_by for p, served_by in now.items() if served_by != "active"})

    async def _from_node(self, request: Request, node: str, url: str) -> Response:
        assert self._nodes is not None, "cursors of other nodes come from there"
        link = self._nodes.link(node)
        handed_on = came_over_link(request) or Siblings.was_relayed(request.scope)
        gone = CursorExpiredError(f"Node {node!r}, which has this cursor, cannot be reached. Start over without it.")
        if link is None or handed_on:
            raise gone
        method = "HEAD" if request.method == "HEAD" else "GET"
        try:
            place = nullcontext() if method == "HEAD" else self._limits.scan(caller_of(request))
            async with place, self._limits.query():
                answer = await link.http(method, url, {})
                headers = {name: value for name, value in answer.headers.items() if name in _KEPT}
                return Response(answer.body, answer.status, headers)
        except NotPresentError as error:
            raise gone from error


def _note_path(request: Request, cursor: Cursor) -> None:
    """Count a page under the path of its query, because every path of a scan takes every cursor."""
    if request.method != "POST":
        observed().route = f"/v1/stores/{{store}}{cursor.path}"


async def _stands_there(link: Link | None, cursor: Cursor, partition: int) -> ServedBy:
    """Ask that node for its role now. Its last map may be older than its lease."""
    if link is None:
        return "standby"
    terms = replace(cursor.terms, bound=PositionBound(), require_active=True)
    try:
        outcome = await link.query(terms, partition, PositionQuery(), 0, token_to_pass_on())
    except StatelineError:
        return "standby"
    return "standby" if isinstance(outcome, Failure) else outcome.copy.served_by


def _page_url(store: ServedStore, cursor: str, limit: int | None) -> str:
    wanted = f"cursor={cursor}" + ("" if limit is None else f"&limit={limit}")
    return f"/v1/stores/{quote(store.name, safe='')}/range?{wanted}"  # a cursor knows its query itself


def refusal(read: ReadRequest, outcomes: Mapping[int, Outcome]) -> Response | None:
    """Return the failure of the whole query, if partitions failed and a partial answer is not allowed or empty."""
    failures = failures_of(outcomes)
    if not failures or (read.allow_partial and len(failures) < len(outcomes)):
        return None
    return failure_response(read.terms, failures)


async def _page_response(cursor: Cursor, page: Page) -> Response:
    definition = cursor.store.definition

    def shown(entry: Entry) -> Mapping[str, Any]:
        return cursor.shape.only(entry_members(definition, entry, with_key=cursor.with_key))

    result: dict[str, Any] = {"entries": await entries_json(page.entries, shown)}
    if page.cursor is not None:
        result["cursor"] = page.cursor
    return json_response(answer_body(cursor.terms, cursor.outcomes, result, cursor.shape))
