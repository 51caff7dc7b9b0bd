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
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateline.config.settings import Config
from stateline.deployment.topology_file import Placement, read_placements
from stateline.model.topology import Topology
from stateline.query.values import (
    Answer,
    Failure,
    Outcome,
    Rows,
    ScanQuery,
    Terms,
    Value,
    answers_of,
    any_may_come,
    failures_of,
    home_partition,
)
from stateline.query.words import check_answered
from stateline.serde.plain import shown
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.cursors import Cursors, held_on_disk, signing_key
from stateline.server.state.epochs import WholeEpochs
from stateline.server.state.many_keys import ask_for_keys
from stateline.server.state.partitions import Partitions, ServedStore
from stateline.server.state.siblings import Siblings
from stateline.server.state.worker_client import Workers
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import TimeLimits, shutting_down
from stateline_store import (
    DoesNotExistError,
    InvalidArgumentError,
    IsolationLevel,
    KeysQuery,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    PositionBound,
    PrefixQuery,
    Query,
    RangeQuery,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    UnknownQueryTypeError,
    VersionedKeysQuery,
)

# How often files of the workers are looked at, and connections and secondaries that are missing are tried
# again.
_KEEP_INTERVAL_S = 0.5

# Topics and partitions that a position bound may name however few the application has: a millisecond to look at.
_LEAST_IN_BOUND = 1000

_log = logging.getLogger(__name__)


