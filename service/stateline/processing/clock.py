"""The time that a worker's functions and records go by: the machine's, or one that somebody moves by hand.

Nothing else goes by it: how often the group is asked, how long a query waits, and what a commit writes beside rows are
always of the machine's clocks.
"""

from __future__ import annotations

import time
from typing import Protocol

from stateline_store.clock import now_ms


class Clock(Protocol):
    """What punctuations, `max.timestamp.ahead.ms` and changelog records without a time of their own go by."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""


class MachineClock:
    """This machine's clocks. Thread-safe."""

    def now_ms(self) -> int:
        return now_ms()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


MACHINE_CLOCK = MachineClock()
