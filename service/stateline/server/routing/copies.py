"""`Copies`: which copy of a partition is asked, and the asking of it, once.

| asked for                                    | copy                                                            |
|----------------------------------------------|-----------------------------------------------------------------|
| what is committed, of a store on disk        | this process's secondary (`state.partitions`)                   |
| what is uncommitted, and of stores in memory | that of the worker which has the task (`state.workers`)         |

Which partitions are asked is decided before (`query_routing`), and what runs on a copy is the same wherever it is
(`stateline.query.execution`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from stateline.query.values import Failure, Outcome, ScanQuery, Terms
from stateline.server.routing.bounds import PositionBounds
from stateline.server.state.many_keys import ask_for_keys
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.server.state.workers import Workers
from stateline_store import (
    IsolationLevel,
    KeysQuery,
    NotPresentError,
    NotUpToBoundError,
    Query,
    VersionedKeysQuery,
)


class Copies:
    """Of one server process; for the event loop's thread."""

    def __init__(self, partitions: Partitions, workers: Workers, bounds: PositionBounds) -> None:
        self._partitions = partitions
        self._workers = workers
        self._bounds = bounds

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """What these partitions answer as they are now; a worker may wait until the deadline."""
        if not store.is_read_here(terms.isolation_level):
            return await self._ask_workers(store, terms, queries, deadline_s)
        outcomes: dict[int, Outcome] = {}
        for partition, query in queries.items():
            if isinstance(query, KeysQuery | VersionedKeysQuery):
                outcomes[partition] = await ask_for_keys(self._partitions, store, terms, partition, query)
            else:
                outcomes[partition] = self._partitions.ask(store, terms, partition, query)
            if isinstance(query, ScanQuery | KeysQuery | VersionedKeysQuery):
                await asyncio.sleep(0)  # a large one takes many milliseconds: let requests in between
        return outcomes

    async def look_for_owners(self, store: ServedStore, terms: Terms, partitions: Iterable[int]) -> None:
        """Where workers are to answer, find them. Once per query: those who wait leave it to the keeper, however many
        they are."""
        if store.is_read_here(terms.isolation_level):
            return
        if not all(self._workers.has_live_owner(store.placement.task_id(p)) for p in partitions):
            await self._workers.refresh()

    def explained(self, store: ServedStore, partition: int, terms: Terms, outcome: Outcome) -> Outcome:
        """A failure with its owner's name, and with what only the server knows about it."""
        if not isinstance(outcome, Failure):
            return outcome
        error, owner = outcome.error, outcome.owner or self._workers.owner(store.placement.task_id(partition))
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
        outcomes = await asyncio.gather(
            *(
                self._workers.query(store.placement.task_id(p), terms, p, query, wait_ms, declared)
                for p, query in queries.items()
            )
        )
        return dict(zip(queries, outcomes, strict=True))
