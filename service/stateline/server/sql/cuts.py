"""`Cuts`: snapshots that statements over several tables share for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from stateline.server.snapshots.asked_nodes import NodeRefusedError
from stateline.server.snapshots.cluster import ClusterSnapshots, KeptSnapshot
from stateline.server.snapshots.own_parts import SnapshotRequest
from stateline.server.state.served_stores import ServedStore
from stateline_store import StatelineError
from stateline_store.clock import now_ms

_LEASE_MS = 600_000
"""Longer than any statement runs."""
_SWEPT_EACH_S = 1.0


@dataclass(eq=False)
class _Cut:
    kept: KeptSnapshot
    stores: frozenset[str]
    readers: int = 0
    longest_age_ms: int = 0
    """The largest age that was asked for so far."""

    @property
    def age_ms(self) -> int:
        return now_ms() - self.kept.snapshot.created_at_ms


class Cuts:
    """One per scan process, for the event loop's thread."""

    def __init__(self, cluster: ClusterSnapshots) -> None:
        self._cluster = cluster
        self._cuts: list[_Cut] = []
        self._making = asyncio.Lock()

    @asynccontextmanager
    async def cut(self, stores: Sequence[ServedStore], max_age_ms: int) -> AsyncIterator[KeptSnapshot | None]:
        """Give a snapshot of at least these stores that is at most `max_age_ms` old. It stays during the block. None if
        there can be no cut: a store is in memory or global, or another node owns a partition.

        Raises a `StatelineError` if a worker cannot make it now.
        """
        if any(store.is_global or not store.definition.persistent for store in stores) or self._is_elsewhere(stores):
            yield None
            return
        async with self._making:  # equal statements at once share one
            found = self._find(frozenset(store.name for store in stores), max_age_ms) or await self._make(stores)
            found.readers += 1
            found.longest_age_ms = max(found.longest_age_ms, max_age_ms)
        try:
            yield found.kept
        finally:
            found.readers -= 1

    async def sweep(self) -> None:
        """Release cuts that are too old for a new reader, until cancelled. Then release all."""
        try:
            while True:
                await asyncio.sleep(_SWEPT_EACH_S)
                for cut in [cut for cut in self._cuts if not cut.readers and cut.age_ms > cut.longest_age_ms]:
                    await self._release(cut)
        finally:
            for cut in list(self._cuts):
                await self._release(cut)

    def _is_elsewhere(self, stores: Sequence[ServedStore]) -> bool:
        return self._cluster.nodes_of(stores) != {self._cluster.nodes.own}

    def _find(self, names: frozenset[str], max_age_ms: int) -> _Cut | None:
        fresh = (cut for cut in self._cuts if names <= cut.stores and cut.age_ms < max_age_ms)
        return min(fresh, key=lambda cut: cut.age_ms, default=None)

    async def _make(self, stores: Sequence[ServedStore]) -> _Cut:
        names = tuple(sorted(store.name for store in stores))
        try:
            kept, _ = await self._cluster.create(stores, SnapshotRequest(names, _LEASE_MS))
        except NodeRefusedError as refused:
            raise refused.error from refused
        self._cuts.append(cut := _Cut(kept, frozenset(names)))
        return cut

    async def _release(self, cut: _Cut) -> None:
        self._cuts.remove(cut)
        with contextlib.suppress(StatelineError, NodeRefusedError):  # its lease ends
            await self._cluster.release(cut.kept)
