"""Limits of one server process: requests per second, scans at once, and the working time of a query.

Each refuses with `TooManyRequestsError`: status 429 with a `Retry-After` of one second. Other limits bound a single
answer: rows by `server.limit.max`, bytes by `stateline.query.values.MAX_RESULT_BYTES`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stateline.config.settings import Config
from stateline_store import TooManyRequestsError

# Clients whose rate is remembered. One that is forgotten begins anew with a full bucket: that many addresses within a
# second are more than a limit per address can help against.
MAX_CLIENTS = 10_000
_UNLIMITED = -1


class Limits:
    """One per server process, for the event loop's thread. `now_s` is a monotonic clock."""

    def __init__(self, config: Config, now_s: Callable[[], float] = time.monotonic) -> None:
        self._scans_max = config.server_scans_max
        self._share = config.caller_share(self._scans_max)
        self.timeout_s = config.server_query_timeout_ms / 1000
        """How long a query may work, and a stream wait for its client."""
        self._scans: Counter[str] = Counter()  # by caller
        self._rate = None if config.server_rate_limit == _UNLIMITED else RateLimit(config.server_rate_limit, now_s)

    @property
    def scans(self) -> int:
        """Return how many scans run now."""
        return self._scans.total()

    @property
    def limits_rate(self) -> bool:
        """Return whether `admit` can refuse."""
        return self._rate is not None

    def admit(self, client: str) -> None:
        """Count a request of this client. Raises `TooManyRequestsError` if it sends more than server.rate.limit."""
        if self._rate is not None:
            self._rate.take(client)

    @asynccontextmanager
    async def scan(self, caller: str) -> AsyncIterator[None]:
        """Run the block as one of server.scans.max, a stream to its end. The block must not wait for a commit.

        Raises `TooManyRequestsError` at once if all places are taken, or all of this caller's share.
        """
        if self._scans_max != _UNLIMITED:
            self._check_room(caller)
        self._scans[caller] += 1
        try:
            yield
        finally:
            self._scans[caller] -= 1
            if not self._scans[caller]:
                del self._scans[caller]

    def _check_room(self, caller: str) -> None:
        if self.scans >= self._scans_max:
            raise TooManyRequestsError(
                f"{self.scans} scans are running, as many as server.scans.max allows: ask again in a moment."
            )
        if (own := self._scans[caller]) >= self._share:
            raise TooManyRequestsError(
                f"{own} scans are yours, as many of {self._scans_max} as server.caller.share.percent allows. Ask again "
                "when one of them has ended."
            )

    @asynccontextmanager
    async def query(self, wait_ms: int = 0) -> AsyncIterator[None]:
        """Run the block for at most `wait_ms` and server.query.timeout.ms, then raise `TooManyRequestsError`.

        The time is checked where the block awaits: a single read of RocksDB is not interrupted. The block's own
        `TimeoutError` passes.
        """
        timeout = asyncio.timeout(self.timeout_s + wait_ms / 1000)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise TooManyRequestsError(
                f"The query took longer than {self.timeout_s * 1000:.0f} ms (server.query.timeout.ms): ask for less, "
                "a smaller limit or fewer partitions, or again later."
            ) from error


class RateLimit:
    """A token bucket per client: `per_s` requests per second, and up to a second's worth at once."""

    def __init__(self, per_s: int, now_s: Callable[[], float]) -> None:
        self._per_s, self._now_s = per_s, now_s
        self._buckets: dict[str, tuple[float, float]] = {}  # client → (requests left, since when); oldest first

    def take(self, client: str) -> None:
        """Count one request. Raises `TooManyRequestsError` without counting if the client has none left."""
        now_s = self._now_s()
        left, since_s = self._buckets.pop(client, (float(self._per_s), now_s))
        left = min(self._per_s, left + (now_s - since_s) * self._per_s)
        admitted = left >= 1
        self._buckets[client] = (left - 1 if admitted else left, now_s)
        if len(self._buckets) > MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]  # the one that was silent for longest
        if not admitted:
            raise TooManyRequestsError(f"More than {self._per_s} requests per second (server.rate.limit): slow down.")
