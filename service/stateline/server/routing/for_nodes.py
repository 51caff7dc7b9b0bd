"""Answer other nodes from copies of this node only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from stateline.query.kinds import CustomQuery, check_answered, is_scan, key_of
from stateline.query.open_scans import OpenScans
from stateline.query.values import Entry, Failure, Outcome, QueryRows, Rest
from stateline.query.wire import WireRequest
from stateline.server.contract.request_id import AskedBy
from stateline.server.guard.passing_on import check_passed_on
from stateline.server.guard.proofs import Proof
from stateline.server.guard.tokens import Tokens
from stateline.server.nodes.traffic import Counted
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.copies import Copies
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.merged_scan import READ_AT_ONCE
from stateline.server.state.served_stores import ServedStores
from stateline.server.wire.time_limits import shutting_down
from stateline_store import DoesNotExistError, ForbiddenError, IsolationLevel, NotUpToBoundError, UnauthenticatedError
from stateline_store.rows.timestamped_rows import UNKNOWN_TIMESTAMP, join, split

# Arguments: path, query string, the caller's proof, and the asking node.
PointAnswers = Callable[[str, str, Proof | None, AskedBy], bytes | None]
Tell = Callable[[AskedBy, str, Counted, float], None]


@dataclass(eq=False, repr=False)
class AnswersForNodes:
    """One per server process, for the event loop's thread. `wait_max_ms` is the longest that a request waits, `node`
    what this node is called."""

    _stores: ServedStores
    _copies: Copies
    _bounds: PositionBounds
    _commits: CommitSignal
    _wait_max_ms: int
    _tokens: Tokens | None
    scans: OpenScans[Rest]
    _node: str

    def __post_init__(self) -> None:
        self.points: PointAnswers = _none_at_once
        """What answers for one key at once; of this process's point reads, which are made behind this."""
        self.tell: Tell = _untold
        """What notes a message that was answered, of which kind, and in how many seconds; of this process's access log,
        which is made behind this."""

    def point(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        """Return the body of the answer to a GET of one key, or None if there is none at once."""
        return self.points(path, query, shown, asked_by)

    def is_large(self, request: WireRequest) -> bool:
        """Return whether a scan process should answer this: windows or sessions of all keys, or many rows, if this node
        reads them on disk. False for an unknown store."""
        query, terms = request.query, request.terms
        store = self._stores.declared(terms.store)
        if store is None or not store.persistent or not is_scan(query):
            return False
        of_all_keys = key_of(query) is None and store.plain_kind in ("window", "session")
        is_committed = terms.isolation_level is IsolationLevel.READ_COMMITTED
        return is_committed and (of_all_keys or terms.limit >= READ_AT_ONCE)

    def check(self, shown: Proof | None, store: str) -> None:
        """Check that the other node's caller may read this store here. Raises like `check_passed_on`."""
        try:
            check_passed_on(self._tokens, shown, store)
        except (UnauthenticatedError, ForbiddenError) as error:
            raise type(error)(f"Node {self._node!r}: {error} Give all nodes the same server.tokens.file.") from error

    async def ends(self, store: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the ends of the partitions that this node owns (`CopyRouter.ends`). Raises `DoesNotExistError`."""
        served = self._stores.get(store)
        return await self._copies.ends(served, [p for p in partitions if p in served.partitions])

    def next_commit(self) -> asyncio.Event:
        """Return the event that the next commit sets."""
        return self._commits.next_commit()

    async def answer(self, request: WireRequest, shown: Proof | None) -> Outcome:
        """Return the answer of a copy here, or a failure. It waits only for a bound, because the asking node may find
        another copy. Raises like `check`, for an invalid request, and `NotReadyError` during a stop."""
        if self._commits.closed:
            raise shutting_down()
        self.check(shown, request.terms.store)  # first, so that the answer does not reveal whether the store exists
        terms, partition = request.terms, request.partition
        store = self._stores.get(terms.store, of_any_kind=isinstance(request.query, CustomQuery))
        check_answered(type(request.query), store.name, store.definition.kind)
        if partition not in store.partitions:
            raise DoesNotExistError(f"{store.name!r} has no partition {partition} here.")
        wait_s = min(request.wait_ms, self._wait_max_ms) / 1000
        deadline_s = asyncio.get_running_loop().time() + wait_s if wait_s else None
        while True:
            change = self._commits.next_commit()
            found = await self._copies.ask(store, terms, {partition: request.query}, deadline_s)
            outcome = self._copies.explained(store, partition, terms, found[partition])
            is_behind = isinstance(outcome, Failure) and isinstance(outcome.error, NotUpToBoundError)
            if not is_behind or deadline_s is None or self._bounds.why_never_met(store, terms.bound, partition):
                break
            if not await self._commits.wait(change, deadline_s):
                break
        return as_asked(outcome, has_timestamps=store.definition.timestamped, wants_timestamps=request.timestamped)


def _none_at_once(path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> None:
    """The default of `points`: no point read is answered at once."""


def _untold(asked_by: AskedBy, kind: str, counted: Counted, seconds: float) -> None:
    """The default without an access log."""


def as_asked(outcome: Outcome, *, has_timestamps: bool, wants_timestamps: bool | None) -> Outcome:
    """Return the outcome with values as the asking node declares them. None for `wants_timestamps` changes nothing.

    Two nodes declare a store differently while its values get timestamps, one node after the other (KIP-258). Between
    them a value is the stored bytes (`stateline_store.rows.timestamped_rows`). An unknown timestamp is -1.
    """
    if isinstance(outcome, Failure) or wants_timestamps is None or wants_timestamps is has_timestamps:
        return outcome
    outcome.rows = _changed(outcome.rows, _stamped if wants_timestamps else _plain)
    return outcome


@dataclass
class _ChangedRest:
    """A `Rest` whose values are changed in the same way."""

    rest: Rest
    change: Callable[[bytes], bytes]

    async def more(self, limit: int) -> QueryRows:
        return _changed(await self.rest.more(limit), self.change)

    def close(self) -> None:
        self.rest.close()


def _changed(rows: QueryRows, change: Callable[[bytes], bytes]) -> QueryRows:
    rest = None if rows.rest is None else _ChangedRest(rows.rest, change)
    return replace(rows, entries=[_entry(entry, change) for entry in rows.entries], rest=rest)


def _entry(entry: Entry, change: Callable[[bytes], bytes]) -> Entry:
    name, value = entry
    return (name, change(value)) if isinstance(value, bytes) else entry  # versions have their times beside them


def _plain(stored: bytes) -> bytes:
    return split(stored).value


def _stamped(value: bytes) -> bytes:
    return join(value, UNKNOWN_TIMESTAMP)
