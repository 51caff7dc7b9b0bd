"""`QueryRouting`: which partitions of a store are asked, in which order, and for how long.

A key is looked for at home first, then everywhere (`stateline.query.values`). Partitions that are behind a bound, or
have no copy to ask just now, are asked again after the next commit. Which copy of a partition answers is `copies`' to
decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stateline.query.kinds import check_answered, key_of
from stateline.query.values import (
    Failure,
    Outcome,
    PartitionAnswer,
    QueryRows,
    ScanQuery,
    Terms,
    Value,
    answers_of,
    any_may_come,
    failures_of,
)
from stateline.serde.key_text import in_lower_case
from stateline.serde.partitioner import home_partition
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.copies import CopyRouter
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.epochs import WholeEpochs
from stateline.server.state.served_stores import ServedStore
from stateline.server.wire.time_limits import shutting_down
from stateline.server.wire.turns import let_others_in
from stateline_store import (
    IsolationLevel,
    KeysQuery,
    NotReadyError,
    PositionQuery,
    Query,
    VersionedKeysQuery,
)


@dataclass(eq=False, repr=False)
class QueryRouting:
    """One per server process, for the event loop's thread. Deadlines are of the loop's clock, None for a single look.

    Every method raises `UnknownQueryTypeError` for a query that this kind of store cannot answer, and `NotReadyError`
    when the server is shutting down.
    """

    _copies: CopyRouter
    _bounds: PositionBounds
    _whole: WholeEpochs
    _commits: CommitSignal

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """Return the answer of each of these partitions. Until the deadline, it waits for partitions that are behind
        the bound, or have no copy to ask, or not the demanded one."""
        return await self._whole.seen(store, terms, lambda: self._ask(store, terms, queries, deadline_s))

    async def find(
        self,
        store: ServedStore,
        terms: Terms,
        query: KeysQuery | VersionedKeysQuery,
        partitions: Iterable[int],
        deadline_s: float | None,
    ) -> tuple[dict[bytes, Value], dict[int, Outcome]]:
        """(key → what is stored of those found, partition → outcome): at home first, then in the other
        partitions.

        A partition that has to be asked for more keys is asked for all of its keys again, because it may have moved:
        what an answer has of a partition comes from one look at it, the one whose position it carries.
        """
        homes = {key: home_partition(key, store.placement.partitions) for key in query.keys}
        outcomes = await self._whole.seen(
            store, terms, lambda: self._find(store, terms, query, homes, partitions, deadline_s)
        )
        return _rows_found(outcomes, homes), outcomes

    async def scan_all(
        self, store: ServedStore, terms: Terms, query: ScanQuery, partitions: Collection[int]
    ) -> dict[int, Outcome]:
        """Like `scan`, but of a query of one key, ask all partitions, and for no other form of the key."""

        async def look() -> dict[int, Outcome]:
            return await self._ask(store, terms, dict.fromkeys(partitions, query), None)

        return await self._whole.seen_at_once(store, terms, look)

    async def scan(
        self, store: ServedStore, terms: Terms, query: ScanQuery, partitions: Collection[int]
    ) -> dict[int, Outcome]:
        """The first entries of these partitions, each with its rest. It is a single look: `wait_for_scan` waits.

        A query of one key asks its home partition first, and the others if nothing is there. A UUID that finds nothing
        is asked for in lower case."""
        outcomes = await self._whole.seen_at_once(store, terms, lambda: self._scan(store, terms, query, partitions))
        other = in_lower_case(store.definition.key, query)
        if other is None or failures_of(outcomes):
            return outcomes
        for answer in answers_of(outcomes).values():
            if await has_entries(answer, terms.limit):
                return outcomes
        return await self.scan(store, terms, other, partitions)

    def waits_until_s(self, store: ServedStore, terms: Terms, deadline_s: float | None) -> float:
        """Until when `wait_for_scan` may be called again, on the loop's clock."""
        now_s = asyncio.get_running_loop().time()
        return max(now_s if deadline_s is None else deadline_s, now_s + self._whole.patience_s(store, terms))

    def may_wait(self, store: ServedStore, terms: Terms, outcomes: Mapping[int, Outcome], until_s: float) -> bool:
        """Whether `scan` may find more after `wait_for_scan`."""
        if asyncio.get_running_loop().time() >= until_s or not any_may_come(outcomes.values()):
            return False
        return not any(self._bounds.why_never_met(store, terms.bound, p) for p in failures_of(outcomes))

    async def wait_for_scan(
        self, store: ServedStore, terms: Terms, outcomes: Mapping[int, Outcome], deadline_s: float | None
    ) -> bool:
        """Wait until the partitions that failed may answer; False if they do not in time."""
        queries: dict[int, Query[Any]] = dict.fromkeys(failures_of(outcomes), PositionQuery())
        return not failures_of(await self.ask(store, terms, queries, deadline_s))

    async def _ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        for query in queries.values():
            check_answered(type(query), store.name, store.definition.kind)
        if self._commits.closed:
            raise shutting_down()
        if store.stopped or any(self._bounds.why_never_met(store, terms.bound, p) for p in queries):
            deadline_s = None  # a wait would be in vain
        await self._copies.look_for_owners(store, terms, queries)
        outcomes: dict[int, Outcome] = {}
        while True:
            change = self._commits.next_commit()
            outcomes |= await self._copies.ask(store, terms, queries, deadline_s)
            if deadline_s is None or not any_may_come(outcomes.values()):
                break
            if not await self._commits.wait(change, deadline_s):
                break
            queries = {p: query for p, query in queries.items() if isinstance(outcomes[p], Failure)}
        outcomes = {p: self._copies.explained(store, p, terms, outcome) for p, outcome in outcomes.items()}
        if store.stopped is None:
            return outcomes
        return {p: _of_stopped(store, terms, store.stopped, outcome) for p, outcome in outcomes.items()}

    async def _find(
        self,
        store: ServedStore,
        terms: Terms,
        query: KeysQuery | VersionedKeysQuery,
        homes: Mapping[bytes, int],
        partitions: Iterable[int],
        deadline_s: float | None,
    ) -> dict[int, Outcome]:
        wanted = {p: {key for key, home in homes.items() if home == p} for p in partitions}
        outcomes: dict[int, Outcome] = {}
        more = wanted
        while more and not failures_of(outcomes):
            queries: dict[int, Query[Any]] = {p: replace(query, keys=tuple(some)) for p, some in more.items() if some}
            outcomes |= await self._ask(store, terms, queries, deadline_s) if queries else {}
            found = _rows_found(outcomes, homes)
            # A key can vanish between two looks, and is looked for everywhere then. `wanted` only grows, so this ends.
            missing = homes.keys() - found.keys()
            more = {p: some | missing for p, some in wanted.items() if missing - some}
            wanted = wanted | more
        return outcomes

    async def _scan(
        self,
        store: ServedStore,
        terms: Terms,
        query: ScanQuery,
        partitions: Collection[int],
    ) -> dict[int, Outcome]:
        key = key_of(query)
        home = None if key is None else home_partition(key, store.placement.partitions)
        if home is None or home not in partitions:
            return await self._ask(store, terms, dict.fromkeys(partitions, query), None)
        outcomes = await self._ask(store, terms, {home: query}, None)
        outcome = outcomes[home]
        if isinstance(outcome, Failure) or await has_entries(outcome, terms.limit):
            return outcomes
        others: dict[int, Query[Any]] = {p: query for p in partitions if p != home}
        return outcomes | (await self._ask(store, terms, others, None) if others else {})


