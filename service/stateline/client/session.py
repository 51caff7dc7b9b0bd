"""Session consistency: what was seen once is never unseen."""

from __future__ import annotations

import threading

from stateline.client.terms import GivenPosition, position_of
from stateline_store import Position


class Session:
    """The Position seen of each store, sent as the bound of every further query.

    So a reader never goes back in time, whichever server answers and at whichever level; where a server is behind, it
    waits up to `wait_ms` milliseconds and then fails with `NotUpToBoundError`. Give one session to every client and
    store that shall be consistent with each other; `saw` adds what the caller wrote, and so reads its own writes.

    A bound names input topics, so each store has its own. Thread-safe.
    """

    def __init__(self, *, wait_ms: int = 10_000) -> None:
        self.wait_ms = wait_ms
        self._lock = threading.Lock()
        self._seen: dict[str, Position] = {}

    def position(self, store: str) -> Position:
        """Return the Position that was seen of this store. It is empty if none was."""
        with self._lock:
            return self._seen.get(store, Position())

    def saw(self, store: str, position: GivenPosition) -> None:
        """Remember this Position of the store, merged by max with what was seen before."""
        seen = position_of("position", position)
        with self._lock:
            self._seen[store] = self._seen.get(store, Position()).merge(seen)

    def forget(self, store: str) -> None:
        """Drop the bound of this store, for example after its input topic was created again: it can never be met."""
        with self._lock:
            self._seen.pop(store, None)
