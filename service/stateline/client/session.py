"""Session consistency: a reader never sees an older state than before."""

from __future__ import annotations

import threading

from stateline.client.terms import GivenPosition, position_of
from stateline_store import Position


class Session:
    """Remembers the Position of each store, and sends it as the bound of the next query. Thread-safe.

    So a reader never goes back in time, with any server and at either isolation level. If a server is behind, it waits
    for up to `wait_ms` milliseconds. Then the query raises `NotUpToBoundError`. Clients and stores that share a session
    are consistent with each other. Call `saw` with the Position of your writes to read them.
    """

    def __init__(self, *, wait_ms: int = 10_000) -> None:
        self.wait_ms = wait_ms
        self._lock = threading.Lock()
        self._seen: dict[str, Position] = {}

    def position(self, store: str) -> Position:
        """Return the store's remembered Position; empty if there is none."""
        with self._lock:
            return self._seen.get(store, Position())

    def positions(self) -> dict[str, Position]:
        """Return the remembered Position of each store."""
        with self._lock:
            return dict(self._seen)

    def saw(self, store: str, position: GivenPosition) -> None:
        """Merge this Position into the store's, by maximum."""
        seen = position_of("position", position)
        with self._lock:
            self._seen[store] = self._seen.get(store, Position()).merge(seen)

    def forget(self, store: str) -> None:
        """Forget the store's Position, for example after its topic was created again. The old one can never be met."""
        with self._lock:
            self._seen.pop(store, None)
