"""The clocks of records and commits, and of leases."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return milliseconds since the epoch, by this machine's clock. It may jump, so measure durations by another."""
    return time.time_ns() // 1_000_000


# macOS has none that counts sleep and is the same for all processes; there a lease outlasts a machine's sleep.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> int:
    """Return milliseconds since the machine was started, sleep counted. It never jumps, and is the same in all
    processes."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000
