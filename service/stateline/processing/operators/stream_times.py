"""How far in time a task's operators have come, kept with their stores.

Kafka Streams' processors forget this when they close, and take records again that were too late before. Here it is a
row among the store's offsets, in the same atomic write as its staged rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline_store import TopicPartition, TransactionalStore

# Under which the store's offsets have it; no topic can be called so. On disk: never change.
_OBSERVED = "$observed-stream-time"
_EMITTED = TopicPartition("$emitted-up-to", 0)


def _punctuation(name: str) -> TopicPartition:
    return TopicPartition(f"$punctuation-{name}", 0)  # On disk: never change.


class StreamTimes:
    """By store: the largest timestamp that its operator has observed, and up to where final results were emitted; by
    punctuation: the time of its last call. Milliseconds, -1 before the first. Times never go back. One task's, for one
    thread."""

    def __init__(self, stores: Mapping[str, TransactionalStore]) -> None:
        self._stores = stores
        self._times: dict[str, dict[TopicPartition, int]] = {}

    def observed(self, store: str, clock: int = 0) -> int:
        """Return the time of a cogrouped stream's clock, by default the latest of all."""
        return self._get(store, TopicPartition(_OBSERVED, clock))

    def observe(self, store: str, timestamp_ms: int, clock: int = 0) -> None:
        for number in {0, clock}:
            self._set(store, TopicPartition(_OBSERVED, number), timestamp_ms)

    def emitted(self, store: str) -> int:
        return self._get(store, _EMITTED)

    def emit(self, store: str, up_to_ms: int) -> None:
        self._set(store, _EMITTED, up_to_ms)

    def punctuated(self, store: str, name: str) -> int:
        return self._get(store, _punctuation(name))

    def punctuate(self, store: str, name: str, timestamp_ms: int) -> None:
        self._set(store, _punctuation(name), timestamp_ms)

    def marks(self, store: str) -> dict[TopicPartition, int]:
        return self._times.get(store, {})

    def _get(self, store: str, what: TopicPartition) -> int:
        found = self._times.get(store, {}).get(what)
        if found is None and store in self._stores:
            found = self._stores[store].committed_offset(what)
        return -1 if found is None else found

    def _set(self, store: str, what: TopicPartition, timestamp_ms: int) -> None:
        if timestamp_ms > self._get(store, what):
            self._times.setdefault(store, {})[what] = timestamp_ms
