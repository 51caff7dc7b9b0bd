"""How long calls to a log wait for it: each for its own time, and all of them no longer than somebody allows."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SHORTEST_S = (
    0.05  # of a call that comes when the time is over: less is none to some clients, and none at all to others
)


class Patience(threading.local):
    """One log's, and that of all clients that it has made. Each thread has its own."""

    _until_s = math.inf

    def of(self, timeout_s: float) -> float:
        """How many seconds a call may take that would take up to `timeout_s`."""
        return max(_SHORTEST_S, min(timeout_s, self._until_s - time.monotonic()))

    @contextmanager
    def for_all(self, seconds: float) -> Iterator[None]:
        """All calls inside the block together may wait this long."""
        before, self._until_s = self._until_s, min(self._until_s, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until_s = before
