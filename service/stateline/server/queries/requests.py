"""`RequestReader` reads what all queries have in common. The functions below make the store's query, which
`stateline_store.reads.queries` runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from stateline.config.settings import Config
from stateline.model.store_definition import StoreDefinition
from stateline.query.kinds import BY_WORD, query_of
from stateline.query.query_kind import QueryKind
from stateline.query.values import MAX_KEYS_BYTES, ScanQuery, Terms
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.formats import WHOLE, Shape
from stateline.server.contract.observation import observed
from stateline.server.contract.parameters import KEY, PARAMETERS, TIME
from stateline.server.routing.bounds import PositionBounds
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, KeysQuery, Order, VersionedKeysQuery

_LEVELS = tuple(level.value for level in IsolationLevel)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One request: the store, the terms, and where and for how long to look."""

    store: ServedStore
    terms: Terms
    partitions: tuple[int, ...] | range
    wait_ms: int
    allow_partial: bool
    shape: Shape = WHOLE
    deadline_s: float | None = None
    """Until when, on the loop's clock; None for a single look, and until it begins."""

    def from_now(self) -> ReadRequest:
        """Return the request with its deadline. On the event loop's thread."""
        if not self.wait_ms:
            return self
        return replace(self, deadline_s=asyncio.get_running_loop().time() + self.wait_ms / 1000)


class RequestReader:
    """Reads what all queries have in common, by the settings of one server process. For any thread."""

    def __init__(self, config: Config, bounds: PositionBounds) -> None:
        self._bounds = bounds
        self._default_level = config.default_state_isolation_level
        self._wait_max_ms = config.server_wait_max_ms
        self._limit_default = min(config.server_limit_default, config.server_limit_max)
        self.limit_max = config.server_limit_max
        """The most entries that may be asked for at once."""

    def read(self, store: ServedStore, arguments: Arguments) -> ReadRequest:
        """Return what these parameters ask of this store. Raises like `Arguments`, and `DoesNotExistError` for an
        unknown partition."""
        level = IsolationLevel(arguments.choice("isolation_level", self._default_level.value, _LEVELS))
        observed().level = level.value
        wait_ms = arguments.integer("wait_ms", 0, 0, self._wait_max_ms, "server.wait.max.ms")
        bound = arguments.bound(self._bounds.most_named(store))
        self._bounds.check(store, bound)
        staleness_ms = arguments.integer("max_staleness_ms", -1, 0, 2**53, "2^53")
        terms = Terms(
            store.name, level, bound, arguments.boolean("require_active"),
            max_staleness_ms=None if staleness_ms < 0 else staleness_ms,
        )  # fmt: skip
        partitions = store.chosen(arguments.partitions())
        return ReadRequest(store, terms, partitions, wait_ms, arguments.boolean("allow_partial"), Shape.read(arguments))

    def limit(self, arguments: Arguments) -> int:
        """Return how many entries a page may have."""
        return arguments.integer("limit", self._limit_default, 1, self.limit_max, "server.limit.max")


_ORDERS = {"asc": Order.ASCENDING, "desc": Order.DESCENDING}


def columns_of(kind: QueryKind, definition: StoreDefinition) -> tuple[str, ...]:
    """Return the columns that the answer to this query may have: its members, or those of its entries."""
    if kind.is_scan:
        return entry_columns(definition)
    return ("found", *entry_columns(definition)) if kind.word in ("key", "keys") else tuple(kind.answer)


def entry_columns(definition: StoreDefinition, *, with_key: bool = True) -> tuple[str, ...]:
    key = ("key",) if with_key else ()
    times = ("start", "end") if definition.plain_kind in ("window", "session") else ()
    ends = ("valid_to",) if definition.kind == "versioned" else ()
    headers = ("headers",) if definition.headers else ()
    return (*key, *times, "value", "timestamp", *ends, *headers)


def keys_query(store: ServedStore, keys: tuple[bytes, ...], as_of: int | None) -> KeysQuery | VersionedKeysQuery:
    """Return the query of these keys. With `as_of`, only stores with a history answer it."""
    given = {"keys": keys, "as_of": as_of}
    query = query_of(BY_WORD["keys"], store.name, store.definition.kind, given, most_bytes=MAX_KEYS_BYTES)
    assert isinstance(query, KeysQuery | VersionedKeysQuery)
    return query


def scan_query(
    kind: QueryKind, key: bytes | None, store: ServedStore, arguments: Arguments, *, pages: bool
) -> ScanQuery:
    """Return the query of this kind with its arguments, for `pages` or a stream. Raises like `Arguments` and
    `query_of`."""
    usual = kind.usual_order(of_key=key is not None, pages=pages)
    order = _ORDERS.get(arguments.choice("order", "", _ORDERS), usual)
    definition, given = store.definition, dict[str, Any](key=key)
    for name in kind.url_parameters:
        if PARAMETERS[name].schema is TIME:
            given[name] = arguments.time(name)
        elif PARAMETERS[name].schema is KEY:
            given[name] = arguments.key(name, definition.key)
    return query_of(kind, store.name, definition.kind, given, order=order)
