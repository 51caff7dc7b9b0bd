"""A change feed: the changes of a store that are committed, in the order of each partition's log.

They are read from the log that the store can be rebuilt from: its changelog, or the topic of a table. A record there is
not yet a change of the store: at least once, it is written before the store commits it. So each is held back until the
store's committed state covers it.

| store                   | a record is given when                                                                     |
|-------------------------|--------------------------------------------------------------------------------------------|
| persistent              | its offset is at most the one that the newest commit has in the store's `offsets`          |
| table in memory         | its offset is at most the one in the committed Position, which the worker tells            |
| other stores in memory  | the Position that its commit carries in the changelog is covered by the committed Position |

What another node owns its owner is asked for, over their link, and what nobody owns stays where it is until somebody
does: who goes on with a partition goes on with its log. So the places of a feed, offsets of that log, mean the same at
every node.

The feed wakes when a worker commits, here or there, and reads the log only when there is something to give: an idle
feed costs nothing but the look that a lost announcement makes necessary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stateline.config.settings import Config
from stateline.log import Record
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.processing.failures import FailureHandler
from stateline.processing.reading import readable, since_1970
from stateline.query.values import Terms, answers_of
from stateline.serde.plain import shown
from stateline.server.changes.log import ChangeLog
from stateline.server.changes.pending import PendingChanges
from stateline.server.changes.topic_reader import After, AfterInput, Begin
from stateline.server.contract.arguments import numbers_shown
from stateline.server.contract.written_arguments import parsed_json
from stateline.server.routing.copies import CopyRouter
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    NotReadyError,
    Position,
    PositionQuery,
    Query,
    RecordError,
    UnknownQueryTypeError,
)

logger = logging.getLogger(__name__)

# How often an idle feed asks whether its topic is still the same one.
_TOPIC_CHECK_S = 5.0
_TAKEN_AT_ONCE = 500  # records: about a millisecond
# Longer than a worker that is being restarted needs; each look ends sooner by itself.
_IDLE_S = 60.0


@dataclass(eq=False, repr=False)
class Committed:
    """How far a store has committed the topic of its changes. For the event loop's thread."""

    _copies: CopyRouter
    _routing: QueryRouting
    _ownership: Ownership
    _store: ServedStore
    _topic: str

    def __post_init__(self) -> None:
        definition = self._store.definition
        self.by_position = not definition.persistent and definition.source is None

    async def offsets(self, partitions: Collection[int]) -> dict[int, int]:
        """The last offset of the topic that is committed, by partition; without those that have committed nothing or
        that cannot be read now."""
        return {p: at - 1 for p, at in (await self.next_offsets(partitions)).items() if at > 0}

    async def next_offsets(self, partitions: Collection[int]) -> dict[int, int]:
        """The offset after it; 0 of those that have committed nothing, without those that cannot be read now."""
        if self._store.definition.persistent:
            return await self._copies.ends(self._store, partitions)
        positions = await self.positions(partitions)
        return {p: _after(position.get(self._topic, p)) for p, position in positions.items()}

    async def positions(self, partitions: Collection[int]) -> dict[int, Position]:
        """The committed Positions, as the workers tell them; without those that do not answer."""
        terms = Terms(self._store.name, IsolationLevel.READ_COMMITTED)
        queries: dict[int, Query[Any]] = dict.fromkeys(partitions, PositionQuery())
        outcomes = await self._routing.ask(self._store, terms, queries, None)
        return {p: answer.position for p, answer in answers_of(outcomes).items()}

    def announce(self, partitions: Collection[int]) -> None:
        """Have the next commit of these announced, wherever it is made."""
        self._copies.announce_commits(self._store, partitions)

    def elsewhere(self, partitions: Collection[int]) -> list[int]:
        """Those that another machine may have, as far as is known here."""
        task_id, is_left = self._store.placement.task_id, self._ownership.is_left
        return [p for p in partitions if is_left(task_id(p), given_back=True)]


class ChangeSource:
    """The topics of stores' changes, and how far these are committed. One per server process."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        copies: CopyRouter,
        routing: QueryRouting,
        ownership: Ownership,
        commits: CommitSignal,
    ) -> None:
        self.config, self.commits = config, commits
        self._topology, self._committed = topology, partial(Committed, copies, routing, ownership)

    def topic(self, store: ServedStore) -> str:
        """The topic that a store's changes are read from. Raises `UnknownQueryTypeError` if there is none."""
        topic = store.definition.changelog(self._topology.application_id)
        if store.is_global:
            raise UnknownQueryTypeError(
                f"{store.name!r} is a global table: its changes are the records of its topic {topic}. Read that, or "
                "ask for its state (range)."
            )
        if topic is None:
            raise UnknownQueryTypeError(
                f"The store {store.name!r} has no changelog, so there is nothing to read its changes from: declare it "
                "with logged=True, or ask for its state (range)."
            )
        return topic

    def inputs(self, store: ServedStore) -> list[str]:
        """The topics that the store's task reads."""
        return [source.name for source in self._topology.subtopology_of(store.name).sources]

    def committed(self, store: ServedStore) -> Committed:
        """How far this store has committed its topic. Raises as `topic`."""
        return self._committed(store, self.topic(store))


