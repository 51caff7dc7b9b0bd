"""The queries of the contract: a request is read, asked, and answered.

Handlers are plain Starlette endpoints, not FastAPI's: without its dependency resolution a point read takes
little more than half the time (measured: 11k/s against 18k/s of an empty answer). So parameters are read by
`arguments`, and `openapi` describes them from the same declarations.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from stateline.query import (
    CountQuery,
    Outcome,
    PositionQuery,
    Query,
    RangeQuery,
    Terms,
    answers_of,
    failures_of,
    merge_rows,
)
from stateline.serde import JsonSerde
from stateline.server.answers import answer_body, entry_members, found_members, json_response
from stateline.server.arguments import (
    COMMON,
    MAX_BODY_BYTES,
    MAX_URL_BYTES,
    Arguments,
    from_body,
    from_query_string,
    json_text,
    read_key,
    refuse_bad_percent,
    url_too_long,
)
from stateline.server.partitions import ServedStore
from stateline.server.problems import failure_response
from stateline.server.serving import Serving
from stateline_store import (
    DoesNotExistError,
    InvalidArgumentError,
    IsolationLevel,
    UnknownQueryTypeError,
)

# Queries of the contract that only other kinds of stores answer, as paths below a store or a key, and as
# types.
OTHER_KINDS = ("versions", "windows", "sessions")
OTHER_TYPES = (*OTHER_KINDS, "versioned_key", "multi_versioned_key", "window_key", "window_range")
RANGE_PARAMETERS = ("lower", "upper", "prefix", "order", "limit")
BODY_PARAMETERS = {
    "key": ("key",),
    "keys": ("keys",),
    "range": RANGE_PARAMETERS,
    "count": (),
}

# How long a request may wait for more of its body: what no lossy line needs between two packets, and short enough
# that clients which went to sleep do not keep their connections.
BODY_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read: the store, the terms, and where and until when to look (on the loop's clock)."""

    store: ServedStore
    terms: Terms
    partitions: tuple[int, ...] | range
    deadline_s: float | None
    allow_partial: bool


