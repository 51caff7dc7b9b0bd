"""`Traffic`: what this process has asked other nodes and answered to them, counted for ``/metrics``.

Plain numbers, so that a request pays a microsecond for it: `telemetry.node_metrics` tells Prometheus now and then what
has come together since.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stateline.problem_kinds import ERROR_CLASSES, PROBLEMS, problem_of
from stateline.query.values import Failure, Outcome
from stateline_store import StatelineError

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
# the outcome of a request whose node did not answer or hung up
UNANSWERED, CANCELLED = "unanswered", "cancelled"


class Latency:
    """Durations of requests: counts by bucket, of which the last has no upper edge, and their sum."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class Traffic:
    """Since it was taken last. For the event loop's thread. An outcome is "ok", the reason of a failure as HTTP has it,
    `UNANSWERED` or `CANCELLED`."""

    def __init__(self) -> None:
        self.forwards: Counter[tuple[str, str]] = Counter()
        """(node, outcome) → requests that it was asked."""
        self.latency: defaultdict[str, Latency] = defaultdict(Latency)
        """Node → how long these took, from here and back."""
        self.answers: Counter[tuple[str, str]] = Counter()
        """(node, outcome) → requests of it that were answered here."""
        self.failed_dials: Counter[str] = Counter()
        """Node → attempts to link with it that came to nothing."""
        self.copied_bytes: Counter[tuple[str, str]] = Counter()
        """(node, "sent" or "received") → bytes of stores' files that went there or came from there."""

    def forwarded(self, node: str, outcome: str, seconds: float) -> None:
        """This node was asked, and that is what came of it."""
        self.forwards[node, outcome] += 1
        self.latency[node].add(seconds)

    @contextmanager
    def forwarding(self, node: str) -> Iterator[Counted]:
        """The same of what the block asks of it, which says in the end what came of it."""
        counted, began_s = Counted(), time.perf_counter()
        try:
            yield counted
        except asyncio.CancelledError:
            counted.outcome = CANCELLED
            raise
        finally:
            self.forwarded(node, counted.outcome, time.perf_counter() - began_s)

    @contextmanager
    def answering(self, node: str, counted: Counted | None = None) -> Iterator[Counted]:
        """Count what the block answers to this node; errors that it raises are answers, too."""
        counted = counted or Counted()
        try:
            yield counted
        except asyncio.CancelledError:
            counted.outcome = CANCELLED
            raise
        except Exception as error:
            counted.outcome = problem_of(error).reason
            raise
        finally:
            self.answers[node, counted.outcome] += 1


class Counted:
    """One request, and what came of it."""

    def __init__(self) -> None:
        self.outcome = UNANSWERED
        self.store = self.level = ""
        """Of what is answered to another node: the store, and the isolation level of a query."""
        self.rows = 0
        """Entries that were answered."""

    def note(self, outcome: Outcome) -> None:
        """Count the outcome of a query."""
        self.outcome = problem_of(outcome.error).reason if isinstance(outcome, Failure) else "ok"
        self.rows = 0 if isinstance(outcome, Failure) else len(outcome.rows.entries)

    def note_reply(self, reply: Mapping[str, Any]) -> None:
        """Count the reply to a query or for more rows, which another process of this node has made."""
        told = reply.get("outcome", reply)
        error = told.get("error")
        self.outcome = "ok" if error is None else problem_of(ERROR_CLASSES.get(error, StatelineError)("")).reason
        self.rows = len(told["rows"]["entries"]) if "rows" in told else 0

    def note_status(self, status: int) -> None:
        """Count the outcome of an HTTP request."""
        self.outcome = _REASONS.get(status, "ok" if status < 400 else "STORE_EXCEPTION")


_REASONS = {problem.status: problem.reason for problem in reversed(PROBLEMS.values())}