class ChangeFeed:
    """The changes of some partitions of one store, for one reader. For the event loop's thread; `close` it."""

    def __init__(self, source: ChangeSource, store: ServedStore, partitions: Sequence[int]) -> None:
        """Raises `UnknownQueryTypeError` for a store that has no changelog."""
        self.topic = source.topic(store)
        self._commits = source.commits
        self._partitions = tuple(partitions)
        self._definition, self._config = store.definition, source.config
        self._committed = source.committed(store)
        buffer_bytes = source.config.server_changes_buffer_bytes
        self._log = ChangeLog(
            source.config, self.topic, partitions, buffer_bytes, is_changelog=store.definition.source is None
        )
        self._pending = {p: PendingChanges(p) for p in partitions}
        self._reach: dict[int, int] = {}  # up to where the log is to be read
        self._positions: Mapping[int, Position] = {}  # of stores in memory
        self._unreadable: RecordError | None = None
        self._check_due_s = 0.0
        self._behind_since_s: float | None = self._now_s()

    @property
    def lag_s(self) -> float:
        """For how long there has been something to give all the time; 0 when all that is committed was given."""
        return 0.0 if self._behind_since_s is None else self._now_s() - self._behind_since_s

    async def begin(self, begin: Begin | None) -> dict[int, int]:
        """Take up reading, after what is committed now when `begin` is None; the next offset of each partition.

        Raises `CursorExpiredError` when the log no longer has what comes next, `NotReadyError` when it cannot be read.
        """
        await self._log.begin(begin or await self._now())
        return self._log.next_offsets

    async def changes(self) -> AsyncGenerator[list[Record], None]:
        """Committed changes as they come, without end; each partition's in the order of its offsets.

        Raises `CursorExpiredError` when the topic is not the same any more or has lost what comes next, `NotReadyError`
        when the log cannot be read or the server is shutting down: go on from the last change then. `RecordError` as
        `changes_of`, behind what can be read of what comes before that record and of other partitions.
        """
        while True:
            commit = self._commits.next_commit()
            self._committed.announce(self._partitions)
            await self._look()
            has_given = False
            for taken in self._take():
                self._note_behind()
                has_given = True
                yield taken
            if self._unreadable is not None:
                raise self._unreadable
            if has_given:
                continue
            if behind := self._behind():
                self._note_behind()
                if not await self._read(behind):
                    await self._commits.wait(commit, self._now_s() + 0.001)  # no patience, but the server may stop
            else:
                self._behind_since_s = None
                await self._check_topic()
                await self._commits.wait(commit, self._now_s() + _IDLE_S)

    def close(self) -> None:
        """Release everything; returns at once."""
        self._log.close()

    async def _now(self) -> Begin:
        begin: Begin
        if self._committed.by_position:
            positions = await self._committed.positions(self._partitions)
            merged = Position()
            for position in positions.values():
                merged = merged.merge(position)
            known, begin = set(positions), AfterInput(merged, exactly=False)
        else:
            ends = await self._committed.next_offsets(self._partitions)
            known, begin = set(ends), After({p: end - 1 for p, end in ends.items() if end > 0}, exactly=False)
        await self._require(self._committed.elsewhere(self._partitions), known)
        return begin

    async def _require(self, elsewhere: Collection[int], known: Collection[int]) -> None:
        """Raise `NotReadyError` when what is committed of these is not known, and there may be something."""
        if unknown := [p for p in elsewhere if p not in known]:
            ends = await self._log.ends()
            if any(ends[p] for p in unknown):
                raise NotReadyError(
                    f"The end of partition {unknown[0]} is not known here now, and latest means the end of all "
                    "partitions. Ask again in a moment."
                )

    async def _look(self) -> None:
        """What is committed now. A partition that cannot be looked at stays where it was."""
        if self._committed.by_position:
            self._positions = await self._committed.positions(self._partitions)
            ends = await self._log.ends() if any(self._positions.values()) else {}
            # Without a Position nothing could be given, and all that is read would pile up.
            self._reach = {p: end - 1 for p, end in ends.items() if self._positions.get(p)}
            return
        reach = await self._committed.offsets(self._partitions)
        if any(offset < self._reach.get(p, -1) for p, offset in reach.items()):
            self._check_due_s = 0.0  # rebuilt, from the same topic or from a new one
        self._reach |= reach

    async def _read(self, behind: Collection[int]) -> bool:
        """Whether the log had anything."""
        read: dict[int, list[Record]] = {}
        for record in await self._log.read(self._ahead(behind)):
            read.setdefault(record.partition, []).append(record)
        for p, records in read.items():
            self._pending[p].add(records, by_position=self._committed.by_position)
        return bool(read)

    def _take(self) -> Iterator[list[Record]]:
        """What is read and committed, as `changes_of`; of a partition with an `_unreadable` one, what is before it. A
        commit can have many records: they come some at a time."""
        for p, pending in self._pending.items():
            if self._committed.by_position:
                taken = pending.up_to_position(self._positions.get(p, Position()))
            else:
                taken = pending.up_to_offset(self._reach.get(p, -1))
            for first in range(0, len(taken), _TAKEN_AT_ONCE):
                some = taken[first : first + _TAKEN_AT_ONCE]
                try:
                    changes = changes_of(self._definition, some, self._config)
                except RecordError as error:
                    self._unreadable = error
                    yield from filter(None, [list(self._before_unreadable(some))])
                    break
                if changes:
                    yield changes

    def _before_unreadable(self, records: Sequence[Record]) -> Iterator[Record]:
        for record in records:
            try:
                yield from changes_of(self._definition, [record], self._config)
            except RecordError:
                return

    def _behind(self) -> frozenset[int]:
        next_offsets = self._log.next_offsets
        return frozenset(p for p, reach in self._reach.items() if next_offsets[p] <= reach)

    def _ahead(self, behind: Collection[int]) -> frozenset[int]:
        """Partitions that were read further than is committed: they wait, while others catch up."""
        return frozenset(p for p, pending in self._pending.items() if pending and p not in behind)

    async def _check_topic(self) -> None:
        if self._now_s() >= self._check_due_s:
            await self._log.check_topic()
            self._check_due_s = self._now_s() + _TOPIC_CHECK_S

    def _note_behind(self) -> None:
        if self._behind_since_s is None:
            self._behind_since_s = self._now_s()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _after(offset: int | None) -> int:
    return 0 if offset is None else offset + 1