class QueryRoutes:
    """The endpoints of queries."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        config = serving.config
        self._default_level = config.default_state_isolation_level
        self._wait_max_ms = config.server_wait_max_ms
        self._limit_default = min(config.server_limit_default, config.server_limit_max)
        self._limit_max = config.server_limit_max

    async def key(self, request: Request) -> Response:
        """GET …/keys/{key}: the value of one key."""
        segments = raw_segments(request)
        store = self._serving.store(_text(segments[2]))
        if len(segments) > 5 and segments[-1] in OTHER_KINDS:
            raise _other_kind(store, segments[-1])
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        if "as_of" in arguments:
            raise _other_kind(store, "as_of")
        arguments.refuse_others(COMMON)
        key = read_key("The key", _text("/".join(segments[4:])), store.definition.key, textual=True)
        return await self._key_answer(self._asked(store, arguments), key)

    async def range(self, request: Request) -> Response:
        """GET …/range: entries in the order of serialized keys."""
        store, arguments = self._read(request, (*COMMON, *RANGE_PARAMETERS))
        return await self._range_answer(self._asked(store, arguments), arguments)

    async def count(self, request: Request) -> Response:
        """GET …/count: about how many entries there are."""
        store, arguments = self._read(request, COMMON)
        return await self._count_answer(self._asked(store, arguments))

    async def other_kind(self, request: Request) -> Response:
        """GET …/windows: a query that no kind of store of this version answers."""
        segments = raw_segments(request)
        raise _other_kind(self._serving.store(_text(segments[2])), segments[-1])

    async def position(self, request: Request) -> Response:
        """GET …/position: how far every partition has come, committed and uncommitted."""
        store, arguments = self._read(request, COMMON)
        asked = self._asked(store, arguments)
        by_level = {}
        for level in IsolationLevel:
            terms = Terms(store.name, level, asked.terms.bound, asked.terms.require_active)
            queries: dict[int, Query] = {p: PositionQuery() for p in asked.partitions}
            by_level[level] = await self._serving.ask(store, terms, queries, asked.deadline_s)
        failures = {p: f for outcomes in by_level.values() for p, f in failures_of(outcomes).items()}
        outcomes = by_level[asked.terms.isolation_level]
        if failures and (not asked.allow_partial or not answers_of(outcomes)):
            return failure_response(asked.terms, dict(sorted(failures.items())))
        result = {
            "committed": _positions(by_level[IsolationLevel.READ_COMMITTED]),
            "uncommitted": _positions(by_level[IsolationLevel.READ_UNCOMMITTED]),
        }
        return json_response(answer_body(asked.terms, outcomes | failures, result))

    async def query(self, request: Request) -> Response:
        """POST …/query: any query, as a JSON body."""
        store = self._serving.store(_text(raw_segments(request)[2]))
        given = from_query_string(request.scope["query_string"])
        by_text = isinstance(store.definition.key, JsonSerde)
        body = from_body(await self._read_body(request), keep_text=by_text)
        if twice := sorted(given.keys() & body.keys()):
            raise InvalidArgumentError(f"{twice[0]!r} is given in the URL and in the body: give it once.")
        arguments = Arguments(given | body)
        if "as_of" in arguments:
            raise _other_kind(store, "as_of")
        kind = self._kind(store, body["type"].value if "type" in body else None)
        arguments.refuse_others(("type", *COMMON, *BODY_PARAMETERS[kind]))
        asked = self._asked(store, arguments)
        match kind:
            case "key":
                key = arguments.key("key", store.definition.key)
                if key is None:
                    raise InvalidArgumentError("key is missing.")
                return await self._key_answer(asked, key)
            case "keys":
                return await self._keys_answer(asked, arguments)
            case "range":
                return await self._range_answer(asked, arguments)
            case _:
                return await self._count_answer(asked)

    async def _read_body(self, request: Request) -> bytes:
        """Raises `InvalidArgumentError` when it is too large or does not arrive, `NotReadyError` when the server stops
        meanwhile, Starlette's `ClientDisconnect` when the client does not wait for an answer.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > MAX_BODY_BYTES):
            raise _body_too_large()
        body = bytearray()
        chunks = request.stream()
        try:
            while True:
                async with self._serving.limits.within(BODY_PATIENCE_S):
                    body += await anext(chunks)
                if len(body) > MAX_BODY_BYTES:
                    raise _body_too_large()
        except StopAsyncIteration:
            return bytes(body)
        except TimeoutError as error:
            raise InvalidArgumentError(
                f"Nothing more of the body arrived for {BODY_PATIENCE_S:g} s, after {len(body)} bytes: send it again, "
                "as long as its Content-Length says."
            ) from error

    def _kind(self, store: ServedStore, kind: object) -> str:
        if isinstance(kind, str) and kind in BODY_PARAMETERS:
            return kind
        if kind in OTHER_TYPES:
            raise _other_kind(store, str(kind))
        raise InvalidArgumentError(f"type={json_text(kind)} is not one of {', '.join(BODY_PARAMETERS)}.")

    def _read(self, request: Request, allowed: tuple[str, ...]) -> tuple[ServedStore, Arguments]:
        store = self._serving.store(_text(raw_segments(request)[2]))
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        if "as_of" in arguments:
            raise _other_kind(store, "as_of")
        arguments.refuse_others(allowed)
        return store, arguments

    def _asked(self, store: ServedStore, arguments: Arguments) -> Asked:
        level = IsolationLevel(arguments.choice("isolation_level", self._default_level.value, _LEVELS))
        wait_ms = arguments.integer("wait_ms", 0, 0, self._wait_max_ms, "server.wait.max.ms")
        bound = arguments.bound()
        self._serving.check_bound(store, bound)
        terms = Terms(store.name, level, bound, arguments.boolean("require_active"))
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000 if wait_ms else None
        partitions = _chosen(store, arguments.partitions())
        return Asked(store, terms, partitions, deadline_s, arguments.boolean("allow_partial"))

    async def _key_answer(self, asked: Asked, key: bytes) -> Response:
        found, outcomes = await self._find(asked, (key,))
        if refused := _refusal(asked, outcomes):
            return refused
        result = found_members(asked.store.definition, key, found.get(key))
        partial = bool(failures_of(outcomes))
        status = 200 if found or partial else 404
        return json_response(answer_body(asked.terms, outcomes, result), status)

    async def _keys_answer(self, asked: Asked, arguments: Arguments) -> Response:
        definition = asked.store.definition
        keys = arguments.keys(definition.key, self._limit_max)
        found, outcomes = await self._find(asked, keys)
        if refused := _refusal(asked, outcomes):
            return refused
        entries = [found_members(definition, key, found.get(key)) for key in keys]
        return json_response(answer_body(asked.terms, outcomes, {"entries": entries}))

    async def _range_answer(self, asked: Asked, arguments: Arguments) -> Response:
        query = self._range_query(asked.store, arguments)
        outcomes = await self._everywhere(asked, query)
        if refused := _refusal(asked, outcomes):
            return refused
        rows = merge_rows((answer.rows for answer in answers_of(outcomes).values()), query)
        entries = [entry_members(asked.store.definition, entry) for entry in rows.entries]
        result = {"entries": entries, "truncated": rows.truncated}
        return json_response(answer_body(asked.terms, outcomes, result))

    async def _count_answer(self, asked: Asked) -> Response:
        query = CountQuery()
        outcomes = await self._everywhere(asked, query)
        if refused := _refusal(asked, outcomes):
            return refused
        rows = merge_rows((answer.rows for answer in answers_of(outcomes).values()), query)
        return json_response(answer_body(asked.terms, outcomes, {"approximate_entries": rows.count}))

    def _range_query(self, store: ServedStore, arguments: Arguments) -> RangeQuery:
        serde = store.definition.key
        lower, upper, prefix = (arguments.key(name, serde) for name in ("lower", "upper", "prefix"))
        if prefix is not None and (lower is not None or upper is not None):
            raise InvalidArgumentError("prefix stands alone: leave out lower and upper, or prefix.")
        limit = arguments.integer("limit", self._limit_default, 1, self._limit_max, "server.limit.max")
        reverse = arguments.choice("order", "asc", ("asc", "desc")) == "desc"
        return RangeQuery(lower, upper, prefix, reverse, limit)

    async def _find(self, asked: Asked, keys: tuple[bytes, ...]) -> tuple[dict[bytes, bytes], dict[int, Outcome]]:
        return await self._serving.find(asked.store, asked.terms, keys, asked.partitions, asked.deadline_s)

    async def _everywhere(self, asked: Asked, query: Query) -> dict[int, Outcome]:
        queries = dict.fromkeys(asked.partitions, query)
        return await self._serving.ask(asked.store, asked.terms, queries, asked.deadline_s)