def _of_stopped(store: ServedStore, terms: Terms, why: str, outcome: Outcome) -> Outcome:
    """Return the answer of a store that no worker runs, marked as its last state. A failure gets the reason why there
    is no worker."""
    if isinstance(outcome, PartitionAnswer):
        if outcome.copy.served_by != "active":  # another node may run it still
            outcome.stopped = why
        return outcome
    if not any_may_come([outcome]):
        return outcome
    needs_owner = terms.require_active or terms.isolation_level is not IsolationLevel.READ_COMMITTED
    if needs_owner and store.is_read_here(IsolationLevel.READ_COMMITTED):
        why = f"isolation_level=read_committed without require_active answers the last state. {why}"
    return replace(outcome, error=NotReadyError(why))


async def has_entries(answer: PartitionAnswer, limit: int) -> bool:
    """Whether there are any. A scan that has looked at many rows in vain is read on to find out."""
    while not answer.rows.entries and answer.rows.rest is not None:
        rows = await answer.rows.rest.more(limit)
        answer.rows = QueryRows(rows.entries, interval_ms=answer.rows.interval_ms, rest=rows.rest)
        await let_others_in()
    return bool(answer.rows.entries)


def _rows_found(outcomes: Mapping[int, Outcome], homes: Mapping[bytes, int]) -> dict[bytes, Value]:
    """Key → what is stored; of a key that several partitions hold, the row at home, else of the lowest partition."""
    found: dict[bytes, Value] = {}
    for partition, answer in answers_of(outcomes).items():
        for key, value in answer.rows.entries:
            assert isinstance(key, bytes), "a query of keys finds no windows"
            if key not in found or homes[key] == partition:
                found[key] = value
    return found
