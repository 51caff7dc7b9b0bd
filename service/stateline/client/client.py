# Generated from async_client.py: change that file, then run `python docs/generate.py`.
"""`Client`: the stores of a server for threads. `async_client` is the same for asyncio."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, Unpack, overload

import httpx

from stateline.client import answers, requests
from stateline.client.answers import AnswerReader
from stateline.client.arrow import batches
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
from stateline.client.store_calls import Call, PagedCall, StoreTerms
from stateline.client.sync_transport import Transport
from stateline.client.terms import TermArguments, Terms
from stateline.client.transport import Server
from stateline_store import Position, StatelineError

if TYPE_CHECKING:
    import pyarrow as pa

A = TypeVar("A", bound=Answer)
E = TypeVar("E")


class Client(AbstractContextManager["Client"]):
    """A server and its stores, thread-safe; close it, or use it as a context manager.

    Every method raises a `RequestError` for what the server refuses and `UnreachableError` when none answers, after
    the `retries`. `timeout_s` is how long the server may be silent, besides a query's own `wait_ms`. `session` makes
    all stores of this client consistent with what it has seen; the terms apply to every query that names no others.
    `http` brings one's own TLS, proxies and pool, and is left open.

    `base_url` is one address or several, of which any may be down. Where there are several nodes, the one that owns a
    key is asked for it, unless `ask_owners` is False; for all else, and when that is not reached, those addresses are.
    `compress` has answers compressed, which costs time and saves bytes: for slow networks.
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
        http: httpx.Client | None = None,
        **terms: Unpack[TermArguments],
    ) -> None:
        self._session = session
        self._terms = Terms().with_(terms)
        server = Server(base_url, token, timeout_s, retries or Retries(), ask_owners, compress)
        self._transport = Transport(server, http)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used any more."""
        self._transport.close()

    def store(self, name: str, *, session: Session | None = None, **terms: Unpack[TermArguments]) -> Store:
        """Return a store. Its first query shows whether it exists."""
        own = StoreTerms(name, self._terms.with_(terms), session or self._session)
        return Store(self._transport, own)

    def stores(self) -> tuple[StoreDetails, ...]:
        """Every store."""
        answer = self._transport.ask(Call(requests.STORES, answers.STORES))
        return answer.stores

    def topology(self) -> Topology:
        """Return the application's topology."""
        return self._transport.ask(Call(requests.TOPOLOGY, answers.TOPOLOGY))

    def instances(self) -> tuple[Instance, ...]:
        """Return the instances and their tasks."""
        answer = self._transport.ask(Call(requests.INSTANCES, answers.INSTANCES))
        return answer.instances

    def nodes(self) -> Nodes:
        """Which nodes there are, which tasks each has, and who owns which partition."""
        return self._transport.ask(Call(requests.NODES, answers.NODES))

    def check_health(self) -> None:
        """Return if the server lives; raises `UnreachableError` at once if it does not."""
        self._transport.ask(Call(requests.HEALTH, answers.NOTHING), NEVER)

    def readiness(self) -> Readiness:
        """Whether every store can be queried; asked once."""
        return self._transport.ask(Call(requests.READINESS, answers.READINESS), NEVER)

    def snapshot(self, stores: Sequence[str], *, ttl_s: int | None = None, pin: str | None = None) -> Snapshot:
        """One consistent cut of these stores, kept for `ttl_s` seconds (the server's own number unless given) or
        until it is released, as at the end of its `with` block.

        Not tried again: if no answer arrives, there may be a snapshot that goes when its lease ends. Unless there is a
        `pin`, a text of up to 64 characters: the same pin and stores are the same snapshot, whoever asks again. Raises
        `CursorExpiredError` when that is gone.
        """
        call, affinity = Call(requests.new_snapshot(stores, ttl_s, pin), answers.SNAPSHOT), Affinity()
        return Snapshot(self._transport, self._transport.ask(call, affinity=affinity), affinity)

    def open_snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot that somebody else has made. Raises `CursorExpiredError` when it is gone."""
        call, affinity = Call(requests.snapshot(snapshot_id), answers.SNAPSHOT), Affinity()
        return Snapshot(self._transport, self._transport.ask(call, affinity=affinity), affinity)

    def snapshots(self) -> tuple[SnapshotDetails, ...]:
        """Every snapshot that there is."""
        answer = self._transport.ask(Call(requests.SNAPSHOTS, answers.SNAPSHOTS))
        return answer.snapshots


class Scan(Generic[E]):
    """The entries of a query, page after page, all of one state. Iterating sends the requests. Each new
    iteration reads the state of that moment.

    Raises `CursorExpiredError` when a page is asked for after the server has let that state go.
    """

    def __init__(self, transport: Transport, store: StoreTerms, call: PagedCall[E]) -> None:
        self._transport, self._store, self._call = transport, store, call

    def __iter__(self) -> Generator[E, None, None]:
        """Yield entry after entry. Only `pages` has partitions that failed (`allow_partial`)."""
        for page in self.pages():
            yield from page.entries

    def pages(self) -> Generator[Page[E], None, None]:
        """Answer after answer, each with its Position; the last one cut to `limit`."""
        left, cursor, affinity = self._call.paged.limit, None, Affinity()
        while True:
            page = self._store.saw(self._transport.ask(self._call.page(cursor), affinity=affinity))
            page, left, cursor = self._call.advance(page, left)
            yield page
            if cursor is None:
                return

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """All entries as Arrow record batches in the store's types, in one stream and not in pages. Not tried again:
        raises `UnreachableError` when the stream breaks off.

        Close the generator (`contextlib.closing`) when it is not read to the end.
        """
        left = self._call.paged.limit
        with self._transport.stream(self._call.paged.stream(requests.ARROW)) as incoming:
            self._store.saw_stream(incoming.headers)
            for whole in batches(incoming.chunks):
                batch, left = self._call.cut(whole, left)
                yield batch
                if left == 0:
                    return


class Store:
    """The queries of one store, thread-safe.

    `terms` (`isolation_level`, `bound`, `wait_ms`, `require_active`, `max_staleness_ms`, `partitions`,
    `allow_partial`) win over those of the store and the client. A query that
    this kind of store cannot answer raises `UnknownQueryTypeError`.
    """

    def __init__(self, transport: Transport, store: StoreTerms) -> None:
        self._transport, self._store = transport, store

    def get(self, key: Key, *, as_of: Time | None = None, **terms: Unpack[TermArguments]) -> KeyAnswer:
        """The value of a key, `found=False` if there is none; of a versioned store the one at the time `as_of`."""
        return self._ask(requests.key(self._store.name, key, self._store.terms(terms), as_of), answers.KEY)

    def get_many(self, keys: Iterable[Key], **terms: Unpack[TermArguments]) -> KeysAnswer:
        """The values of many keys at once: each key once, in this order."""
        return self._ask(requests.keys(self._store.name, keys, self._store.terms(terms)), answers.KEYS)

    def range(self, **arguments: Unpack[RangeArguments]) -> Scan[Entry]:
        """Keys from `lower` to `upper`, both inclusive and open when left out, or with a `prefix`, in the order of
        serialized keys: at most `limit`, `page_size` in each answer. In a versioned store, the latest versions, or with
        `as_of` the versions of that time."""
        return self._scan(
            requests.entries(self._store.name, self._store.terms(arguments, RangeArguments), arguments), answers.ENTRIES
        )

    def versions(self, key: Key, **arguments: Unpack[TimeArguments]) -> Scan[Version]:
        """Versions of a key that were valid in these times, the newest first unless `order` says otherwise."""
        return self._scan(self._store.parts("versions", arguments, requests.key_text(key)), answers.VERSIONS)

    def windows(self, key: Key, **arguments: Unpack[TimeArguments]) -> Scan[Window]:
        """Windows of a key that start in these times."""
        return self._scan(self._store.parts("windows", arguments, requests.key_text(key)), answers.WINDOWS)

    def sessions(self, key: Key, **arguments: Unpack[TimeArguments]) -> Scan[Window]:
        """Sessions of a key that overlap these times."""
        return self._scan(self._store.parts("sessions", arguments, requests.key_text(key)), answers.WINDOWS)

    def all_windows(self, **arguments: Unpack[TimeArguments]) -> Scan[KeyedWindow]:
        """Windows of every key that start in these times."""
        return self._scan(self._store.parts("windows", arguments), answers.KEYED_WINDOWS)

    def all_sessions(self, **arguments: Unpack[TimeArguments]) -> Scan[KeyedWindow]:
        """Sessions of every key that end in these times, by serialized key, then end."""
        return self._scan(self._store.parts("sessions", arguments), answers.KEYED_WINDOWS)

    @overload
    def count(self, *, exact: Literal[True], **terms: Unpack[TermArguments]) -> ExactCountAnswer: ...

    @overload
    def count(self, *, exact: Literal[False] = False, **terms: Unpack[TermArguments]) -> CountAnswer: ...

    def count(self, *, exact: bool = False, **terms: Unpack[TermArguments]) -> CountAnswer | ExactCountAnswer:
        """How many entries there are. `exact` reads all of them, within the server's time for a query. Without it the
        answer is RocksDB's estimate, which may be many times too large."""
        request = requests.count(self._store.name, self._store.terms(terms), exact=exact)
        if exact:
            return self._ask(request, answers.EXACT_COUNT)
        return self._ask(request, answers.COUNT)

    def position(self, **terms: Unpack[TermArguments]) -> PositionAnswer:
        """How far each partition has come, at both levels."""
        return self._ask(requests.position(self._store.name, self._store.terms(terms)), answers.POSITION)

    def details(self) -> StoreDetails:
        """Return the store's declaration, and the state of its partitions."""
        return self._transport.ask(Call(requests.details(self._store.name), answers.DETAILS))

    def changes(
        self, *, since: Since = "latest", partitions: Sequence[int] | None = None
    ) -> Generator[Change, None, None]:
        """Every committed change after `since`, then each as it is committed, without end.

        `since` is the `position` of an answer or of a change, "earliest" for all that the log still has, or "latest"
        for what is yet to come.

        A connection that is lost is taken up again where it was, none lost or repeated; `UnreachableError` when that
        fails for as long as the retries allow. Raises `CursorExpiredError` when the log has deleted what comes next:
        read the store again, and continue from the Position of that answer. Close the generator (`contextlib.closing`)
        when it is not needed any more.
        """
        asked = self._store.partitions if partitions is None else partitions
        following, affinity = Following(self._store.name, since, asked, self._transport.server.retries), Affinity()
        while True:
            failure: StatelineError | None = None
            try:
                with self._transport.stream(following.request(), affinity) as incoming:
                    following.connected()
                    for chunk in incoming.chunks:
                        yield from following.read(chunk)
            except StatelineError as error:
                failure = error
            time.sleep(following.pause_s(failure, several=self._transport.routing.several))

    def _ask(self, request: Request, reader: AnswerReader[A]) -> A:
        return self._store.saw(self._transport.ask(Call(request, reader)))

    def _scan(self, paged: Paged, reader: AnswerReader[Page[E]]) -> Scan[E]:
        return Scan(self._transport, self._store, PagedCall(paged, reader))


