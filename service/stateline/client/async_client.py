"""The client for asyncio. `client` is generated from this module."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, Unpack, overload
from uuid import uuid4

import httpx

from stateline.client import answers, requests
from stateline.client.answers import AnswerReader
from stateline.client.arrow import async_batches
from stateline.client.async_transport import AsyncTransport
from stateline.client.failures import CursorExpiredError, DoesNotExistError
from stateline.client.feed import Change, Following
from stateline.client.nodes import Nodes
from stateline.client.requests import Key, Paged, RangeArguments, Request, RowArguments, Since, Time, TimeArguments
from stateline.client.results import (
    Answer,
    CountAnswer,
    Entry,
    ExactCountAnswer,
    Instance,
    KeyAnswer,
    KeyedWindow,
    KeysAnswer,
    Page,
    PositionAnswer,
    Readiness,
    SnapshotDetails,
    StoreDetails,
    Topology,
    Version,
    Window,
)
from stateline.client.retries import NEVER, Retries
from stateline.client.routing import Affinity
from stateline.client.session import Session
from stateline.client.sql import Params, SqlAnswer, SqlArguments, seen_in, statement
from stateline.client.store_calls import Call, PagedCall, StoreTerms
from stateline.client.terms import TermArguments, Terms
from stateline.client.transport import Server
from stateline_store import Position, StatelineError
from stateline_store.clock import now_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_LEAST_LEASE_MS = 120_000  # what is left of a lease when it is renewed
A = TypeVar("A", bound=Answer)
E = TypeVar("E")


class AsyncClient(AbstractAsyncContextManager["AsyncClient"]):
    """A server and its stores, for tasks of one event loop. Close it, or use it as a context manager.

    After the `retries`, every method raises a `RequestError` if the server refuses, and `UnreachableError` if no server
    answers.

    - `base_url` is one address or several. Any of several may be down.
    - `session` keeps all queries and statements consistent. `terms` apply to each query that has none of its own.
    - `timeout_s` is how long a server may be silent, in addition to a query's `wait_ms`.
    - With several nodes, a key's owner is asked for it, unless `ask_owners` is False. Everything else goes to
      `base_url`, also if the owner is not reached.
    - `compress` asks for compressed answers. They save bytes on slow networks, and cost time.
    - `http` has TLS, proxies and a pool of your own. The client does not close it.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        *,
        token: str | None = None,
        session: Session | None = None,
        retries: Retries | None = None,
        timeout_s: float = 30.0,
        ask_owners: bool = True,
        compress: bool = False,
        http: httpx.AsyncClient | None = None,
        **terms: Unpack[TermArguments],
    ) -> None:
        self._session = session
        self._terms = Terms().with_(terms)
        server = Server(base_url, token, timeout_s, retries or Retries(), ask_owners, compress)
        self._transport = AsyncTransport(server, http)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        await self._transport.close()

    def store(self, name: str, *, session: Session | None = None, **terms: Unpack[TermArguments]) -> AsyncStore:
        """Return a store, without a request. If the store does not exist, its first query raises
        `DoesNotExistError`."""
        own = StoreTerms(name, self._terms.with_(terms), session or self._session)
        return AsyncStore(self._transport, own)

    async def sql(self, sql: str, params: Params = (), **terms: Unpack[SqlArguments]) -> SqlAnswer:
        """Return the rows of one SELECT over the stores.

        `params` are values for `$1`, `$2` …, or a mapping for `$name`. The client's session applies to
        each store that the statement reads. Raises `SqlInvalidError` for a statement that cannot run,
        `SqlTooLargeError` and `SqlTimeoutError` for one that reads too much, `SqlNotInstalledError` without DuckDB on
        the server.
        """
        call = statement(self._terms, self._session, sql, params, terms)
        return seen_in(self._session, await self._transport.ask(call))

    async def stores(self) -> tuple[StoreDetails, ...]:
        """Return every store."""
        answer = await self._transport.ask(Call(requests.STORES, answers.STORES))
        return answer.stores

    async def topology(self) -> Topology:
        """Return the application's topology."""
        return await self._transport.ask(Call(requests.TOPOLOGY, answers.TOPOLOGY))

    async def instances(self) -> tuple[Instance, ...]:
        """Return the instances and their tasks."""
        answer = await self._transport.ask(Call(requests.INSTANCES, answers.INSTANCES))
        return answer.instances

    async def nodes(self) -> Nodes:
        """Return the nodes, their tasks, and the owner of each partition."""
        return await self._transport.ask(Call(requests.NODES, answers.NODES))

    async def check_health(self) -> None:
        """Return None if the server lives. Raises `UnreachableError` if not, without retries."""
        await self._transport.ask(Call(requests.HEALTH, answers.NOTHING), NEVER)

    async def readiness(self) -> Readiness:
        """Return whether every store can be queried. Without retries."""
        return await self._transport.ask(Call(requests.READINESS, answers.READINESS), NEVER)

    async def snapshot(
        self, stores: Sequence[str], *, ttl_s: int | None = None, pin: str | None = None
    ) -> AsyncSnapshot:
        """Take one consistent snapshot of these stores.

        It is kept for `ttl_s` seconds (default: the server's), or until it is released. The end of its `async with`
        block releases it. Without a `pin` the request is not retried. If no answer arrives, a snapshot may exist until
        its lease ends. A `pin` is a text of up to 64 characters: the same pin and stores give the same snapshot. Raises
        `CursorExpiredError` if the pin's snapshot is gone.
        """
        call, affinity = Call(requests.new_snapshot(stores, ttl_s, pin), answers.SNAPSHOT), Affinity()
        return AsyncSnapshot(self._transport, await self._transport.ask(call, affinity=affinity), affinity)

    async def cut(self, stores: Sequence[str], *, ttl_s: int | None = None) -> AsyncSnapshot:
        """Take a snapshot for this caller alone, to load it with `duckdb`. Unlike `snapshot` without a pin, the request
        is retried."""
        return await self.snapshot(stores, ttl_s=ttl_s, pin=uuid4().hex)

    async def open_snapshot(self, snapshot_id: str) -> AsyncSnapshot:
        """Return an existing snapshot. Raises `CursorExpiredError` if it is gone."""
        call, affinity = Call(requests.snapshot(snapshot_id), answers.SNAPSHOT), Affinity()
        return AsyncSnapshot(self._transport, await self._transport.ask(call, affinity=affinity), affinity)

    async def snapshots(self) -> tuple[SnapshotDetails, ...]:
        """Return every existing snapshot."""
        answer = await self._transport.ask(Call(requests.SNAPSHOTS, answers.SNAPSHOTS))
        return answer.snapshots


