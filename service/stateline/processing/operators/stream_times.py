"""How far in time the operators of a task have come, kept with their stores.

Kafka Streams' processors forget it when they are closed, and take records again that were too late before. Here it is a
row among the store's offsets, written in the same atomic step as what the store has staged.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline_store import TopicPartition, TransactionalStore

# Under which the store's offsets have it; no topic can be called so. On disk: never change.
_OBSERVED = TopicPartition("$observed-stream-time", 0)
_EMITTED = TopicPartition("$emitted-up-to", 0)


def _punctuation(name: str) -> TopicPartition:
    return TopicPartition(f"$punctuation-{name}", 0)  # On disk: never change.


class StreamTimes:
    """Per store: the largest timestamp of the records that its operator was given, and up to where final results were
    emitted. Milliseconds; -1 before the first. One task's, one thread's."""

    def __init__(self, stores: Mapping[str, TransactionalStore]) -> None:
        """Take up what the stores, which are open, have committed."""
        self._stores = stores
        self._times: dict[str, dict[TopicPartition, int]] = {}

    def observed(self, store: str) -> int:
        """The largest timestamp seen."""
        return self._get(store, _OBSERVED)

    def observe(self, store: str, timestamp_ms: int) -> None:
        """It is at least this; it never goes back."""
        self._set(store, _OBSERVED, timestamp_ms)

    def emitted(self, store: str) -> int:
        """Up to where final results were emitted."""
        return self._get(store, _EMITTED)

    def emit(self, store: str, up_to_ms: int) -> None:
        """They were, up to here; it never goes back."""
        self._set(store, _EMITTED, up_to_ms)

    def punctuated(self, store: str, name: str) -> int:
        """For which time this punctuation was called last."""
        return self._get(store, _punctuation(name))

    def punctuate(self, store: str, name: str, timestamp_ms: int) -> None:
        """It was, for this time; it never goes back."""
        self._set(store, _punctuation(name), timestamp_ms)

    def marks(self, store: str) -> dict[TopicPartition, int]:
        """What the store's next commit has to write with its offsets."""
        return self._times.get(store, {})

    def _get(self, store: str, what: TopicPartition) -> int:
        found = self._times.get(store, {}).get(what)
        if found is None and store in self._stores:
            found = self._stores[store].committed_offset(what)
        return -1 if found is None else found

    def _set(self, store: str, what: TopicPartition, timestamp_ms: int) -> None:
        if timestamp_ms > self._get(store, what):
            self._times.setdefault(store, {})[what] = timestamp_ms
