"""When a request is sent again, and after how long: decided here, slept elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from stateline.client.failures import RequestError, UnreachableError
from stateline.client.passing import FIRST_PAUSE_S, LONGEST_PAUSE_S, PASSING, Pauses
from stateline.client.requests import Request
from stateline.problem_kinds import ELSEWHERE_STATUS
from stateline_store import StatelineError

_LEAST_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class Retries:
    """Which requests are retried, by the table of `passing`: reads, never requests that make or end a snapshot.

    The pauses double from `first_pause_s` up to `longest_pause_s`, and are no shorter than the `Retry-After` of the
    answer. Nothing is begun that `deadline_s`, counted from the first attempt and with the query's own `wait_ms` added,
    leaves no time for: the last failure is raised then.

    412, a bound that was not reached, is not among the statuses: `wait_ms` is the better way to wait for it. 421, a
    partition that is elsewhere, is tried again where there are several nodes, for it may be on its way from one to
    another; where there is one it is final, unless it is named.
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
        """How long the attempt that is begun now may wait for the server; the first one as long as ever."""
        return usual_s if self._pauses.failed == 0 else min(usual_s, max(self._pauses.left_s, _LEAST_TIMEOUT_S))

    @property
    def left_s(self) -> float:
        """How long there may still be attempts."""
        return self._pauses.left_s

    def pause_s(self, request: Request, error: StatelineError, *, several: bool = False) -> float | None:
        """How long to wait before the next attempt; None when there is none, and this failure is the answer.
        `several`: there are several nodes."""
        if not request.is_read or not self._may_pass(error, several=several):
            return None
        return self._pauses.next_s((error.problem.retry_after_s or 0.0) if isinstance(error, RequestError) else 0.0)

    def _may_pass(self, error: StatelineError, *, several: bool) -> bool:
        if isinstance(error, RequestError):
            status = error.problem.status
            return status in self._policy.statuses or (several and status == ELSEWHERE_STATUS)
        return isinstance(error, UnreachableError)