class AsyncScan(Generic[E]):
    """The entries of a query, all of one state. An iteration sends the requests page by page. Each iteration reads the
    state of its beginning.

    Raises `CursorExpiredError` if the server has released this state before the next page.
    """

    def __init__(self, transport: AsyncTransport, store: StoreTerms, call: PagedCall[E]) -> None:
        self._transport, self._store, self._call = transport, store, call

    async def __aiter__(self) -> AsyncGenerator[E, None]:
        """Yield the entries. Only `pages` shows failed partitions (`allow_partial`)."""
        async for page in self.pages():
            for entry in page.entries:
                yield entry

    async def pages(self) -> AsyncGenerator[Page[E], None]:
        """Yield the answers, each with its Position. The last one is cut to `limit`."""
        left, cursor, affinity = self._call.paged.limit, None, Affinity()
        while True:
            page = self._store.saw(await self._transport.ask(self._call.page(cursor), affinity=affinity))
            page, left, cursor = self._call.advance(page, left)
            yield page
            if cursor is None:
                return

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield all entries as Arrow record batches in the store's types, in one stream instead of pages.

        Without retries: raises `UnreachableError` if the stream breaks off. If you stop early, close the generator
        (`contextlib.aclosing`).
        """
        left = self._call.paged.limit
        async with self._transport.stream(self._call.paged.stream(requests.ARROW)) as incoming:
            self._store.saw_stream(incoming.headers)
            async for whole in async_batches(incoming.chunks):
                batch, left = self._call.cut(whole, left)
                yield batch
                if left == 0:
                    return


class AsyncStore:
    """The queries of one store, for tasks of one event loop.

    A query's `terms` (`isolation_level`, `bound`, `wait_ms`, `require_active`, `max_staleness_ms`, `partitions`,
    `allow_partial`) win over those of the store and the client. A query raises `UnknownQueryTypeError` if this kind of
    store cannot answer it.
    """

    def __init__(self, transport: AsyncTransport, store: StoreTerms) -> None:
        self._transport, self._store = transport, store

    async def get(self, key: Key, *, as_of: Time | None = None, **terms: Unpack[TermArguments]) -> KeyAnswer:
        """Return the value of a key, in a versioned store at the time `as_of`. An absent key has `found=False`."""
        return await self._ask(requests.key(self._store.name, key, self._store.terms(terms), as_of), answers.KEY)

    async def get_many(self, keys: Iterable[Key], **terms: Unpack[TermArguments]) -> KeysAnswer:
        """Return the values of many keys: each key once, in the given order. Absent keys have `found=False`."""
        return await self._ask(requests.keys(self._store.name, keys, self._store.terms(terms)), answers.KEYS)

    def range(self, **arguments: Unpack[RangeArguments]) -> AsyncScan[Entry]:
        """Return the entries from `lower` to `upper`, both inclusive, or with a `prefix`, by serialized key.

        Without a bound, that end is open. `limit` is the number of entries, `page_size` the number per answer. A
        versioned store returns the latest versions, or those at the time `as_of`."""
        return self._scan(
            requests.entries(self._store.name, self._store.terms(arguments, RangeArguments), arguments), answers.ENTRIES
        )

    def versions(self, key: Key, **arguments: Unpack[TimeArguments]) -> AsyncScan[Version]:
        """Return the versions of a key that were valid in these times. By default, the newest comes first."""
        return self._scan(self._store.parts("versions", arguments, requests.key_text(key)), answers.VERSIONS)

    def windows(self, key: Key, **arguments: Unpack[TimeArguments]) -> AsyncScan[Window]:
        """Return the windows of a key that start in these times."""
        return self._scan(self._store.parts("windows", arguments, requests.key_text(key)), answers.WINDOWS)

    def sessions(self, key: Key, **arguments: Unpack[TimeArguments]) -> AsyncScan[Window]:
        """Return the sessions of a key that overlap these times."""
        return self._scan(self._store.parts("sessions", arguments, requests.key_text(key)), answers.WINDOWS)

    def all_windows(self, **arguments: Unpack[TimeArguments]) -> AsyncScan[KeyedWindow]:
        """Return the windows of every key that start in these times."""
        return self._scan(self._store.parts("windows", arguments), answers.KEYED_WINDOWS)

    def all_sessions(self, **arguments: Unpack[TimeArguments]) -> AsyncScan[KeyedWindow]:
        """Return the sessions of every key that end in these times, by serialized key, then end."""
        return self._scan(self._store.parts("sessions", arguments), answers.KEYED_WINDOWS)

    @overload
    async def count(self, *, exact: Literal[True], **terms: Unpack[TermArguments]) -> ExactCountAnswer: ...

    @overload
    async def count(self, *, exact: Literal[False] = False, **terms: Unpack[TermArguments]) -> CountAnswer: ...

    async def count(self, *, exact: bool = False, **terms: Unpack[TermArguments]) -> CountAnswer | ExactCountAnswer:
        """Return the number of entries. `exact` reads all of them, within the server's time limit for a query. Without
        it, the answer is RocksDB's estimate, which may be many times too large."""
        request = requests.count(self._store.name, self._store.terms(terms), exact=exact)
        if exact:
            return await self._ask(request, answers.EXACT_COUNT)
        return await self._ask(request, answers.COUNT)

    async def position(self, **terms: Unpack[TermArguments]) -> PositionAnswer:
        """Return the Position of each partition, at both isolation levels."""
        return await self._ask(requests.position(self._store.name, self._store.terms(terms)), answers.POSITION)

    async def details(self) -> StoreDetails:
        """Return the store's declaration, and the state of its partitions."""
        return await self._transport.ask(Call(requests.details(self._store.name), answers.DETAILS))

    async def changes(
        self, *, since: Since = "latest", partitions: Sequence[int] | None = None
    ) -> AsyncGenerator[Change, None]:
        """Yield every committed change after `since`, then new ones as they are committed, without end.

        `since` is the `position` of an answer or of a change. "earliest" begins with the first change still in the log,
        "latest" with the next one. After a lost connection the feed continues, without lost or repeated changes. If
        this fails for the time of the retries, it raises `UnreachableError`. It raises `CursorExpiredError` if the log
        has deleted the next change. Then read the store again, and continue from the Position of that answer. If you
        stop early, close the generator (`contextlib.aclosing`).
        """
        asked = self._store.partitions if partitions is None else partitions
        following, affinity = Following(self._store.name, since, asked, self._transport.server.retries), Affinity()
        while True:
            failure: StatelineError | None = None
            try:
                async with self._transport.stream(following.request(), affinity) as incoming:
                    following.connected()
                    async for chunk in incoming.chunks:
                        for change in following.read(chunk):
                            yield change
            except StatelineError as error:
                failure = error
            await asyncio.sleep(following.pause_s(failure, several=self._transport.routing.several))

    async def _ask(self, request: Request, reader: AnswerReader[A]) -> A:
        return self._store.saw(await self._transport.ask(Call(request, reader)))

    def _scan(self, paged: Paged, reader: AnswerReader[Page[E]]) -> AsyncScan[E]:
        return AsyncScan(self._transport, self._store, PagedCall(paged, reader))