_LEVELS = tuple(level.value for level in IsolationLevel)


def raw_segments(request: Request) -> list[str]:
    """The path's segments, still percent-encoded: ``["v1", "stores", …]``.

    From the raw path, because the decoded one cannot tell ``%2F`` from ``/`` and replaces what is not UTF-8.
    """
    raw: bytes = request.scope["raw_path"]
    if len(raw) + len(request.scope["query_string"]) > MAX_URL_BYTES:
        raise url_too_long()
    refuse_bad_percent("The path", raw)
    return raw.decode("latin-1").split("/")[1:]


def _text(segment: str) -> str:
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{segment[:60]!r} in the path is not percent-encoded UTF-8.") from error


def _body_too_large() -> InvalidArgumentError:
    return InvalidArgumentError(f"The body is larger than {MAX_BODY_BYTES} bytes: ask for fewer keys.")


def _chosen(store: ServedStore, partitions: tuple[int, ...] | None) -> tuple[int, ...] | range:
    if partitions is None:
        return store.partitions
    for partition in partitions:
        if partition not in store.partitions:
            raise DoesNotExistError(
                f"{store.name!r} has no partition {partition}: it has 0 to {len(store.partitions) - 1}."
            )
    return partitions


def _refusal(asked: Asked, outcomes: dict[int, Outcome]) -> Response | None:
    """The failure of the whole query, if partitions failed and the rest may not, or cannot, stand for it."""
    failures = failures_of(outcomes)
    if not failures or (asked.allow_partial and len(failures) < len(outcomes)):
        return None
    return failure_response(asked.terms, failures)


def _positions(outcomes: dict[int, Outcome]) -> dict[str, Any]:
    return {str(p): answer.position.to_json() for p, answer in answers_of(outcomes).items()}


def _other_kind(store: ServedStore, query: str) -> UnknownQueryTypeError:
    return UnknownQueryTypeError(
        f"The store {store.name!r} is of kind {store.definition.kind} and cannot answer {query!r}: ask for key, keys, "
        "range or count."
    )
