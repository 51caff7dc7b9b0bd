"""A store as a test sees it: queries as the server makes them, with Python objects through the store's serdes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from stateline.client.results import Entry, Headers, KeyedWindow, Version, Window
from stateline.model.store_definition import StoreDefinition
from stateline.model.stored_value import StoredValue, taken_apart
from stateline.query.kinds import BY_WORD, query_of
from stateline.serde.plain import Serde, shown
from stateline.serde.windowed import WindowedSerde
from stateline.testing.store_partitions import Hosts
from stateline.worker.loop.worker import Worker
from stateline_store import IsolationLevel, Position, StateStore, TransactionalStore, VersionedRecord, Windowed
from stateline_store.errors import DoesNotExistError, InvalidArgumentError, UnknownQueryTypeError
from stateline_store.reads.query_types import KeyQuery, MultiVersionedKeyQuery, Order, Query, VersionedKeyQuery

Level = Literal["read_committed", "read_uncommitted"] | IsolationLevel | None
_KINDS = {
    "get": ("key_value", "versioned"),
    "entry": ("key_value", "versioned"),
    "range": ("key_value", "versioned"),
    "fetch": ("window", "session"),
    "fetch_all": ("window", "session"),
    "versions": ("versioned",),
}


class TestedStore:
    """One store of the application, all its partitions, as it is at each call.

    Every read takes `isolation_level`: "read_committed" sees the last commit, "read_uncommitted" also what was
    processed since. The default is the level of the server's queries. Times are milliseconds since the epoch. Reads
    raise `InvalidArgumentError` for a key of another type than the store's, and `UnknownQueryTypeError` if this kind of
    store has no such read. One thread uses it.
    """

    __test__ = False  # pytest takes it for no test

    def __init__(self, look: Callable[[], Hosts], default_level: IsolationLevel) -> None:
        self._look = look
        self._default_level = default_level

    def get(self, key: Any, *, as_of: int | None = None, isolation_level: Level = None) -> Any:
        """Return the value of this key, None without one; for a versioned store the value at `as_of`."""
        found = self._entry("get", key, as_of, isolation_level)
        return None if found is None else found.value

    def entry(self, key: Any, *, as_of: int | None = None, isolation_level: Level = None) -> Entry | None:
        """Return the value, with the timestamp and headers that the store keeps, and the end of a version."""
        return self._entry("entry", key, as_of, isolation_level)

    def all(self, *, as_of: int | None = None, isolation_level: Level = None) -> list[Entry]:
        """Return every entry, in the order of the keys' bytes."""
        return self.range(as_of=as_of, isolation_level=isolation_level)

    def range(
        self,
        lower: Any = None,
        upper: Any = None,
        *,
        prefix: Any = None,
        order: Literal["asc", "desc"] = "asc",
        as_of: int | None = None,
        isolation_level: Level = None,
    ) -> list[Entry]:
        """Return the entries from `lower` to `upper`, both included, None open; or those whose key begins with
        `prefix`."""
        if prefix is not None and (lower is not None or upper is not None):
            raise InvalidArgumentError("Give a prefix, or bounds: not both.")
        if order not in ("asc", "desc"):
            raise InvalidArgumentError(f"order is asc or desc, not {shown(order)}.")
        definition, towards = self._checked("range"), Order.ASCENDING if order == "asc" else Order.DESCENDING
        low, high, begin = (None if each is None else _bytes(definition.key, each) for each in (lower, upper, prefix))
        given = {"lower": low, "upper": high, "prefix": begin, "as_of": as_of}
        query = query_of(BY_WORD["range"], definition.name, definition.kind, given, order=towards)
        return [self._shown(definition, key, stored) for key, stored in self._ask(query, isolation_level)]

    def fetch(
        self, key: Any, time_from: int | None = None, time_to: int | None = None, *, isolation_level: Level = None
    ) -> list[Window]:
        """Return the windows of this key that start in this time, both ends included, None open; for a session store
        the sessions that overlap it. They are in the order of time."""
        definition = self._checked("fetch")
        asked = _bytes(_inner(definition), key)
        return [
            Window(start=at.start_ms, end=at.end_ms, value=value, timestamp=timestamp, headers=headers)
            for at, value, timestamp, headers in self._windows(definition, asked, time_from, time_to, isolation_level)
        ]

    def fetch_all(
        self, time_from: int | None = None, time_to: int | None = None, *, isolation_level: Level = None
    ) -> list[KeyedWindow]:
        """Return the windows of all keys that start in this time; for a session store the sessions that end in it."""
        definition = self._checked("fetch_all")
        serde = _inner(definition)
        return [
            KeyedWindow(
                key=serde.deserialize(at.key),
                start=at.start_ms,
                end=at.end_ms,
                value=value,
                timestamp=timestamp,
                headers=headers,
            )
            for at, value, timestamp, headers in self._windows(definition, None, time_from, time_to, isolation_level)
        ]

    def versions(
        self, key: Any, time_from: int | None = None, time_to: int | None = None, *, isolation_level: Level = None
    ) -> list[Version]:
        """Return the values of this key that were valid in this time, both ends included, None open; oldest first."""
        definition = self._checked("versions")
        query = MultiVersionedKeyQuery(_bytes(definition.key, key), time_from, time_to, Order.ASCENDING)
        found = self._ask(query, isolation_level)
        return [
            Version(value=definition.value.deserialize(each.value), timestamp=each.timestamp, valid_to=each.valid_to)
            for _, each in found
        ]

    def position(self, *, isolation_level: Level = None) -> Position:
        """Return the input that the store reflects: topic, partition, offset."""
        level, position = self._level(isolation_level), Position()
        for store in self._look().partitions.values():
            if isinstance(store, TransactionalStore):
                position = position.merge(store.position(level))
        return position

    def of_partition(self, partition: int = 0) -> StateStore:
        """Return the worker's own store object of one partition, to read a store of your own class. Raises
        `DoesNotExistError` for an unknown partition."""
        partitions = self._look().partitions
        if partition not in partitions:
            raise DoesNotExistError(
                f"There is no partition {partition}: {', '.join(map(str, partitions)) or 'none'} are there."
            )
        return partitions[partition]

    def _entry(self, read: str, key: Any, as_of: int | None, level: Level) -> Entry | None:
        definition = self._checked(read)
        asked = _bytes(definition.key, key)
        query: Query[Any] = KeyQuery(asked)
        if definition.plain_kind == "versioned":
            query = VersionedKeyQuery(asked, as_of)
        elif as_of is not None:
            raise UnknownQueryTypeError(f"Store {definition.name!r} keeps no versions: leave as_of out.")
        for _, stored in self._ask(query, level):
            return self._shown(definition, asked, stored)
        return None

    def _windows(
        self, definition: StoreDefinition, key: bytes | None, time_from: int | None, time_to: int | None, level: Level
    ) -> Iterator[tuple[Windowed, Any, int | None, Headers | None]]:
        word, given = (
            "sessions" if definition.plain_kind == "session" else "windows",
            {"from": time_from, "to": time_to},
        )
        query = query_of(BY_WORD[word], definition.name, definition.kind, {"key": key, **given}, order=Order.ASCENDING)
        for at, stored in self._ask(query, level):
            taken = taken_apart(definition, stored)
            yield at, definition.value.deserialize(taken.value), taken.timestamp_ms, _headers(taken)

    @staticmethod
    def _shown(definition: StoreDefinition, key: bytes, stored: bytes | VersionedRecord) -> Entry:
        shown_key = definition.key.deserialize(key)
        if isinstance(stored, VersionedRecord):
            value = definition.value.deserialize(stored.value)
            return Entry(key=shown_key, value=value, timestamp=stored.timestamp, valid_to=stored.valid_to)
        taken = taken_apart(definition, stored)
        value = definition.value.deserialize(taken.value)
        return Entry(key=shown_key, value=value, timestamp=taken.timestamp_ms, headers=_headers(taken))

    def _checked(self, read: str) -> StoreDefinition:
        definition = self._look().definition
        if definition.plain_kind in _KINDS[read]:
            return definition
        able = [name for name, kinds in _KINDS.items() if definition.plain_kind in kinds] or ["of_partition"]
        raise UnknownQueryTypeError(
            f"{definition.name!r} is a {definition.kind} store, which has no {read}: it has {', '.join(able)}."
        )

    def _ask(self, query: Query[Any], level: Level) -> list[tuple[Any, Any]]:
        return self._look().entries(query, self._level(level))

    def _level(self, given: Level) -> IsolationLevel:
        try:
            return self._default_level if given is None else IsolationLevel(given)
        except ValueError as error:
            levels = " or ".join(each.value for each in IsolationLevel)
            raise InvalidArgumentError(f"isolation_level is {levels}, not {shown(given)}.") from error


def _headers(taken: StoredValue) -> Headers | None:
    return None if taken.headers is None else tuple(taken.headers)


def _inner(definition: StoreDefinition) -> Serde:
    return definition.key.inner if isinstance(definition.key, WindowedSerde) else definition.key


def _bytes(serde: Serde, value: Any) -> bytes:
    try:
        return serde.serialize(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"Keys here are of type {serde.name}: {error}") from error


def tested_store(
    worker: Callable[[], Worker], definitions: Mapping[str, StoreDefinition], name: str, default: IsolationLevel
) -> TestedStore:
    """Return the store of this name, of the driver's current worker. Raises as `Hosts.of`."""
    Hosts.of(worker(), definitions, name)
    return TestedStore(lambda: Hosts.of(worker(), definitions, name), default)