class AsyncSnapshot(AbstractAsyncContextManager["AsyncSnapshot"]):
    """A snapshot that the server keeps until `details.expires_at`, for tasks of one event loop. The end of its
    `async with` block releases it.
    """

    def __init__(self, transport: AsyncTransport, details: SnapshotDetails, affinity: Affinity) -> None:
        self._transport, self._affinity = transport, affinity
        self.details = details

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    @property
    def position(self) -> Position:
        """The input that the snapshot reflects."""
        return self.details.position

    async def renew(self, *, ttl_s: int | None = None) -> SnapshotDetails:
        """Keep the snapshot for `ttl_s` seconds from now (default: the server's). Raises `CursorExpiredError` if it is
        gone."""
        call = Call(requests.renewal(self.details.id, ttl_s), answers.SNAPSHOT)
        self.details = await self._transport.ask(call, affinity=self._affinity)
        return self.details

    async def release(self) -> None:
        """Release the snapshot. Does nothing if it is already gone."""
        with contextlib.suppress(CursorExpiredError, DoesNotExistError):
            call = Call(requests.release(self.details.id), answers.NOTHING)
            await self._transport.ask(call, affinity=self._affinity)

    async def read(
        self, store: str, partition: int, **arguments: Unpack[RowArguments]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows of one partition as Arrow record batches in the store's types.

        Without retries: raises `UnreachableError` if the stream breaks off. If you stop early, close the generator
        (`contextlib.aclosing`).
        """
        request = requests.snapshot_rows(self.details.id, store, partition, arguments)
        async with self._transport.stream(request, self._kept_at(store, partition)) as incoming:
            async for batch in async_batches(incoming.chunks):
                yield batch

    async def duckdb(self) -> DuckDBPyConnection:
        """Return a DuckDB in this process with the stores of the snapshot as tables, of the names and types of the
        server's SQL.

        All rows are loaded. So the connection can be used after the snapshot is released, and as long as it is open.
        The lease is renewed while they are loaded. Raises `ConfigurationError` if DuckDB is not installed,
        `SqlNotInstalledError` without DuckDB on the server, `UnreachableError` if a stream breaks off.
        """
        from stateline.client.local_tables import SERVERS_TABLES, LocalTables

        names = await self._transport.ask(statement(Terms(), None, SERVERS_TABLES, (), {}))
        tables = LocalTables(names, self.details.stores)
        for store, parts in self.details.stores.items():
            tables.create(store)
            for partition in parts:
                if self.details.expires_at - now_ms() < _LEAST_LEASE_MS:
                    await self.renew()
                async for batch in self.read(store, partition):
                    tables.add(store, batch)
        return tables.connection

    def _kept_at(self, store: str, partition: int) -> Affinity:
        part = self.details.stores.get(store, {}).get(partition)
        if part is None or part.url is None:
            return self._affinity
        return self._transport.routing.begun_at(part.url.removesuffix(part.path))