class Serving:
    """One per server process, made inside its event loop; every method is for that thread."""

    def __init__(self, topology: Topology, config: Config, scratch: Path) -> None:
        self.topology = topology
        self.config = config
        self._directory = StateDirectory(config.state_dir, topology.application_id)
        self._signal = CommitSignal()
        self.limits = TimeLimits()
        self.bodies = Bodies(self.limits, config)
        self.workers = Workers(self._directory.application, self._signal.announce, self.limits)
        self.partitions = Partitions(
            self._directory,
            scratch,
            self.workers.has_live_owner,
            upgrading=config.upgrade_from is not None,
            epochs=topology.epoch_numbers(),
        )
        self._whole = WholeEpochs(topology, self.workers.owner, self._signal)
        self.cursors = Cursors(
            _signing_key(self._directory.application),
            ttl_s=config.server_cursor_ttl_ms / 1000,
            most=config.server_cursors_max,
            most_bytes=config.server_cursors_max_bytes,
            on_disk=lambda: held_on_disk(self._directory.application),
            catch_up=self._catch_up,
        )
        self.siblings = Siblings(
            self._directory.application, self.cursors.process, tls=config.server_tls_key_file is not None
        )
        self._stores: dict[str, ServedStore] = {}
        self._leaving = False
        self._stopping = False
        self._fault = ""  # what the keeper meets at the moment, in words

    @property
    def commits(self) -> CommitSignal:
        """What wakes those who wait for the next commit."""
        return self._signal

    def store(self, name: str) -> ServedStore:
        """The store of this name. Raises `DoesNotExistError`, or `NotReadyError` when no worker runs it
        yet, or any more.
        """
        served = self._stores.get(name)
        if served is not None:
            if served.placement.refused is not None:
                raise NotReadyError(served.placement.refused)
            return served
        if name not in self.topology.stores:
            known = ", ".join(sorted(self.topology.stores)) or "none"
            raise DoesNotExistError(f"There is no store {shown(name)}; there are: {known}.")
        if self.topology.stores[name].kind == "custom":
            raise UnknownQueryTypeError(f"{name!r} is a store of the application's own kind: only processors ask it.")
        self._read_placements()
        if name not in self._stores:
            raise NotReadyError(
                f"The workers that run do not know the store {name!r} yet: restart them, then ask again."
            )
        return self.store(name)

    def served_names(self) -> list[str]:
        """The stores that can be asked: all but those of the user's own kinds."""
        return [name for name, definition in self.topology.stores.items() if definition.kind != "custom"]

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """What each of these partitions answers; those behind the bound, or for which there is no copy to ask or not
        the one that is demanded, are waited for until the deadline.

        Raises `UnknownQueryTypeError` for a query that this kind of store cannot answer.
        """
        return await self._whole.seen(store, terms, lambda: self._ask_all(store, terms, queries, deadline_s))

    async def _ask_all(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        for query in queries.values():
            check_answered(type(query), store.name, store.definition.kind)
        if self._stopping:
            raise shutting_down()
        if any(self._foreign_topics(store, terms.bound, p) for p in queries):
            deadline_s = None  # never to be met: whoever waits would wait for nothing
        if self._needs_worker(store, terms.isolation_level):
            await self._look_for_owners(store, queries)
        outcomes: dict[int, Outcome] = {}
        while True:
            change = self._signal.next_commit()
            outcomes |= await self._ask_once(store, terms, queries, deadline_s)
            if deadline_s is None or not any_may_come(outcomes.values()):
                break
            if not await self._signal.wait(change, deadline_s):
                break
            queries = {p: query for p, query in queries.items() if isinstance(outcomes[p], Failure)}
        return {p: self._explained(store, p, terms, outcome) for p, outcome in outcomes.items()}

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
            store, terms, lambda: self._find_all(store, terms, query, homes, partitions, deadline_s)
        )
        return _rows_found(outcomes, homes), outcomes

    async def _find_all(
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
            outcomes |= await self._ask_all(store, terms, queries, deadline_s) if queries else {}
            found = _rows_found(outcomes, homes)
            # A key can vanish between two looks, and is looked for everywhere then. `wanted` only grows, so this ends.
            missing = homes.keys() - found.keys()
            more = {p: some | missing for p, some in wanted.items() if missing - some}
            wanted = wanted | more
        return outcomes

    async def scan(
        self,
        store: ServedStore,
        terms: Terms,
        query: ScanQuery,
        partitions: Collection[int],
        deadline_s: float | None,
    ) -> dict[int, Outcome]:
        """The first entries of these partitions, each with its rest. What is asked of one key is asked at home first,
        and in the other partitions when there is nothing."""
        return await self._whole.seen(store, terms, lambda: self._scan_all(store, terms, query, partitions, deadline_s))

    async def _scan_all(
        self,
        store: ServedStore,
        terms: Terms,
        query: ScanQuery,
        partitions: Collection[int],
        deadline_s: float | None,
    ) -> dict[int, Outcome]:
        key = None if isinstance(query, RangeQuery | PrefixQuery) else query.key
        home = None if key is None else home_partition(key, store.placement.partitions)
        if home is None or home not in partitions:
            return await self._ask_all(store, terms, dict.fromkeys(partitions, query), deadline_s)
        outcomes = await self._ask_all(store, terms, {home: query}, deadline_s)
        outcome = outcomes[home]
        if isinstance(outcome, Failure) or await _has_entries(outcome, terms.limit):
            return outcomes
        others: dict[int, Query[Any]] = {p: query for p in partitions if p != home}
        return outcomes | (await self._ask_all(store, terms, others, deadline_s) if others else {})

    def most_in_bound(self, store: ServedStore) -> int:
        """How many topics and partitions a bound may name: what positions of all the application's topics would, and
        some that there are no more."""
        topics = {topic.name for each in self.topology.subtopologies for topic in each.sources}
        return max(_LEAST_IN_BOUND, len(topics) * (1 + store.placement.partitions))

    def check_bound(self, store: ServedStore, bound: PositionBound) -> None:
        """Refuse a bound that names what cannot exist: `InvalidArgumentError` for a partition that an input of the
        store cannot have, `NotUpToBoundError` for one of another topic.
        """
        count = store.placement.partitions
        for topic, offsets in bound.position.offsets.items():
            beyond = next((p for p in offsets if p >= count), None)
            if beyond is None:
                continue
            if topic not in (inputs := self._inputs(store)):
                raise _never_met(store, topic, inputs)
            raise InvalidArgumentError(
                f"position_bound names partition {beyond} of {topic!r}, which is read in {count} partitions by "
                f"{store.name!r}: name 0 to {count - 1}. Partitions that are added are not read."
            )

    async def reasons_not_ready(self, names: Iterable[str] | None = None) -> list[str]:
        """What cannot be queried at the moment, of these stores or of all, one sentence each; empty when all can.
        Requests are let in between, for each partition that has a new commit is read."""
        if self._leaving or self._stopping:
            return ["The server is shutting down."]
        reasons = [self._fault] if self._fault else []
        for name in self.served_names() if names is None else names:
            try:
                store = self.store(name)
            except StatelineError as error:
                reasons.append(str(error))
                continue
            for partition in store.partitions:
                if (why := self._why_unreadable(store, partition)) is not None:
                    reasons.append(why)
                await asyncio.sleep(0)
        return list(dict.fromkeys(reasons))

    async def keep(self) -> None:
        """Follow the workers until cancelled: their files, their sockets, the stores that they opened."""
        while True:
            try:
                self.cursors.expire()
                await self._follow_workers()
                self._fault = ""
            except (StatelineError, OSError) as error:
                self._note_fault(f"Following the workers fails: {error}")
            except Exception as error:  # noqa: BLE001 - a defect; without the keeper nothing new would ever be found
                self._note_fault(f"Following the workers fails: {type(error).__name__}.", error)
            await asyncio.sleep(_KEEP_INTERVAL_S)

    def _note_fault(self, fault: str, defect: Exception | None = None) -> None:
        """Log what is new: a fault that lasts is met twice a second."""
        if fault != self._fault:
            _log.warning("%s", fault, exc_info=defect)
        self._fault = fault

    async def _follow_workers(self) -> None:
        with contextlib.suppress(NotReadyError):  # no worker yet: whoever asks for a store is told so
            self._read_placements()
        await self.workers.refresh()
        self.workers.look_after()
        for store in list(self._stores.values()):
            for partition in store.partitions:
                if store.definition.persistent:
                    self._open_quietly(store, partition)
                    await asyncio.sleep(0)  # opening takes milliseconds: let requests in between

    @property
    def waiting(self) -> int:
        """Requests that wait at the moment: for a commit, for a worker, for the rest of their body."""
        return self._signal.waiting + self.limits.waiting

    @property
    def stopping(self) -> bool:
        """Whether queries are refused, because the server shuts down."""
        return self._stopping

    def leave(self) -> None:
        """Answer queries as before, but be ready no more: nobody is to be sent here from now on."""
        self._leaving = True

    def stop(self) -> None:
        """Refuse queries from now on and end those that wait, here or at a worker, with `NotReadyError`."""
        self._stopping = True
        self._signal.close()
        self.limits.stop()

    async def close(self) -> None:
        """Release every connection and every secondary."""
        self.stop()
        self.siblings.close()
        self.cursors.close()
        await self.workers.close()
        self.partitions.close()

    def _read_placements(self) -> None:
        placements = read_placements(self._directory.application)
        self._stores = {
            name: self._served(name, placement) for name, placement in placements.items() if name in self.served_names()
        }

    def _served(self, name: str, placement: Placement) -> ServedStore:
        known = self._stores.get(name)
        return known if known and known.placement == placement else ServedStore(self.topology.stores[name], placement)

    async def _ask_once(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        if self._needs_worker(store, terms.isolation_level):
            return await self._ask_workers(store, terms, queries, deadline_s)
        outcomes: dict[int, Outcome] = {}
        for partition, query in queries.items():
            if isinstance(query, KeysQuery | VersionedKeysQuery):
                outcomes[partition] = await ask_for_keys(self.partitions, store, terms, partition, query)
            else:
                outcomes[partition] = self.partitions.ask(store, terms, partition, query)
            if isinstance(query, ScanQuery | KeysQuery | VersionedKeysQuery):
                await asyncio.sleep(0)  # a large one takes many milliseconds: let requests in between
        return outcomes

    async def _ask_workers(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        left_s = 0.0 if deadline_s is None else deadline_s - asyncio.get_running_loop().time()
        wait_ms = max(0, int(left_s * 1000))
        declared = store.definition.description
        outcomes = await asyncio.gather(
            *(
                self.workers.query(store.placement.task_id(p), terms, p, query, wait_ms, declared)
                for p, query in queries.items()
            )
        )
        return dict(zip(queries, outcomes, strict=True))

    def _needs_worker(self, store: ServedStore, level: IsolationLevel) -> bool:
        return level is IsolationLevel.READ_UNCOMMITTED or not store.definition.persistent

    async def _look_for_owners(self, store: ServedStore, partitions: Iterable[int]) -> None:
        """Once per query: those who wait leave it to the keeper, however many they are."""
        if not all(self.workers.has_live_owner(store.placement.task_id(p)) for p in partitions):
            await self.workers.refresh()

    def _foreign_topics(self, store: ServedStore, bound: PositionBound, partition: int) -> list[str]:
        """Topics that the bound names for this partition and that are no input of the store."""
        offsets = bound.position.offsets
        return [t for t, partitions in offsets.items() if partition in partitions and t not in self._inputs(store)]

    def _inputs(self, store: ServedStore) -> list[str]:
        return [topic.name for topic in self.topology.subtopology_of(store.name).sources]

    def _explained(self, store: ServedStore, partition: int, terms: Terms, outcome: Outcome) -> Outcome:
        """A failure with its owner's name, and with what only the server knows about it."""
        if not isinstance(outcome, Failure):
            return outcome
        error, owner = outcome.error, outcome.owner or self.workers.owner(store.placement.task_id(partition))
        foreign = self._foreign_topics(store, terms.bound, partition)
        uncommitted = terms.isolation_level is IsolationLevel.READ_UNCOMMITTED
        if isinstance(error, NotUpToBoundError) and foreign:
            error = _never_met(store, foreign[0], self._inputs(store))
        elif isinstance(error, NotPresentError) and store.definition.persistent and uncommitted:
            error = NotPresentError(f"{error} isolation_level=read_committed can be answered without the worker.")
        return Failure(error, outcome.position, owner)

    def _open_quietly(self, store: ServedStore, partition: int) -> None:
        try:
            self.partitions.open(store, partition)
        except StatelineError as error:  # whoever asks for it is told why
            _log.debug("Partition %d of %r: %s", partition, store.name, error)

    def _catch_up(self) -> None:
        """Let every secondary follow its owner: one that nobody asks keeps the files of the commit that it saw last."""
        for _, _, reader in list(self.partitions.opened()):
            with contextlib.suppress(StatelineError, OSError):  # whoever asks for it is told why
                reader.refresh()

    def _why_unreadable(self, store: ServedStore, partition: int) -> str | None:
        if store.definition.persistent:
            try:
                self.partitions.check(store, partition)
            except StatelineError as error:
                return f"Partition {partition} of {store.name!r}: {error}"
        by_worker = self._needs_worker(store, self.config.default_state_isolation_level)
        if by_worker and not self.workers.has_answering_owner(store.placement.task_id(partition)):
            return f"Partition {partition} of {store.name!r}: no worker that answers has it."
        return None


def _signing_key(application: Path) -> bytes:
    """The application's key for cursors, or one of this process alone where nothing can be written."""
    try:
        return signing_key(application)
    except RetryLaterError as error:
        _log.info("Cursors of this process are its own: %s", error)
        return secrets.token_bytes(32)


def _never_met(store: ServedStore, topic: str, inputs: Iterable[str]) -> NotUpToBoundError:
    return NotUpToBoundError(
        f"position_bound can never be met: {shown(topic)} is not an input of {store.name!r}, which reads "
        f"{', '.join(inputs)}."
    )


async def _has_entries(answer: Answer, limit: int) -> bool:
    """Whether there are any. A scan that has looked at many rows in vain is read on to find out."""
    while not answer.rows.entries and answer.rows.rest is not None:
        rows = await answer.rows.rest.more(limit)
        answer.rows = Rows(rows.entries, interval_ms=answer.rows.interval_ms, rest=rows.rest)
        await asyncio.sleep(0)
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
