"""Queries that are behind their bound and wait for it (`wait_ms`).

They wait in the worker, because it alone knows when uncommitted state changes. A query is looked at again when its
partition has changed. The time of a call is bounded: the next call begins with the queries that were not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stateline.query.values import Outcome, any_behind
from stateline.query.wire import WireRequest
from stateline.worker.queries.hosted_queries import HostedQueries, Place, Standing
from stateline.worker.queries.query_connection import QueryConnection
from stateline_store import StoreState

# One more query fails at once; its server may ask again.
MAX_WAITING = 1024


@dataclass(slots=True)
class _Waiting:
    """`standing` is that of the partition when the request was found to be behind."""

    client: QueryConnection
    request: WireRequest
    deadline_s: float
    standing: Standing


class WaitingQueries:
    """`answer` is called with the outcome of each."""

    def __init__(self, queries: HostedQueries, answer: Callable[[QueryConnection, WireRequest, Outcome], None]) -> None:
        self._queries = queries
        self._answer = answer
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, client: QueryConnection, request: WireRequest, outcome: Outcome) -> bool:
        """Let this request wait if its outcome is that it is behind. Returns whether it waits."""
        if request.wait_ms <= 0 or not any_behind((outcome,)) or len(self._waiting) >= MAX_WAITING:
            return False
        deadline_s = time.monotonic() + request.wait_ms / 1000
        self._waiting.append(_Waiting(client, request, deadline_s, self._queries.standing(_place(request))))
        return True

    def patience_s(self, timeout_s: float) -> float:
        if not self._waiting:
            return timeout_s
        nearest = min(waiting.deadline_s for waiting in self._waiting) - time.monotonic()
        return max(0.0, min(timeout_s, nearest))

    def answer_due(self, end_s: float) -> int:
        """Answer queries whose bound is met or whose time is up. Begins no look after `end_s`. Returns their number."""
        if not self._waiting:
            return 0
        standings = {place: self._queries.standing(place) for place in {_place(each.request) for each in self._waiting}}
        waiting, self._waiting = self._waiting, []
        still: list[_Waiting] = []
        looked_at = answered = 0
        now_s = time.monotonic()
        while looked_at < len(waiting) and now_s < end_s:
            each = waiting[looked_at]
            looked_at, now_s = looked_at + 1, time.monotonic()
            if each.client.closed:
                continue
            if self._waits_on(each, standings[_place(each.request)], now_s):
                still.append(each)
            else:
                answered += 1
        self._waiting = waiting[looked_at:] + still
        return answered

    def _waits_on(self, waiting: _Waiting, standing: Standing, now_s: float) -> bool:
        request, in_time = waiting.request, now_s < waiting.deadline_s
        if in_time and (standing == waiting.standing or self._is_behind(request, standing)):
            waiting.standing = standing
            return True
        outcome = self._queries.run(request)
        if in_time and any_behind((outcome,)):
            return True
        self._answer(waiting.client, request, outcome)
        return False

    def _is_behind(self, request: WireRequest, standing: Standing) -> bool:
        """Return whether the partition is behind. False if `HostedQueries.run` may fail for another reason."""
        if standing is None or (request.terms.require_active and standing[1] is not StoreState.ACTIVE):
            return False
        return self._queries.is_behind(request, standing[0])


def _place(request: WireRequest) -> Place:
    return request.terms.store, request.partition, request.terms.isolation_level
