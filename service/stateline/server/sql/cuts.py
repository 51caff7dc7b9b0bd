"""`Cuts`: snapshots that statements over several tables share for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from weakref import WeakValueDictionary

from stateline.processes.seldom import seldom
from stateline.server.snapshots.asked_nodes import NodeRefusedError
from stateline.server.snapshots.cluster import ClusterSnapshots, KeptSnapshot
from stateline.server.snapshots.own_parts import SnapshotRequest
from stateline.server.state.served_stores import ServedStore
from stateline_store import CallerError, StatelineError, TooManyRequestsError
from stateline_store.snapshots.checkpoints import CheckpointPart

_MOST = 4
"""Cuts at a time. Snapshots of others need room, too."""
_LONGEST_AGE_MS = 10_000
_MARGIN_MS = 30_000
"""Of a lease, beside the age of a cut and the time of a statement. One that has begun to read reads to its end."""
_MADE_WITHIN_S = 3.0
"""With other nodes, unless a statement needs it."""
_SWEPT_EACH_S = 1.0

_log = seldom(__name__)


@dataclass(eq=False)
class SharedCut:
    """A snapshot, the names of its stores, and when it was begun (`time.monotonic`): clocks of nodes may differ."""

    kept: KeptSnapshot
    stores: frozenset[str]
    begun_s: float
    context: Context
    """Of who made it: other nodes release it for the same token."""
    readers: int = 0
    longest_age_ms: int = 0
    """The largest age that was asked for so far."""
    is_lost: bool = False
    """Whether a reader failed: the next one gets another cut."""

    @property
    def age_ms(self) -> int:
        return int((time.monotonic() - self.begun_s) * 1000)

    @property
    def parts(self) -> list[CheckpointPart]:
        """Return the parts of all nodes."""
        return [part for each in self.kept.nodes for part in each.parts]


class Cuts:
    """One per scan process, for the event loop's thread."""

    def __init__(self, cluster: ClusterSnapshots, statement_ms: int, longest_lease_ms: int) -> None:
        self._cluster = cluster
        self._lease_ms = min(_LONGEST_AGE_MS + statement_ms + _MARGIN_MS, longest_lease_ms)
        self._cuts: list[SharedCut] = []
        self._making: WeakValueDictionary[frozenset[str], asyncio.Lock] = WeakValueDictionary()
        self._is_due = asyncio.Event()

    @asynccontextmanager
    async def cut(
        self, stores: Sequence[ServedStore], max_age_ms: int, *, is_needed: bool
    ) -> AsyncIterator[SharedCut | str]:
        """Give a snapshot of at least these stores that is at most `max_age_ms` old at the call, and 10 s. It stays
        during the block. If there can be no cut, give the reason: a store is in memory or global, or several nodes make
        none now and it is not needed.

        Raises a `StatelineError` if the workers cannot make it now, and `TooManyRequestsError` if statements read all
        the cuts that there may be.
        """
        if apart := [store.name for store in stores if store.is_global or not store.definition.persistent]:
            yield f"No snapshot has global tables and stores in memory: {', '.join(apart)}."
            return
        names, max_age_ms = frozenset(store.name for store in stores), min(max_age_ms, _LONGEST_AGE_MS)
        asked_s = time.monotonic()
        found: SharedCut | str | None = self._find(names, max_age_ms, asked_s)
        if found is None:
            making = self._making.setdefault(names, asyncio.Lock())
            async with making:  # equal statements at once share one, however long it takes to make
                found = self._find(names, max_age_ms, asked_s) or await self._make(stores, is_needed=is_needed)
        if isinstance(found, str):
            yield found
            return
        found.readers += 1
        found.longest_age_ms = max(found.longest_age_ms, max_age_ms)
        try:
            yield found
        except StatelineError as error:
            found.is_lost |= not isinstance(error, CallerError)
            raise
        finally:
            found.readers -= 1
            if self._is_over(found):
                self._is_due.set()

    async def sweep(self) -> None:
        """Release cuts that are too old for a new reader, until cancelled. Then release all."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SWEPT_EACH_S):
                        await self._is_due.wait()
                self._is_due.clear()
                await self._release([cut for cut in self._cuts if self._is_over(cut)])
        finally:
            await self._release(list(self._cuts))

    def _is_over(self, cut: SharedCut) -> bool:
        return not cut.readers and (cut.is_lost or cut.age_ms >= cut.longest_age_ms)

    def _find(self, names: frozenset[str], max_age_ms: int, asked_s: float) -> SharedCut | None:
        """Return the newest cut that was young enough at this moment (`time.monotonic`)."""
        earliest_s = asked_s - max_age_ms / 1000
        fresh = (cut for cut in self._cuts if names <= cut.stores and cut.begun_s > earliest_s and not cut.is_lost)
        return max(fresh, key=lambda cut: cut.begun_s, default=None)

    async def _make(self, stores: Sequence[ServedStore], *, is_needed: bool) -> SharedCut | str:
        names, begun_s = tuple(sorted(store.name for store in stores)), time.monotonic()
        is_optional = not is_needed and self._cluster.nodes_of(stores) != {self._cluster.nodes.own}
        try:
            await self._make_room()
            async with asyncio.timeout(_MADE_WITHIN_S if is_optional else None):
                kept, _ = await self._cluster.create(stores, SnapshotRequest(names, self._lease_ms))
        except (StatelineError, NodeRefusedError, TimeoutError) as error:
            if is_optional:
                refusal = error.error if isinstance(error, NodeRefusedError) else error
                why = str(refusal) or f"It was not made within {_MADE_WITHIN_S:g} s."
                _log.info("A cut of %s was not made: %s", ", ".join(names), why)
                return f"The snapshot was refused: {why}"
            raise error.error if isinstance(error, NodeRefusedError) else error from error
        self._cuts.append(cut := SharedCut(kept, frozenset(names), begun_s, copy_context()))
        return cut

    async def _make_room(self) -> None:
        """Release the oldest cut that nobody reads if there are as many as may be."""
        if len(self._cuts) < _MOST:
            return
        unread = [cut for cut in self._cuts if not cut.readers]
        if not unread:
            raise TooManyRequestsError(f"Statements over several tables read {_MOST} cuts already: ask again.")
        await self._release([max(unread, key=lambda cut: cut.age_ms)])

    async def _release(self, cuts: Sequence[SharedCut]) -> None:
        for cut in cuts:  # first, so that no reader takes one of them meanwhile
            self._cuts.remove(cut)
        for cut in cuts:
            try:
                await asyncio.create_task(self._cluster.release(cut.kept), context=cut.context)
            except (StatelineError, NodeRefusedError, OSError) as error:
                _log.info("A cut was not released, and ends with its lease: %s", error)
