"""Which requests are retried, and when: the rules of `Client`, `AsyncClient` and `lean`. Statuses come from
`problem_kinds`.

| what happened                                           | `Client`            | `lean`                             |
|---------------------------------------------------------|---------------------|------------------------------------|
| no answer: refused, lost, timed out                     | tried again         | tried again                        |
| 429, 502, 503, 504                                      | tried again         | tried again                        |
| 421, the partition is on another server                 | tried again, where  | tried again, of the next server    |
|                                                         | there are several   |                                    |
| any other status                                        | final               | final                              |

| what was sent                                           | `Client`            | `lean`                             |
|---------------------------------------------------------|---------------------|------------------------------------|
| GET; a query or keys as a body; a snapshot with a pin   | tried again         | tried again                        |
| a lease renewed, a snapshot released                    | sent once           | tried again: it outlives a restart |
| a snapshot without a pin, which would be another one    | sent once           | is never sent                      |

The pause before each attempt doubles from `FIRST_PAUSE_S` up to `LONGEST_PAUSE_S`, of which a random part is taken (so
that many clients do not come back at once), behind the `Retry-After` of the answer. There is no attempt without time
left for it: who is to ask again later than that gets the failure at once.
"""

from __future__ import annotations

import math
import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from stateline.problem_kinds import RETRIED_STATUSES

PASSING = RETRIED_STATUSES | {502, 504}
"""Statuses after which a read is sent again: those of the table, and a gateway's."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Pauses:
    """The pauses between the attempts of one request, or of one stream. For one thread or task."""

    def __init__(self, patience_s: float, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._patience_s, self._first_s, self._longest_s = patience_s, first_s, longest_s
        self.failed = 0
        self.restart_clock()

    @property
    def left_s(self) -> float:
        """How long there may still be attempts."""
        return self._end_s - time.monotonic()

    def restart_clock(self) -> None:
        """Have as much patience again."""
        self._end_s = time.monotonic() + self._patience_s

    def succeeded(self) -> None:
        """Begin with the shortest pause again, and with as much patience."""
        self.failed = 0
        self.restart_clock()

    def next_s(self, retry_after_s: float) -> float | None:
        """How long to wait after one more failure; None when there is no time left for another attempt."""
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
