"""Decide whether a request is retried, and after which pause. The transports sleep."""

from __future__ import annotations

from dataclasses import dataclass

from stateline.client.failures import RequestError, SqlTimeoutError, UnreachableError
from stateline.client.passing import FIRST_PAUSE_S, LONGEST_PAUSE_S, PASSING, Pauses
from stateline.client.requests import Request
from stateline.problem_kinds import ELSEWHERE_STATUS
from stateline_store import StatelineError

_LEAST_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class Retries:
    """Settings of retries. `passing` has the table: reads are retried, requests that make or end a snapshot never.

    - The longest pause doubles from `first_pause_s` up to `longest_pause_s`. A pause is at least `Retry-After`.
    - No attempt begins after `deadline_s` plus the query's `wait_ms`, from the first attempt on. The client then raises
      the last failure.
    - `statuses` are retried. 412 (bound not reached) is not one of them, because `wait_ms` waits better.
    - 421 (partition elsewhere) is also retried with several nodes, because the partition may be moving.
    """

    deadline_s: float = 30.0
    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    statuses: frozenset[int] = PASSING


NEVER = Retries(deadline_s=0.0)


class Attempts:
    """The attempts of one request. For one thread or task."""

    def __init__(self, policy: Retries, wait_ms: int = 0) -> None:
        self._policy = policy
        self._pauses = Pauses(policy.deadline_s + wait_ms / 1000, policy.first_pause_s, policy.longest_pause_s)
        self.restart_clock, self.succeeded = self._pauses.restart_clock, self._pauses.succeeded

    def timeout_s(self, usual_s: float) -> float:
        """Return the timeout of the next attempt: `usual_s` for the first, later at most the time left."""
        return usual_s if self._pauses.failed == 0 else min(usual_s, max(self._pauses.left_s, _LEAST_TIMEOUT_S))

    @property
    def left_s(self) -> float:
        """Seconds left for attempts."""
        return self._pauses.left_s

    def pause_s(self, request: Request, error: StatelineError, *, several: bool = False) -> float | None:
        """Return the seconds to wait before the next attempt. None: raise this failure. `several`: there are several
        nodes."""
        if not request.is_read or not self._may_pass(error, several=several):
            return None
        return self._pauses.next_s((error.problem.retry_after_s or 0.0) if isinstance(error, RequestError) else 0.0)

    def _may_pass(self, error: StatelineError, *, several: bool) -> bool:
        if isinstance(error, SqlTimeoutError):
            return False  # it has the status of a gateway's failure, and would time out again
        if isinstance(error, RequestError):
            status = error.problem.status
            return status in self._policy.statuses or (several and status == ELSEWHERE_STATUS)
        return isinstance(error, UnreachableError)
