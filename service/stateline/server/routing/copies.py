"""Choose the copy of a partition on this node, and ask it once.

| query                                   | copy                                                                 |
|-----------------------------------------|----------------------------------------------------------------------|
| committed data of a store on disk       | this process's secondary (`state.partitions`)                        |
| uncommitted data, and stores in memory  | the worker that has the task (`state.workers`); for stores in memory |
|                                         | also a worker that follows it as a standby                           |

`query_routing` has chosen the partitions. Every copy runs the same code (`stateline.query.execution`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from stateline.processes.tracing import span
from stateline.query.kinds import CustomQuery, is_scan
from stateline.query.open_scan import size_of
from stateline.query.values import Entry, Failure, Outcome, PartitionAnswer, QueryRows, Terms
from stateline.server.routing.bounds import PositionBounds
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.server.state.workers import Workers
from stateline.server.wire.turns import let_others_in
from stateline_store import (
    IsolationLevel,
    KeysQuery,
    NotActiveError,
    NotPresentError,
    NotUpToBoundError,
    Query,
    RetryLaterError,
    StoreState,
    VersionedKeysQuery,
)
from stateline_store.reads.queries import too_large

# The generation for `Ownership.with_lag`: a copy in memory has no commit notice. A new copy is asked only after it has
# everything that the former one had.
_IN_MEMORY = 0


class CopyRouter(Protocol):
    """Asks copies of partitions: those of this node, or of all nodes."""

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """Return the partitions' answers as they are now. The answering copy may wait for a bound until the
        deadline."""

    async def look_for_owners(self, store: ServedStore, terms: Terms, partitions: Iterable[int]) -> None:
        """Find the workers that must answer, if any."""

    async def ends(self, store: ServedStore, partitions: Collection[int]) -> dict[int, int]:
        """Return, for partitions of a store on disk, the offset after the last committed one of the changelog or
        topic: 0 without a commit. Partitions whose end is not known now are left out."""

    def announce_commits(self, store: ServedStore, partitions: Iterable[int]) -> None:
        """Have the next commit of these partitions announced here (`CommitSignal`), also by owners on other nodes."""

    def explained(self, store: ServedStore, partition: int, terms: Terms, outcome: Outcome) -> Outcome:
        """Add the owner's URL, and facts that only the server knows, to a failure."""


