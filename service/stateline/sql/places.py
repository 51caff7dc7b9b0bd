"""`Places`: how many statements run at a time, in all and of one caller. Asyncio, one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stateline_store import TooManyRequestsError


class Places:
    """At most `most` statements run, and at most `share` of one caller. The others wait in the order of their arrival.
    One whose caller has room passes those whose caller has none."""

    def __init__(self, most: int, share: int) -> None:
        self.most = most
        self._share = share
        self._running: Counter[str] = Counter()  # by caller
        self._waiting: dict[asyncio.Future[None], str] = {}  # the caller of each, oldest first

    @property
    def running(self) -> int:
        """The statements that run now."""
        return self._running.total()

    @asynccontextmanager
    async def place(self, caller: str, end: float) -> AsyncIterator[None]:
        """Run the block as one of these statements. Raises `TooManyRequestsError` if there is no place until `end`, a
        time of the event loop's clock."""
        await self._take(caller, end)
        try:
            yield
        finally:
            self._give_back(caller)

    async def _take(self, caller: str, end: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = caller
        self._let_in()
        try:
            async with asyncio.timeout_at(end):
                await turn
        except BaseException as error:
            if self._waiting.pop(turn, None) is None:  # its turn came at the same moment
                self._give_back(caller)
            if isinstance(error, TimeoutError):
                raise self._refused(caller) from None
            raise

    def _give_back(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._let_in()

    def _let_in(self) -> None:
        for turn, caller in list(self._waiting.items()):
            if self.running >= self.most:
                return
            if self._running[caller] < self._share and not turn.cancelled():
                del self._waiting[turn]
                self._running[caller] += 1
                turn.set_result(None)

    def _refused(self, caller: str) -> TooManyRequestsError:
        own = self._running[caller]
        if own >= self._share and self.running < self.most:
            return TooManyRequestsError(
                f"{own} statements are yours, as many of {self.most} as server.caller.share.percent allows. Try again "
                "later."
            )
        return TooManyRequestsError(f"{self.most} statements run already, the most at a time. Try again later.")
