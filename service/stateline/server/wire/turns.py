"""Long work on the event loop, in steps. `ScanPace` says how many rows a step has, `let_others_in` comes between steps.

A request that arrives during a step waits until its end. All scans of a process share one queue, so this holds for any
number of scans.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakKeyDictionary

STEP_S = 0.0012
"""A step aims at this, so that 99 of 100 steps take less than 2 ms."""
STEP_BYTES = 512 * 1024
"""Most bytes of a step's rows. For large values copying them is most of the work."""
# Passes of the event loop between two steps. A request that is not answered at once needs several.
_PASSES = 3
_FIRST_ROWS, _LEAST_ROWS, _MOST_ROWS = 256, 16, 4096
# A step that began cold or was interrupted says little alone.
_MOST_CHANGE = 2

_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def let_others_in() -> None:
    """Return when waiting requests have had their turn, and other scans theirs."""
    async with _queues.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        for _ in range(_PASSES):
            await asyncio.sleep(0)


class ScanPace:
    """How many rows the next step of one scan has, from the processor time of the last step (`now_s`)."""

    times: ClassVar[int] = 1
    """How many times as long as `STEP_S` a step may take. The scan process has more: no small read waits there."""

    def __init__(self, now_s: Callable[[], float] = time.thread_time) -> None:
        self._now_s = now_s
        self.rows = _FIRST_ROWS

    @contextmanager
    def step(self, rows: int) -> Iterator[None]:
        """Run the block, which makes this many rows."""
        began_s = self._now_s()
        yield
        took_s = max(self._now_s() - began_s, 1e-6)
        step_s = STEP_S * self.times
        wanted = int(rows * step_s / took_s)
        if took_s > step_s or wanted > self.rows:
            change = min(max(wanted, self.rows // _MOST_CHANGE), self.rows * _MOST_CHANGE)
            self.rows = min(max(change, _LEAST_ROWS), _MOST_ROWS * self.times)

    @property
    def most_bytes(self) -> int:
        """Most bytes of the next step's rows."""
        return STEP_BYTES * self.times