class Copies:
    """One per server process, for the event loop's thread."""

    def __init__(
        self, partitions: Partitions, workers: Workers, ownership: Ownership, bounds: PositionBounds, url: str
    ) -> None:
        """`url` is where clients reach this node, empty where that is not known."""
        self._url = url or None
        self._partitions = partitions
        self._workers = workers
        self._ownership = ownership
        self._bounds = bounds

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """Return the partitions' answers as they are now. A worker may wait until the deadline. Before a copy is
        refused, Kafka is asked whether another machine may have its task."""
        outcomes = await self._ask_once(store, terms, queries, deadline_s)
        refused = {p: queries[p] for p, outcome in outcomes.items() if _is_not_active(outcome)}
        if refused and await self._ownership.settle():
            outcomes |= await self._ask_once(store, terms, refused, deadline_s)
        return outcomes

    async def _ask_once(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        is_custom = any(isinstance(query, CustomQuery) for query in queries.values())
        if is_custom or not store.is_read_here(terms.isolation_level):
            return await self._ask_workers(store, terms, queries, deadline_s)
        outcomes: dict[int, Outcome] = {}
        for partition, query in queries.items():
            with span(f"read {store.name}", {"partition": partition, "query": type(query).__name__}):
                if is_of_keys := isinstance(query, KeysQuery | VersionedKeysQuery):
                    outcomes[partition] = await ask_for_keys(self._partitions, store, terms, partition, query)
                else:
                    outcomes[partition] = self._partitions.ask(store, terms, partition, query)
            if is_of_keys or is_scan(query):
                await let_others_in()  # a large one takes many milliseconds: let requests in between
        return outcomes

    async def look_for_owners(self, store: ServedStore, terms: Terms, partitions: Iterable[int]) -> None:
        """Find the workers that are to answer, once per query. While requests wait, `StoreWatch` finds them."""
        if store.is_read_here(terms.isolation_level):
            return
        if not all(self._workers.has_live_owner(store.placement.task_id(p)) for p in partitions):
            await self._workers.refresh()

    async def ends(self, store: ServedStore, partitions: Collection[int]) -> dict[int, int]:
        """Return the ends of the partitions that no other machine can have."""
        found = self._ends(store, partitions)
        if len(found) < len(partitions) and await self._ownership.settle():
            found = self._ends(store, partitions)
        return found

    def announce_commits(self, store: ServedStore, partitions: Iterable[int]) -> None:
        """Nothing to do: workers here announce what they commit."""

    def _ends(self, store: ServedStore, partitions: Iterable[int]) -> dict[int, int]:
        found = {}
        for p in partitions:
            changelog = self._ownership.changelog(store.definition, p)
            if changelog is None:
                continue
            try:
                self._partitions.check(store, p)
                reader = self._partitions.open(store, p)
                given_back = reader.notice.status.state is StoreState.STANDBY
                if self._ownership.is_left(store.placement.task_id(p), given_back=given_back):
                    continue
                offset = reader.offsets.get(changelog)
            except RetryLaterError:
                continue  # being opened, moved or rebuilt: there will be a commit to wake who waits
            found[p] = 0 if offset is None else offset + 1
        return found

    def explained(self, store: ServedStore, partition: int, terms: Terms, outcome: Outcome) -> Outcome:
        """Add the owner's URL, and facts that only the server knows, to a failure."""
        if not isinstance(outcome, Failure):
            return outcome
        error = outcome.error
        owner = outcome.owner or (self._url if self._workers.owner(store.placement.task_id(partition)) else None)
        uncommitted = terms.isolation_level is IsolationLevel.READ_UNCOMMITTED
        if isinstance(error, NotUpToBoundError):
            error = self._bounds.why_never_met(store, terms.bound, partition) or error
        elif isinstance(error, NotPresentError) and store.definition.persistent and uncommitted:
            error = NotPresentError(f"{error} isolation_level=read_committed can be answered without the worker.")
        return Failure(error, outcome.position, owner)

    async def _ask_workers(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        left_s = 0.0 if deadline_s is None else deadline_s - asyncio.get_running_loop().time()
        wait_ms = max(0, int(left_s * 1000))
        declared = store.definition.description
        with span(f"read {store.name}", {"partitions": len(queries), "of": "workers"}):
            outcomes = await asyncio.gather(
                *(
                    self._workers.query(store.placement.task_id(p), terms, p, query, wait_ms, declared)
                    for p, query in queries.items()
                )
            )
        return {p: self._unless_refused(store, terms, p, outcome) for p, outcome in zip(queries, outcomes, strict=True)}

    def _unless_refused(self, store: ServedStore, terms: Terms, partition: int, outcome: Outcome) -> Outcome:
        """Return a worker's answer, refused if its lease has ended."""
        if isinstance(outcome, Failure) or outcome.copy.served_by == "active":
            return outcome
        if outcome.offset is not None and (changelog := self._ownership.changelog(store.definition, partition)):
            offsets = {changelog: outcome.offset}
            if outcome.copy.lag_ms is not None:
                self._ownership.was_complete(store.definition, partition, _IN_MEMORY, outcome.copy.lag_ms)
            outcome.copy = self._ownership.with_lag(outcome.copy, store.definition, partition, _IN_MEMORY, offsets)
        is_whole = outcome.copy.served_by != "restoring"
        why = self._ownership.refusal(
            store.placement.task_id(partition), terms, partition, outcome.copy, given_back=True, is_whole=is_whole
        )
        if why is None:
            return outcome
        if outcome.rows.rest is not None:
            outcome.rows.rest.close()
        return Failure(why, outcome.position)


def _is_not_active(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and isinstance(outcome.error, NotActiveError)


_AT_ONCE = 500  # about a millisecond
_ATTEMPTS = 3


async def ask_for_keys(
    partitions: Partitions, store: ServedStore, terms: Terms, partition: int, query: KeysQuery | VersionedKeysQuery
) -> Outcome:
    """Look up many keys of one partition in slices, so that other requests run in between.

    An answer shows one commit. If the partition moves between two slices, all keys are looked up again. After some
    attempts they are looked up at once.
    """
    if len(query.keys) > _AT_ONCE:
        for _ in range(_ATTEMPTS):
            if (outcome := await _in_slices(partitions, store, terms, partition, query)) is not None:
                return outcome
    return partitions.ask(store, terms, partition, query)


async def _in_slices(
    partitions: Partitions, store: ServedStore, terms: Terms, partition: int, query: KeysQuery | VersionedKeysQuery
) -> Outcome | None:
    """Return None if the partition moved between two slices."""
    entries: list[Entry] = []
    answer, state, size = None, None, 0
    for first in range(0, len(query.keys), _AT_ONCE):
        some = replace(query, keys=query.keys[first : first + _AT_ONCE])
        outcome = partitions.ask(store, terms, partition, some)
        if not isinstance(outcome, PartitionAnswer):
            return outcome
        answer = outcome
        shown = partitions.shown(store, partition)
        if first and shown != state:
            return None
        state, found = shown, list(outcome.rows.entries)
        entries += found
        size += size_of(found)
        if query.most_bytes is not None and size > query.most_bytes:
            return Failure(too_large(size))
        await let_others_in()
    assert answer is not None, "there are keys"
    answer.rows = QueryRows(entries)
    return answer