def changes_of(definition: StoreDefinition, records: Sequence[Record], config: Config) -> list[Record]:
    """Those of these committed records that are changes of the store.

    A record of a table's topic that cannot be read now raises `RecordError` where such a one ends the worker (policy
    fail). It is left out otherwise, and counted in the log: the worker has left it out as well, or it is of a schema
    that today's code does not read.
    """
    if definition.source is None:
        return [record for record in records if record.key is not None]
    fails = config.deserialization_exception_handler == "fail"
    failures = FailureHandler("fail", "fail", None) if fails else None
    timed = records if definition.source.event_time is not None else since_1970(records, failures)
    found = list(readable(definition.source, timed, failures, key_required=True))
    if len(found) < len(records):
        logger.warning("%d records of %s were left out of the changes of %s: they cannot be read",
                       len(records) - len(found), definition.source.name, definition.name)  # fmt: skip
    return found


def timestamp_of(definition: StoreDefinition, record: Record) -> int | None:
    """As a query shows it. Of a deletion only where the log has that of the input: in a changelog of plain rows it is
    the time of the commit."""
    if definition.kind == "versioned" or definition.source is not None:
        return record.timestamp_ms
    return record.timestamp_ms if definition.timestamped and record.value is not None else None


def read_position(what: str, given: Any, topic: str, inputs: Sequence[str], partitions: int) -> Begin:
    """Where to begin after a position, as a text of JSON or its value: an event's id, or the `position` of an answer.
    Raises `InvalidArgumentError`."""
    try:
        position = Position.from_json(parsed_json("It", given) if isinstance(given, str) else given)
    except ValueError as error:  # InvalidArgumentError is one; Python's own, a number of 4300 digits
        why = str(error) if isinstance(error, InvalidArgumentError) else f"{shown(given)} is no position."
        raise InvalidArgumentError(
            f"{what}: {why} Give the id of an event, the position of an answer, earliest or latest."
        ) from error
    for (name, partition), _ in position:
        if partition >= partitions:
            raise InvalidArgumentError(
                f"{what} names partition {partition} of {shown(name)}, which has {numbers_shown(partitions)}."
            )
    strangers = [name for name in position.offsets if name != topic and (topic in inputs or name not in inputs)]
    if strangers or (topic in position.offsets and len(position.offsets) > 1):
        known = ", ".join(inputs)
        raise InvalidArgumentError(
            f"{what} names {shown(', '.join(position.offsets))}: changes come from {topic!r}, whose offsets are in "
            f"the id of an event; in the position of an answer are those of the input, {known}."
        )
    if topic in position.offsets or topic in inputs:
        return After(position.offsets.get(topic, {}))
    return AfterInput(position)
