"""Which records of a topic a store has committed, and the records that wait until it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from stateline.config.settings import Config
from stateline.log import Record
from stateline.model.topology import Topology
from stateline.processing.changelog import position_of_changelog
from stateline.query.values import Terms, answers_of
from stateline.server.routing.copies import CopyRouter
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, Position, PositionBound, PositionQuery, Query, UnknownQueryTypeError

_offset = attrgetter("offset")


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
        """Return the last committed offset of the topic, by partition. Partitions without one, and those that cannot be
        read now, are left out."""
        return {p: at - 1 for p, at in (await self.next_offsets(partitions)).items() if at > 0}

    async def next_offsets(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last committed one, 0 without one. Partitions that cannot be read now are left
        out."""
        if self._store.definition.persistent:
            return await self._copies.ends(self._store, partitions)
        positions = await self.positions(partitions)
        last = {p: position.get(self._topic, p) for p, position in positions.items()}
        return {p: 0 if offset is None else offset + 1 for p, offset in last.items()}

    async def positions(self, partitions: Collection[int]) -> dict[int, Position]:
        """Return the committed Positions, from the workers. Partitions that do not answer are left out."""
        terms = Terms(self._store.name, IsolationLevel.READ_COMMITTED)
        queries: dict[int, Query[Any]] = dict.fromkeys(partitions, PositionQuery())
        outcomes = await self._routing.ask(self._store, terms, queries, None)
        return {p: answer.position for p, answer in answers_of(outcomes).items()}

    def announce(self, partitions: Collection[int]) -> None:
        self._copies.announce_commits(self._store, partitions)

    def elsewhere(self, partitions: Collection[int]) -> list[int]:
        """Return the partitions that another machine may have."""
        task_id, is_left = self._store.placement.task_id, self._ownership.is_left
        return [p for p in partitions if is_left(task_id(p), given_back=True)]


class ChangeSource:
    """The topics of stores' changes, and how far they are committed. One per server process."""

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
        """Return the topic of a store's changes. Raises `UnknownQueryTypeError` if there is none."""
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
        return [source.name for source in self._topology.subtopology_of(store.name).sources]

    def committed(self, store: ServedStore) -> Committed:
        """Return how far this store has committed its topic. Raises like `topic`."""
        return self._committed(store, self.topic(store))


class _Commit(NamedTuple):
    """`ends` is the number of records up to its last one, which carries the Position."""

    ends: int
    position: Position


class PendingChanges:
    """Records of one partition that a change feed has read and the store has not committed yet, in the order of the
    log. A commit can have any number of records. Each record is looked at once, and each commit once per Position."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._records: list[Record] = []
        self._taken = 0
        self._commits: list[_Commit] = []
        self._seen: Position | None = None
        self._missing = 0  # so many commits, the first ones, are known not to be in `_seen`

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Iterable[Record], *, by_position: bool) -> None:
        """Add these records. `by_position` says that `up_to_position` will take them."""
        for record in records:
            self._records.append(record)
            if by_position and record.headers and (position := position_of_changelog([record])):
                self._commits.append(_Commit(self._taken + len(self._records), position))

    def up_to_offset(self, offset: int) -> list[Record]:
        """Take the records up to this offset, inclusive."""
        return self._take(bisect_right(self._records, offset, key=_offset))

    def up_to_position(self, seen: Position) -> list[Record]:
        """Take the records of all commits up to the last one that `seen` covers."""
        if seen != self._seen:
            self._seen, self._missing = seen, 0
        for at in range(len(self._commits) - 1, self._missing - 1, -1):
            ends, position = self._commits[at]
            if PositionBound(position).is_met(seen, self._partition):
                del self._commits[: at + 1]
                self._missing = len(self._commits)
                return self._take(ends - self._taken)
        self._missing = len(self._commits)
        return []

    def _take(self, count: int) -> list[Record]:
        taken = self._records[:count]
        del self._records[:count]
        self._taken += count
        return taken
