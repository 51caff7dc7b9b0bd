"""`Throttle`: so many bytes per second, of all that share it."""

from __future__ import annotations

import asyncio


class Throttle:
    """For the event loop's thread. `per_second` is -1 where there is no limit, and else more than 0."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_s = 0.0  # when what was taken so far is paid for, by the loop's clock

    async def take(self, size: int) -> None:
        """Comes back when so many bytes may go out."""
        if self._per_second < 0:
            return
        now_s = asyncio.get_running_loop().time()
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + size / self._per_second
        if begins_s > now_s:
            await asyncio.sleep(begins_s - now_s)
