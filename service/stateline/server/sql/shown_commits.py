"""`ShownCommits`: which commits of its stores a statement has read, so that its result holds until the next commit."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, PositionQuery
from stateline_store.reads.secondary import SecondaryReader


class ReadCommits(NamedTuple):
    """Stores, and the reader, generation and commit number of each of their partitions (`Partitions.shown`)."""

    stores: Sequence[ServedStore]
    commits: Sequence[tuple[SecondaryReader, int, int]]


@dataclass(eq=False, repr=False)
class ShownCommits:
    """For the event loop's thread. `epochs` are the stores that show whole epochs alone."""

    _partitions: Partitions
    _epochs: Container[str]
    _has_other_nodes: Callable[[], bool]

    def of(self, stores: Sequence[ServedStore]) -> ReadCommits | None:
        """Return the newest commits of these stores, and show them.

        None if only a run says what the rows are: a partition is elsewhere, in memory or unreadable, or a commit
        alone does not decide what is shown."""
        found = []
        for store in stores:
            definition = store.definition
            if store.is_global or not definition.persistent or store.name in self._epochs:
                return None
            terms = Terms(store.name, IsolationLevel.READ_COMMITTED)
            for partition in store.partitions:
                answer = self._partitions.ask(store, terms, partition, PositionQuery())
                shown = self._partitions.shown(store, partition)
                if not isinstance(answer, PartitionAnswer) or shown is None:
                    return None
                if answer.copy.served_by != "active" and self._has_other_nodes():
                    return None
                found.append(shown)
        return ReadCommits(stores, found)

    def are_newest(self, shown: ReadCommits) -> bool:
        """Whether its committed rows are those of now."""
        return self.of(shown.stores) == shown
