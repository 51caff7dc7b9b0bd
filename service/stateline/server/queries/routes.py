"""The queries of the contract: a request is read, asked, and answered.

Handlers are plain Starlette endpoints, not FastAPI's: without its dependency resolution a point read takes
little more than half the time (measured: 11k/s against 18k/s of an empty answer). So parameters are read by
`arguments`, and `openapi` describes them from the same declarations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.query.kinds import BY_WORD, KINDS, CustomQuery
from stateline.query.query_kind import PAGING, QueryKind
from stateline.query.values import Outcome, PartitionAnswer, Value, answers_of, failures_of
from stateline.rows.columns import row_columns
from stateline.serde.key_text import other_spellings
from stateline.serde.plain import JsonSerde, shown
from stateline.serde.registered import awaits_registry
from stateline.server.contract.answers import answer_body, found_members, json_response
from stateline.server.contract.arguments import Arguments, read_key
from stateline.server.contract.formats import ARROW, CSV, JSON, NDJSON, Shape, wanted_format
from stateline.server.contract.observation import observed
from stateline.server.contract.parameters import COMMON
from stateline.server.contract.problems import failure_response
from stateline.server.contract.written_arguments import (
    MAX_URL_BYTES,
    Argument,
    from_body,
    from_query_string,
    json_text,
    refuse_bad_percent,
    url_too_long,
)
from stateline.server.queries.requests import ReadRequest, RequestReader, columns_of, keys_query, scan_query
from stateline.server.queries.scan_answers import ScanAnswers, refusal
from stateline.server.relay.large_reads import note_body
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.rows import csv_rows
from stateline.server.rows.ndjson_rows import json_line
from stateline.server.rows.streams import entries_json, headers_of, in_steps
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import while_there
from stateline_store import CountQuery, DoesNotExistError, InvalidArgumentError, IsolationLevel, PositionQuery, Query

_BEFORE_A_KEY = 4  # v1, stores, the store's name, keys
_OF_A_KEY = {kind.word: kind for kind in KINDS if kind.is_scan and kind.of_key}
Answer = Callable[[], Awaitable[Response]]
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class QueryRoutes:
    """The endpoints of queries, one for each path of a kind (`stateline.query.kinds`)."""

    _stores: ServedStores
    _routing: QueryRouting
    _bodies: Bodies
    _requests: RequestReader
    _scans: ScanAnswers

    def __post_init__(self) -> None:
        # What answers each kind that is no scan.
        self._answers: Mapping[str, Callable[[Request, ServedStore, Arguments], Answer]] = {
            "key": self._key,
            "keys": self._keys,
            "count": self._count,
            "position": self._position,
            "custom": self._custom,
        }

    def routes(self) -> list[BaseRoute]:
        below = "/v1/stores/{store}"
        return [
            Route(f"{below}/keys/{{key:stateline_key}}", _while_there(self.key)),
            *(Route(f"{below}/{k.word}", _while_there(partial(self.below_store, k))) for k in KINDS if k.of_store),
            Route(f"{below}/query", self.query, methods=["POST"]),
        ]

    async def key(self, request: Request) -> Response:
        """GET …/keys/{key}: the value of one key; …/keys/{key}/windows, /sessions, /versions: its entries."""
        segments = raw_segments(request)
        store = self._stores.get(_text(segments[2]))
        kind = _OF_A_KEY.get(segments[-1]) if len(segments) > 5 else None
        if kind is not None:
            observed().route = f"/v1/stores/{{store}}/keys/{{key}}/{kind.word}"
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others((*BY_WORD["key"].url_parameters, *COMMON) if kind is None else _allowed(kind))
        written = "/".join(segments[4 : None if kind is None else -1])
        key = await _read(store, partial(read_key, "The key", _text(written), store.definition.key, textual=True))
        if kind is None:
            read = self._plain(request, columns_of(BY_WORD["key"], store.definition), store, arguments)
            return await self._key_answer(read, key, arguments.time("as_of"))
        return await self._scan_answer(request, store, arguments, kind, key)()

    async def below_store(self, kind: QueryKind, request: Request) -> Response:
        """GET …/range, /windows, /sessions, /count, /position: a query without a key in its path."""
        store = self._stores.get(_text(raw_segments(request)[2]))
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(_allowed(kind))
        answer = await _read(store, partial(self._answer, request, store, arguments, kind, None))
        return await answer()

    async def query(self, request: Request) -> Response:
        """POST …/query: any query, as a JSON body."""
        store = self._stores.get(_text(raw_segments(request)[2]), of_any_kind=True)
        given = from_query_string(request.scope["query_string"])
        parse = partial(self._from_body, request, store, given)
        blocks = awaits_registry(store.definition.key)
        async with self._bodies.read(request, parse, blocks=blocks) as answer, while_there(request):
            return await answer()

    def _from_body(
        self, request: Request, store: ServedStore, given: Mapping[str, Argument], text: bytes
    ) -> tuple[Answer, int]:
        """Return what answers the query of a body, and how many bytes its keys have. For any thread."""
        note_body(request, text)
        body = from_body(text, keep_text=isinstance(store.definition.key, JsonSerde))
        if twice := sorted(given.keys() & body.keys()):
            raise InvalidArgumentError(f"{twice[0]!r} is given in the URL and in the body: give it once.")
        arguments = Arguments({**given, **body})
        kind = _kind(body["type"].value if "type" in body else None)
        arguments.refuse_others(("type", *COMMON, *kind.parameters))
        if kind.forms:
            store = self._stores.get(store.name)  # which refuses one that answers nothing else
        key = arguments.key("key", store.definition.key) if kind.is_scan else None
        return self._answer(request, store, arguments, kind, key), arguments.key_bytes

    def _answer(
        self, request: Request, store: ServedStore, arguments: Arguments, kind: QueryKind, key: bytes | None
    ) -> Answer:
        if kind.is_scan:
            return self._scan_answer(request, store, arguments, kind, key)
        return self._answers[kind.word](request, store, arguments)

    def _key(self, request: Request, store: ServedStore, arguments: Arguments) -> Answer:
        read = self._plain(request, columns_of(BY_WORD["key"], store.definition), store, arguments)
        key = arguments.key("key", store.definition.key)
        if key is None:
            raise InvalidArgumentError("key is missing.")
        return partial(self._key_answer, read, key, arguments.time("as_of"))

    def _keys(self, request: Request, store: ServedStore, arguments: Arguments) -> Answer:
        read = self._requests.read(store, arguments)
        media_type = wanted_format(request, read.shape, JSON, NDJSON, CSV)
        keys = arguments.keys(store.definition.key, self._requests.limit_max)
        return partial(self._keys_answer, read, media_type, keys, arguments.time("as_of"))

    def _count(self, request: Request, store: ServedStore, arguments: Arguments) -> Answer:
        if arguments.boolean("exact"):
            return partial(self._scans.count, request, self._plain(request, ("exact_entries",), store, arguments))
        return partial(self._estimate_answer, self._plain(request, ("approximate_entries",), store, arguments))

    def _position(self, request: Request, store: ServedStore, arguments: Arguments) -> Answer:
        return partial(self._position_answer, self._plain(request, ("committed", "uncommitted"), store, arguments))

    def _custom(self, request: Request, store: ServedStore, arguments: Arguments) -> Answer:
        read = self._plain(request, ("results",), store, arguments)
        return partial(self._custom_answer, read, CustomQuery(arguments.json("query")))

    def _plain(
        self, request: Request, columns: Collection[str], store: ServedStore, arguments: Arguments
    ) -> ReadRequest:
        """Return the request of an answer without entries, which is always JSON."""
        read = self._requests.read(store, arguments)
        read.shape.check_columns(columns)
        wanted_format(request, read.shape, JSON)
        return read

    async def _key_answer(self, read: ReadRequest, key: bytes, as_of: int | None) -> Response:
        found, outcomes = await self._find(read.from_now(), (key,), as_of)
        if refused := refusal(read, outcomes):
            return refused
        ((key, value),) = found
        result = found_members(read.store.definition, key, value)
        partial = bool(failures_of(outcomes))
        status = 200 if value is not None or partial else 404
        return json_response(answer_body(read.terms, outcomes, result, read.shape), status)

    async def _keys_answer(
        self, read: ReadRequest, media_type: str, keys: tuple[bytes, ...], as_of: int | None
    ) -> Response:
        definition, shape = read.store.definition, read.shape
        known = columns_of(BY_WORD["keys"], definition)
        shape.check_columns(known)
        columns = shape.columns or known
        found, outcomes = await self._find(read.from_now(), keys, as_of)
        if refused := refusal(read, outcomes):
            return refused

        def members(item: Any) -> Mapping[str, Any]:
            return shape.only(found_members(definition, *item))

        def lines(items: Any) -> bytes:
            if media_type == CSV:
                return csv_rows.lines(definition, items, columns)
            return b"".join(json_line(members(item)) for item in items)

        if media_type == JSON:
            result = {"entries": await entries_json(found, members)}
            return json_response(answer_body(read.terms, outcomes, result, shape))
        text = [csv_rows.header(columns)] if media_type == CSV else []
        text += await in_steps(found, lines)
        headers = headers_of(read.terms, outcomes, details=shape.details)
        return Response(b"".join(text), headers=headers, media_type=media_type)

    def _scan_answer(
        self, request: Request, store: ServedStore, arguments: Arguments, kind: QueryKind, key: bytes | None
    ) -> Answer:
        """Return what answers this scan, or its next page."""
        if (cursor := arguments.text("cursor")) is not None:
            token = self._scans.token(cursor)  # first: with one that does not exist the rest does not matter
            if more := arguments.names() - {"type", "format", *PAGING}:
                raise InvalidArgumentError(f"cursor stands alone, or with limit: leave out {', '.join(sorted(more))}.")
            limit = self._requests.limit(arguments) if "limit" in arguments else None
            wanted_format(request, Shape.read(arguments), JSON, why="with a cursor, ")
            return partial(self._scans.follow, request, store, token, limit)
        limit = self._requests.limit(arguments)
        read = self._requests.read(store, arguments)
        read.shape.check_columns(columns_of(kind, store.definition))
        media_type = wanted_format(request, read.shape, JSON, NDJSON, CSV, ARROW)
        query = scan_query(kind, key, store, arguments, pages=media_type == JSON)
        if media_type == ARROW:
            row_columns(store.definition, read.shape.columns)  # raises for one that Arrow does not have
        read = replace(read, shape=replace(read.shape, media_type=media_type))
        return partial(self._scans.begin, request, read, query, limit)

    async def _estimate_answer(self, read: ReadRequest) -> Response:
        outcomes = await self._asked(read, CountQuery())
        if refused := refusal(read, outcomes):
            return refused
        count = sum(answer.rows.count for answer in answers_of(outcomes).values())
        return json_response(answer_body(read.terms, outcomes, {"approximate_entries": count}, read.shape))

    async def _position_answer(self, read: ReadRequest) -> Response:
        read = read.from_now()
        by_level = {}
        for level in IsolationLevel:
            at_level = replace(read, terms=replace(read.terms, isolation_level=level))
            by_level[level] = await self._asked(at_level, PositionQuery())
        failures = {p: f for outcomes in by_level.values() for p, f in failures_of(outcomes).items()}
        outcomes = by_level[read.terms.isolation_level]
        if failures and (not read.allow_partial or not answers_of(outcomes)):
            return failure_response(read.terms, dict(sorted(failures.items())))
        result = {
            "committed": _positions(by_level[IsolationLevel.READ_COMMITTED]),
            "uncommitted": _positions(by_level[IsolationLevel.READ_UNCOMMITTED]),
        }
        return json_response(answer_body(read.terms, outcomes | failures, result, read.shape))

    async def _custom_answer(self, read: ReadRequest, query: CustomQuery) -> Response:
        outcomes = await self._asked(read, query)
        if refused := refusal(read, outcomes):
            return refused
        results = {str(p): orjson.Fragment(_only_value(answer)) for p, answer in answers_of(outcomes).items()}
        return json_response(answer_body(read.terms, outcomes, {"results": results}, read.shape))

    async def _asked(self, read: ReadRequest, query: Query[Any]) -> dict[int, Outcome]:
        """Return the answers of all partitions to one query. The wait begins now, unless it has begun."""
        read = read.from_now() if read.deadline_s is None else read
        return await self._routing.ask(read.store, read.terms, dict.fromkeys(read.partitions, query), read.deadline_s)

    async def _find(
        self, read: ReadRequest, keys: tuple[bytes, ...], as_of: int | None
    ) -> tuple[list[tuple[bytes, Value | None]], dict[int, Outcome]]:
        """Return each key, in its stored spelling if it is there, and its value."""
        definition = read.store.definition
        others = other_spellings(definition.key, keys)
        query = keys_query(read.store, tuple(dict.fromkeys((*keys, *others.values()))), as_of)
        found, outcomes = await self._routing.find(read.store, read.terms, query, read.partitions, read.deadline_s)
        stored = (key if key in found else others.get(key, key) for key in keys)
        return [(key, found.get(key)) for key in stored], outcomes


async def _read(store: ServedStore, read: Callable[[], T]) -> T:
    """Read the keys of a request, in another thread if a registry is asked for their schema."""
    return await asyncio.to_thread(read) if awaits_registry(store.definition.key) else read()


def _while_there(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """End the handler when the client leaves, if it may wait. For other requests that costs more than it saves."""

    async def answer(request: Request) -> Response:
        if b"wait_ms=" not in request.scope["query_string"]:
            return await handler(request)
        async with while_there(request):
            return await handler(request)

    return answer


def raw_segments(request: Request) -> list[str]:
    """Return the path's segments, still percent-encoded: ``["v1", "stores", …]``.

    They come from the raw path. The decoded one cannot tell ``%2F`` from ``/``, and replaces bytes that are not UTF-8.
    """
    raw: bytes = request.scope["raw_path"]
    if len(raw) + len(request.scope["query_string"]) > MAX_URL_BYTES:
        raise url_too_long()
    refuse_bad_percent("The path", raw)
    segments = raw.decode("latin-1").split("/")[1:]
    # The route was chosen by the decoded path: a slash that is encoded may be in a key, not in what comes before it.
    decoded: list[str] = request.scope["path"].split("/")[1:] if b"%" in raw else segments
    if decoded[:_BEFORE_A_KEY] != [unquote(segment) for segment in segments[:_BEFORE_A_KEY]]:
        raise DoesNotExistError("Nothing is at this path: a / is encoded where it should not be.")
    return segments


def _text(segment: str) -> str:
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{shown(segment)} in the path is not percent-encoded UTF-8.") from error


def _positions(outcomes: dict[int, Outcome]) -> dict[str, Any]:
    return {str(p): answer.position.to_json() for p, answer in answers_of(outcomes).items()}


def _only_value(answer: PartitionAnswer) -> bytes:
    ((_, value),) = answer.rows.entries
    assert isinstance(value, bytes), "JSON"
    return value


def _allowed(kind: QueryKind) -> tuple[str, ...]:
    own = kind.url_parameters
    return (*COMMON, *own) if kind.is_scan else (*own, *COMMON)


def _kind(word: object) -> QueryKind:
    if isinstance(word, str) and word in BY_WORD:
        return BY_WORD[word]
    what = "type is missing: it is" if word is None else f"type={json_text(word)} is not"
    raise InvalidArgumentError(f"{what} one of {', '.join(BY_WORD)}.")
