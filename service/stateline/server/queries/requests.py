"""`RequestReader`: what a request demands, whatever its query (`ReadRequest`). And the store's query that it is
translated onto, which `stateline_store.queries` runs: what a client writes becomes bytes and milliseconds here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from stateline.model.store_definition import StoreDefinition
from stateline.query.values import MAX_KEYS_BYTES, ScanQuery, Terms
from stateline.server.contract.arguments import Arguments, numbers_shown
from stateline.server.contract.formats import WHOLE, Shape
from stateline.server.contract.observation import note_level
from stateline.server.serving import Serving
from stateline.server.state.served_stores import ServedStore
from stateline_store import (
    DoesNotExistError,
    InvalidArgumentError,
    IsolationLevel,
    KeysQuery,
    MultiVersionedKeyQuery,
    Order,
    PrefixQuery,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)

PAGING = ("limit", "cursor")
RANGE_PARAMETERS = ("lower", "upper", "prefix", "as_of", "order", *PAGING)
TIME_PARAMETERS = ("from", "to", "order", *PAGING)
# Word of a query → its own members in a body.
BODY_PARAMETERS = {
    "key": ("key", "keys_as", "as_of"),
    "keys": ("keys", "keys_as", "as_of"),
    "range": (*RANGE_PARAMETERS, "keys_as"),
    "windows": ("key", "keys_as", *TIME_PARAMETERS),
    "sessions": ("key", "keys_as", *TIME_PARAMETERS),
    "versions": ("key", "keys_as", *TIME_PARAMETERS),
    "count": ("exact",),
    "position": (),
    "custom": ("query",),
}
# Of an answer without entries, word of the query → its members.
OWN_MEMBERS = {
    "count": ("approximate_entries",),
    "exact_count": ("exact_entries",),
    "position": ("committed", "uncommitted"),
    "custom": ("results",),
}
_LEVELS = tuple(level.value for level in IsolationLevel)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One request, read: the store, the terms, and where and for how long to look."""

    store: ServedStore
    terms: Terms
    partitions: tuple[int, ...] | range
    wait_ms: int
    allow_partial: bool
    shape: Shape = WHOLE
    deadline_s: float | None = None
    """Until when, on the loop's clock; None for a single look, and until it begins."""

    def from_now(self) -> ReadRequest:
        """The same, begun: on the event loop's thread."""
        if not self.wait_ms:
            return self
        return replace(self, deadline_s=asyncio.get_running_loop().time() + self.wait_ms / 1000)


class RequestReader:
    """Reads what all queries have in common, by the settings of one server process. For any thread."""

    def __init__(self, serving: Serving) -> None:
        config = serving.config
        self._serving = serving
        self._default_level = config.default_state_isolation_level
        self._wait_max_ms = config.server_wait_max_ms
        self._limit_default = min(config.server_limit_default, config.server_limit_max)
        self.limit_max = config.server_limit_max
        """The most entries that may be asked for at once."""

    def read(self, store: ServedStore, arguments: Arguments) -> ReadRequest:
        """What these parameters demand of this store. Raises as `Arguments` does, and `DoesNotExistError` for a
        partition that there is not."""
        level = IsolationLevel(arguments.choice("isolation_level", self._default_level.value, _LEVELS))
        note_level(level.value)
        wait_ms = arguments.integer("wait_ms", 0, 0, self._wait_max_ms, "server.wait.max.ms")
        bound = arguments.bound(self._serving.bounds.most_named(store))
        self._serving.bounds.check(store, bound)
        staleness_ms = arguments.integer("max_staleness_ms", -1, 0, 2**53, "2^53")
        terms = Terms(
            store.name, level, bound, arguments.boolean("require_active"),
            max_staleness_ms=None if staleness_ms < 0 else staleness_ms,
        )  # fmt: skip
        partitions = _chosen(store, arguments.partitions())
        return ReadRequest(store, terms, partitions, wait_ms, arguments.boolean("allow_partial"), Shape.read(arguments))

    def limit(self, arguments: Arguments) -> int:
        """How many entries a page may have."""
        return arguments.integer("limit", self._limit_default, 1, self.limit_max, "server.limit.max")


def columns_of(word: str, definition: StoreDefinition) -> tuple[str, ...]:
    """The columns that the answer to this query may have: its members, or those of its entries."""
    if word in OWN_MEMBERS:
        return OWN_MEMBERS[word]
    return (*(("found",) if word in ("key", "keys") else ()), *entry_columns(definition))


def entry_columns(definition: StoreDefinition, *, with_key: bool = True) -> tuple[str, ...]:
    """The members of an entry."""
    key = ("key",) if with_key else ()
    times = ("start", "end") if definition.plain_kind in ("window", "session") else ()
    ends = ("valid_to",) if definition.kind == "versioned" else ()
    return (*key, *times, "value", "timestamp", *ends)


def keys_query(
    definition: StoreDefinition, keys: tuple[bytes, ...], as_of: int | None
) -> KeysQuery | VersionedKeysQuery:
    """The query of these keys. With `as_of` it is one that only stores with a history answer."""
    if definition.kind == "versioned" or as_of is not None:
        return VersionedKeysQuery(keys, as_of, MAX_KEYS_BYTES)
    return KeysQuery(keys, MAX_KEYS_BYTES)


def scan_query(word: str, key: bytes | None, definition: StoreDefinition, arguments: Arguments) -> ScanQuery:
    """The query of this word: `range`, `windows`, `sessions` or `versions`; the last one of a key."""
    down = arguments.choice("order", "desc" if word == "versions" else "asc", ("asc", "desc")) == "desc"
    order = Order.DESCENDING if down else Order.ASCENDING
    if word == "range":
        return _range_query(definition, arguments, order)
    times = arguments.time("from"), arguments.time("to"), order
    if key is None:
        return WindowRangeQuery(None, *times) if word == "windows" else SessionRangeQuery(*times)
    if word == "windows":
        return WindowKeyQuery(key, *times)
    return (SessionKeyQuery if word == "sessions" else MultiVersionedKeyQuery)(key, *times)


def all_entries(definition: StoreDefinition) -> ScanQuery:
    """The query of all entries of this store."""
    match definition.plain_kind:
        case "window":
            return WindowRangeQuery(None, None, None)
        case "session":
            return SessionRangeQuery(None, None)
        case "versioned":
            return VersionedRangeQuery(None, None, None)
    return RangeQuery(None, None)


def _range_query(definition: StoreDefinition, arguments: Arguments, order: Order) -> ScanQuery:
    """With `as_of` it is one that only stores with a history answer."""
    lower, upper, prefix = (arguments.key(name, definition.key) for name in ("lower", "upper", "prefix"))
    if prefix is not None and (lower is not None or upper is not None):
        raise InvalidArgumentError("prefix stands alone: leave out lower and upper, or prefix.")
    as_of = arguments.time("as_of")
    if definition.kind == "versioned" or as_of is not None:
        if prefix is None:
            return VersionedRangeQuery(lower, upper, as_of, order)
        return VersionedPrefixQuery(prefix, as_of, order)
    return RangeQuery(lower, upper, order) if prefix is None else PrefixQuery(prefix, order)


def _chosen(store: ServedStore, partitions: tuple[int, ...] | None) -> tuple[int, ...] | range:
    if partitions is None:
        return store.partitions
    for partition in partitions:
        if partition not in store.partitions:
            raise DoesNotExistError(
                f"{store.name!r} has no partition {partition}: it has {numbers_shown(len(store.partitions))}."
            )
    return partitions
