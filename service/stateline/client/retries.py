"""When a request is sent again, and after how long: decided here, slept elsewhere."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from stateline.client.failures import RequestError, UnreachableError
from stateline.client.requests import Request
from stateline_store import StatelineError

_LEAST_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class Retries:
    """What is tried again. Only reads are: GET, and a query as a body; never what makes or ends a snapshot.

    A lost connection and these statuses are, after a pause that doubles from `first_pause_s` up to `longest_pause_s`,
    of which a random part is taken (so that many clients do not come back at once), and no shorter than the
    `Retry-After` of the answer. Nothing is begun that `deadline_s`, counted from the first attempt and with the
    query's own `wait_ms` added, leaves no time for: the last failure is raised then.

    412, a bound that was not reached, is not among the statuses: `wait_ms` is the better way to wait for it. Neither
    is 421, a partition that is elsewhere; name them to have them tried again.
    """

    deadline_s: float = 30.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    statuses: frozenset[int] = frozenset({429, 502, 503, 504})


NEVER = Retries(deadline_s=0.0)


class Attempts:
    """The attempts of one request. For one thread or task."""

    def __init__(self, policy: Retries, wait_ms: int = 0) -> None:
        self._policy = policy
        self._allowed_s = policy.deadline_s + wait_ms / 1000
        self._failed = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Count the deadline from now."""
        self._end_s = time.monotonic() + self._allowed_s

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._failed = 0
        self.restart_clock()

    def timeout_s(self, usual_s: float) -> float:
        """How long the attempt that is begun now may wait for the server; the first one as long as ever."""
        return usual_s if self._failed == 0 else min(usual_s, max(self._left_s(), _LEAST_TIMEOUT_S))

    def pause_s(self, request: Request, error: StatelineError) -> float | None:
        """How long to wait before the next attempt; None when there is none, and this failure is the answer."""
        if not request.is_read or not self._may_pass(error):
            return None
        longest_s = min(self._policy.first_pause_s * 2**self._failed, self._policy.longest_pause_s)
        self._failed = min(self._failed + 1, 60)
        asked_s = (error.problem.retry_after_s or 0.0) if isinstance(error, RequestError) else 0.0
        pause_s = asked_s + random.uniform(0, longest_s)
        return pause_s if pause_s < self._left_s() else None

    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def _may_pass(self, error: StatelineError) -> bool:
        if isinstance(error, RequestError):
            return error.problem.status in self._policy.statuses
        return isinstance(error, UnreachableError)
