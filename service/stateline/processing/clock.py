"""The clock of a worker's functions and records: the machine's, or a test's.

How often the group is asked, and how long a query waits, always go by the machine's clocks.
"""

from __future__ import annotations

import time
from typing import Protocol

from stateline_store.clock import now_ms


class Clock(Protocol):
    """Punctuations, `max.timestamp.ahead.ms` and changelog records without a time of their own go by it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""


class MachineClock:
    def now_ms(self) -> int:
        return now_ms()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


MACHINE_CLOCK = MachineClock()
