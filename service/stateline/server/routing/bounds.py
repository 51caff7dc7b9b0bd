"""`PositionBounds`: which position bounds can be met at all, by the topics that a store is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stateline.model.topology import Topology
from stateline.serde.plain import shown
from stateline.server.state.served_stores import ServedStore
from stateline_store import InvalidArgumentError, NotReadyError, NotUpToBoundError, Position, PositionBound

# Topics and partitions that a position bound may name however few the application has: a millisecond to look at.
_LEAST_NAMED = 1000


class PositionBounds:
    """Thread-safe: it never changes."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def most_named(self, store: ServedStore) -> int:
        """Return how many topics and partitions a bound may name: as many as the application has, and some deleted
        ones."""
        topics = {topic.name for each in self._topology.subtopologies for topic in each.sources}
        return max(_LEAST_NAMED, len(topics) * (1 + store.placement.partitions))

    @property
    def most_of_all(self) -> int:
        """Return the same for a bound on all stores."""
        return 100 * _LEAST_NAMED

    def check(self, store: ServedStore, bound: PositionBound) -> None:
        """Refuse a bound on a partition that cannot exist.

        Raises `InvalidArgumentError` if it is of an input of the store, `NotUpToBoundError` if it is of another topic,
        and `NotReadyError` if no worker runs the store.
        """
        if store.is_global:
            return  # its bounds name partitions of its topic
        count = store.placement.partitions
        for topic, offsets in bound.position.offsets.items():
            beyond = next((p for p in offsets if p >= count), None)
            if beyond is None:
                continue
            if topic not in self._inputs(store):
                raise self._never_met(store, topic)
            if store.stopped is not None:  # because the partition was added
                raise NotReadyError(store.stopped)
            raise InvalidArgumentError(
                f"position_bound names partition {beyond} of {topic!r}, which is read in {count} partitions by "
                f"{store.name!r}: name 0 to {count - 1}. Partitions that are added are not read."
            )

    def why_never_met(self, store: ServedStore, bound: PositionBound, partition: int) -> NotUpToBoundError | None:
        """Return the error if the bound names, for this partition, a topic that is no input of the store; else None."""
        for topic, offsets in bound.position.offsets.items():
            if (partition in offsets or store.is_global) and topic not in self._inputs(store):
                return self._never_met(store, topic)
        return None

    def of_each(
        self,
        stores: Iterable[ServedStore],
        bound: PositionBound,
        own_bounds: Mapping[str, PositionBound] = MappingProxyType({}),
    ) -> dict[str, PositionBound]:
        """Return the bound of each store: its own, and the part of a bound on all of them that it can meet. A topic
        that none of them reads is in every part, so that it is refused."""
        inputs = {store.name: set(self._inputs(store)) for store in stores}
        others = set(bound.position.offsets).difference(*inputs.values())
        offsets = bound.position.offsets.items()
        return {
            name: PositionBound(
                Position({topic: each for topic, each in offsets if topic in own | others}).merge(
                    own_bounds.get(name, PositionBound()).position
                )
            )
            for name, own in inputs.items()
        }

    def _inputs(self, store: ServedStore) -> list[str]:
        if store.is_global:
            return [] if store.definition.source is None else [store.definition.source.name]
        return [topic.name for topic in self._topology.subtopology_of(store.name).sources]

    def _never_met(self, store: ServedStore, topic: str) -> NotUpToBoundError:
        return NotUpToBoundError(
            f"position_bound can never be met: {shown(topic)} is not an input of {store.name!r}, which reads "
            f"{', '.join(self._inputs(store))}."
        )
