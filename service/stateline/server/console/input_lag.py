"""How many records of its input a store lacks, by what this node's workers wrote last of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stateline.model.topology import Topology

Lag = Mapping[str, int]
"""Topic → how many of its records a task has not read: Kafka's consumer lag, of one partition."""


class InputLag:
    """Of an application's stores, as it was seen last."""

    def __init__(self, topology: Topology) -> None:
        self._topics = _topics_by_store(topology)
        self._tasks: Mapping[str, Lag] = {}

    def see(self, lags: Iterable[Mapping[str, Lag]]) -> None:
        """From now on it is that of `lags`: each worker's, by task."""
        self._tasks = {task: topics for lag in lags for task, topics in lag.items()}

    def of(self, store: str, task: str) -> Lag | None:
        """Of the topics that the store follows; None where no worker of this node reads them."""
        known, topics = self._tasks.get(task), self._topics.get(store, frozenset())
        if known is None or not topics & known.keys():
            return None
        return {topic: records for topic, records in known.items() if topic in topics}


def _topics_by_store(topology: Topology) -> Mapping[str, frozenset[str]]:
    found = {n: frozenset({t.source.name} if t.source else ()) for n, t in topology.global_tables.items()}
    for subtopology in topology.subtopologies:
        for store in subtopology.stores:
            fed = (t.name for t in subtopology.sources if store.name in subtopology.stores_fed_by(t.name))
            found[store.name] = frozenset(fed)
    return found