class Snapshot(AbstractContextManager["Snapshot"]):
    """A consistent cut that the server keeps until `details.expires_at`, thread-safe.

    If it is the context of `with`, the end of the block releases it.
    """

    def __init__(self, transport: Transport, details: SnapshotDetails, affinity: Affinity) -> None:
        self._transport, self._affinity = transport, affinity
        self.details = details

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def position(self) -> Position:
        """The input that the cut reflects."""
        return self.details.position

    def renew(self, *, ttl_s: int | None = None) -> SnapshotDetails:
        """Keep it `ttl_s` seconds from now. Raises `CursorExpiredError` when it is gone."""
        call = Call(requests.renewal(self.details.id, ttl_s), answers.SNAPSHOT)
        self.details = self._transport.ask(call, affinity=self._affinity)
        return self.details

    def release(self) -> None:
        """Let it go; one that is gone already is no error."""
        with contextlib.suppress(CursorExpiredError, DoesNotExistError):
            call = Call(requests.release(self.details.id), answers.NOTHING)
            self._transport.ask(call, affinity=self._affinity)

    def read(
        self, store: str, partition: int, **arguments: Unpack[RowArguments]
    ) -> Generator[pa.RecordBatch, None, None]:
        """One partition of a store as Arrow record batches, in the store's types. Not tried again: raises
        `UnreachableError` when the stream breaks off.

        Close the generator (`contextlib.closing`) when it is not read to the end.
        """
        request = requests.snapshot_rows(self.details.id, store, partition, arguments)
        with self._transport.stream(request, self._kept_at(store, partition)) as incoming:
            yield from batches(incoming.chunks)

    def _kept_at(self, store: str, partition: int) -> Affinity:
        part = self.details.stores.get(store, {}).get(partition)
        if part is None or part.url is None:
            return self._affinity
        return self._transport.routing.begun_at(part.url.removesuffix(part.path))
