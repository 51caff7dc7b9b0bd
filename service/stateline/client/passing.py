"""The rules for retries of `Client`, `AsyncClient` and `lean`. Statuses come from `problem_kinds`.

| failure                                          | `Client`                   | `lean`                               |
|--------------------------------------------------|----------------------------|--------------------------------------|
| no answer: refused, lost, timed out              | retried                    | retried                              |
| 429, 502, 503, 504                               | retried                    | retried                              |
| 421, the partition is on another server          | retried with several nodes | the next server is asked             |
| 504 of a statement of SQL that took too long     | final                      | is never sent                        |
| any other status                                 | final                      | final                                |

| request                                          | `Client`                   | `lean`                               |
|--------------------------------------------------|----------------------------|--------------------------------------|
| GET; query or keys as a body; snapshot with pin  | retried                    | retried                              |
| renew or release a snapshot                      | sent once                  | retried: snapshots outlive a restart |
| snapshot without a pin: each makes another one   | sent once                  | is never sent                        |

The longest pause doubles from `FIRST_PAUSE_S` up to `LONGEST_PAUSE_S`. The actual pause is a random part of it, so that
many clients do not return at once, in addition to the answer's `Retry-After`. If the next attempt would be after the
time limit, the failure is raised at once.
"""

from __future__ import annotations

import math
import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from stateline.problem_kinds import RETRIED_STATUSES

PASSING = RETRIED_STATUSES | {502, 504}
"""Statuses after which a read is retried: those of the table of problems, and a gateway's."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Pauses:
    """The pauses between attempts of one request or stream. For one thread or task."""

    def __init__(self, patience_s: float, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._patience_s, self._first_s, self._longest_s = patience_s, first_s, longest_s
        self.failed = 0
        self.restart_clock()

    @property
    def left_s(self) -> float:
        """Seconds left for attempts."""
        return self._end_s - time.monotonic()

    def restart_clock(self) -> None:
        """Restart the time limit."""
        self._end_s = time.monotonic() + self._patience_s

    def succeeded(self) -> None:
        """Restart the time limit, and begin with the shortest pause again."""
        self.failed = 0
        self.restart_clock()

    def next_s(self, retry_after_s: float) -> float | None:
        """Return the seconds to wait after one more failure. None if no time is left for another attempt."""
        longest_s = min(self._first_s * 2**self.failed, self._longest_s)
        self.failed = min(self.failed + 1, 60)
        pause_s = retry_after_s + random.uniform(0, longest_s)
        return pause_s if pause_s < self.left_s else None


def retry_after_s(text: str, now: datetime) -> float | None:
    """Return the seconds of `Retry-After`, which has seconds or a date (RFC 9110, 10.2.3). None if it is neither."""
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:  # that is 31 years
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    until_s = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return max(until_s, 0.0) if math.isfinite(until_s) else None
