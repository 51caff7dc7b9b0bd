"""The clock of records, commits and leases."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch, by this machine's clock: it may jump, so measure durations by another."""
    return time.time_ns() // 1_000_000
