"""Follow the workers of the application, and find stores that cannot be queried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stateline.server.state.cursors import Cursors
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.state.workers import Workers
from stateline_store import (
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    StatelineError,
    StoreState,
)

# The interval for the files of workers, and for missing connections and secondaries.
_LOOK_INTERVAL_S = 0.5
# A process that opens stores when they are asked closes those that nobody asked for so long.
_IDLE_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class StoreWatch:
    """One per server process, for the event loop's thread.

    `default_level` is the isolation level of queries that name none. `is_reachable` returns whether another node runs a
    task and can be reached, `is_held_elsewhere` whether another node has a copy of it, `why_ownerless` why no worker
    runs it. `why_unreached` is `Nodes.unreached`.
    """

    _stores: ServedStores
    _partitions: Partitions
    _workers: Workers
    _ownership: Ownership
    _cursors: Cursors
    _default_level: IsolationLevel
    _is_reachable: Callable[[str], bool]
    _is_held_elsewhere: Callable[[str], bool]
    _why_ownerless: Callable[[str], str]
    _why_unreached: Callable[[], str]
    opens_when_asked: bool = False
    """Whether stores are opened by their first request, and closed when nobody asks."""

    def __post_init__(self) -> None:
        self._fault = ""  # the present failure, as a sentence

    async def follow(self) -> None:
        """Follow the workers until cancelled: their files, their sockets and the stores that they opened."""
        while True:
            try:
                self._cursors.expire()
                await self._follow_workers()
                self._fault = ""
            except (StatelineError, OSError) as error:
                self._note_fault(f"Following the workers fails: {error}")
            except Exception as error:  # noqa: BLE001 - a defect; without this task the server would find no new stores
                self._note_fault(f"Following the workers fails: {type(error).__name__}.", error)
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def reasons_not_ready(self, names: Iterable[str] | None = None) -> list[str]:
        """Return what cannot be queried, of these stores or of all, as sentences. Empty: every store can be queried.

        Other requests run in between, because each partition with a new commit is read.
        """
        reasons = [self._fault] if self._fault else []
        for name in self._stores.names if names is None else names:
            try:
                store = self._stores.get(name)
            except StatelineError as error:
                reasons.append(str(error))
                continue
            for partition in store.partitions:
                if (why := self._why_unreadable(store, partition)) is not None:
                    reasons += [why] if store.stopped is None else [store.stopped, why]
                await asyncio.sleep(0)
        return list(dict.fromkeys(reasons))

    def _note_fault(self, fault: str, defect: Exception | None = None) -> None:
        """Log a new fault once: it recurs twice a second."""
        if fault != self._fault:
            _log.warning("%s", fault, exc_info=defect)
        self._fault = fault

    async def _follow_workers(self) -> None:
        with contextlib.suppress(NotReadyError):  # no worker yet: queries report it
            self._stores.read()
        await self._workers.refresh()
        self._workers.look_after()
        if why := self._why_unreached():
            self._workers.say_unreached(why)
        self._ownership.look_at_group()
        if self.opens_when_asked:
            self._partitions.close_idle(_IDLE_S)
            return
        for store in (*self._stores, *self._stores.global_tables):
            for partition in store.partitions:
                if store.definition.persistent:
                    self._open_quietly(store, partition)
                    await asyncio.sleep(0)  # opening takes milliseconds: let requests in between

    def _open_quietly(self, store: ServedStore, partition: int) -> None:
        try:
            self._partitions.open(store, partition)
        except StatelineError as error:  # queries report it
            _log.debug("Partition %d of %r: %s", partition, store.name, error)

    def _why_unreadable(self, store: ServedStore, partition: int) -> str | None:
        """Return why neither a copy here nor a reachable node answers for this partition; None if one does."""
        task_id, which = store.placement.task_id(partition), f"Partition {partition} of {store.name!r}"
        if self._is_reachable(task_id):
            return None
        if store.stopped is not None and store.is_read_here(self._default_level) and self._is_held_elsewhere(task_id):
            return None  # the complete one of the two copies answers
        ownerless = "" if self._ownership.is_owned(task_id) else self._why_ownerless(task_id)
        if store.definition.persistent:
            try:
                self._partitions.check(store, partition)
                notice = self._partitions.open(store, partition).notice.status
                given_back = notice.state is StoreState.STANDBY
                self._ownership.check(task_id, store.name, partition, given_back=given_back)
            except (NotActiveError, NotPresentError) as error:
                return f"{error} {ownerless}".rstrip()
            except StatelineError as error:
                return f"{which}: {error}"
        by_worker = not store.is_read_here(self._default_level)
        if by_worker and not self._workers.has_answering_owner(task_id):
            return f"{which}: no worker that answers has it. {ownerless}".rstrip()
        return None
