"""`Serving`: everything that one server process holds, and how it asks: secondaries, workers, the commit
signal.

Committed state of persistent stores is read here, from secondaries. Everything else is the worker's to
answer: uncommitted state, and stores in memory. A query that is behind its bound waits for the next commit
here, or for the next slice of work there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from stateline.config import Config
from stateline.query import Failure, KeysQuery, Outcome, Query, Terms, answers_of, any_behind, home_partition
from stateline.server.deployment import Placement, read_placements
from stateline.server.partitions import Partitions, ServedStore
from stateline.server.waiting import CommitSignal
from stateline.server.worker_client import Workers
from stateline.topology import Topology
from stateline_store import (
    DoesNotExistError,
    IsolationLevel,
    NotReadyError,
    StateDirectory,
    StatelineError,
)

# How often files of the workers are looked at, and connections and secondaries that are missing are tried
# again.
_KEEP_INTERVAL_S = 0.5

_log = logging.getLogger(__name__)


class Serving:
    """One per server process, made inside its event loop; every method is for that thread."""

    def __init__(self, topology: Topology, config: Config, scratch: Path) -> None:
        self.topology = topology
        self.config = config
        self._directory = StateDirectory(config.state_dir, topology.application_id)
        self._signal = CommitSignal()
        self.workers = Workers(self._directory.application, self._signal.announce)
        self.partitions = Partitions(self._directory, scratch, self.workers.has_live_owner)
        self._stores: dict[str, ServedStore] = {}
        self._stopping = False

    def store(self, name: str) -> ServedStore:
        """The store of this name. Raises `DoesNotExistError`, or `NotReadyError` when no worker runs it
        yet.
        """
        served = self._stores.get(name)
        if served is not None:
            return served
        if name not in self.topology.stores:
            known = ", ".join(sorted(self.topology.stores)) or "none"
            raise DoesNotExistError(f"There is no store {name[:200]!r}; there are: {known}.")
        self._read_placements()
        if name not in self._stores:
            raise NotReadyError(
                f"The workers that run do not know the store {name!r} yet: restart them, then ask again."
            )
        return self._stores[name]

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """What each of these partitions answers; those behind the bound are waited for until the deadline."""
        if self._stopping:
            raise NotReadyError("The server is shutting down: ask again in a moment.")
        if terms.isolation_level is IsolationLevel.READ_UNCOMMITTED or not store.definition.persistent:
            return await self._ask_workers(store, terms, queries, deadline_s)
        while True:
            commit = self._signal.next_commit()
            outcomes = self.partitions.ask(store, terms, queries)
            behind = deadline_s is not None and any_behind(outcomes.values())
            if deadline_s is None or not behind or not await self._signal.wait(commit, deadline_s):
                return self._with_owners(store, outcomes)

    async def find(
        self,
        store: ServedStore,
        terms: Terms,
        keys: Iterable[bytes],
        partitions: Iterable[int],
        deadline_s: float | None,
    ) -> tuple[dict[bytes, bytes], dict[int, Outcome]]:
        """(key → stored bytes of those found, partition → outcome): at home first, then in the other
        partitions.
        """
        allowed = set(partitions)
        homes = {key: home_partition(key, store.placement.partitions) for key in keys}
        first = {p: [key for key, home in homes.items() if home == p] for p in allowed}
        outcomes = await self._ask_keys(store, terms, first, deadline_s)
        found = _entries(outcomes)
        missing = [key for key in homes if key not in found]
        if missing and not any(isinstance(outcome, Failure) for outcome in outcomes.values()):
            rest = {p: [key for key in missing if homes[key] != p] for p in allowed}
            later = await self._ask_keys(store, terms, rest, deadline_s)
            found = _entries(later) | found
            # Of a partition asked twice the earlier position stays: the answer reflects at least that much.
            outcomes = later | outcomes | {p: o for p, o in later.items() if isinstance(o, Failure)}
        return found, outcomes

    def reasons_not_ready(self) -> list[str]:
        """What cannot be queried at the moment, one sentence each; empty when everything can."""
        if self._stopping:
            return ["The server is shutting down."]
        reasons = []
        for name in self.topology.stores:
            try:
                store = self.store(name)
            except StatelineError as error:
                reasons.append(str(error))
                continue
            reasons += [why for p in store.partitions if (why := self._why_unreadable(store, p))]
        return list(dict.fromkeys(reasons))

    async def keep(self) -> None:
        """Follow the workers until cancelled: their files, their sockets, the stores that they opened."""
        while True:
            try:
                await self._follow_workers()
            except Exception:  # noqa: BLE001 - what it is, the log says; without it nothing new would ever be found
                _log.exception("Following the workers failed; it is tried again")
            await asyncio.sleep(_KEEP_INTERVAL_S)

    async def _follow_workers(self) -> None:
        with contextlib.suppress(NotReadyError):  # no worker yet: whoever asks for a store is told so
            self._read_placements()
        await self.workers.refresh()
        for store in list(self._stores.values()):
            for partition in store.partitions:
                if store.definition.persistent:
                    self._open_quietly(store, partition)
                    await asyncio.sleep(0)  # opening takes milliseconds: let requests in between

    def stop(self) -> None:
        """Refuse queries from now on and end those that wait, with `NotReadyError`."""
        self._stopping = True
        self._signal.close()

    async def close(self) -> None:
        """Release every connection and every secondary."""
        self.stop()
        await self.workers.close()
        self.partitions.close()

    def _read_placements(self) -> None:
        placements = read_placements(self._directory.application)
        self._stores = {
            name: self._served(name, placement)
            for name, placement in placements.items()
            if name in self.topology.stores
        }

    def _served(self, name: str, placement: Placement) -> ServedStore:
        known = self._stores.get(name)
        return known if known and known.placement == placement else ServedStore(self.topology.stores[name], placement)

    async def _ask_workers(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query], deadline_s: float | None
    ) -> dict[int, Outcome]:
        left_s = 0.0 if deadline_s is None else deadline_s - asyncio.get_running_loop().time()
        wait_ms = max(0, int(left_s * 1000))
        outcomes = await asyncio.gather(
            *(self.workers.query(store.placement.task_id(p), terms, p, query, wait_ms) for p, query in queries.items())
        )
        return dict(zip(queries, outcomes, strict=True))

    async def _ask_keys(
        self,
        store: ServedStore,
        terms: Terms,
        keys: Mapping[int, list[bytes]],
        deadline_s: float | None,
    ) -> dict[int, Outcome]:
        queries: dict[int, Query] = {p: KeysQuery(tuple(some)) for p, some in keys.items() if some}
        return await self.ask(store, terms, queries, deadline_s) if queries else {}

    def _with_owners(self, store: ServedStore, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        for partition, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                owner = self.workers.owner(store.placement.task_id(partition))
                outcomes[partition] = Failure(outcome.error, outcome.position, owner)
        return outcomes

    def _open_quietly(self, store: ServedStore, partition: int) -> None:
        try:
            self.partitions.open(store, partition)
        except StatelineError as error:  # whoever asks for it is told why
            _log.debug("Partition %d of %r: %s", partition, store.name, error)

    def _why_unreadable(self, store: ServedStore, partition: int) -> str | None:
        if store.definition.persistent:
            try:
                self.partitions.check(store, partition)
            except StatelineError as error:
                return f"Partition {partition} of {store.name!r}: {error}"
        elif not self.workers.has_live_owner(store.placement.task_id(partition)):
            return f"Partition {partition} of {store.name!r}: no worker that answers has it."
        return None


def _entries(outcomes: Mapping[int, Outcome]) -> dict[bytes, bytes]:
    return {key: value for answer in answers_of(outcomes).values() for key, value in answer.rows.entries}
