"""Whether a worker whose last starts have failed stays out of its group for a while, so that others run its tasks.

| its last two starts have failed, and             | then                                                              |
|--------------------------------------------------|-------------------------------------------------------------------|
| a worker of another node has left, or failed,    | it joins, and its entry says so: every worker fails at the same   |
| within the last hour; or this one has stayed     | record, and its tasks would only move around                      |
| no other node has a worker in the group          | it joins: nobody else could run its tasks                         |
| none of these                                    | it leaves the group, its entry says so, and it rests for 30 s,    |
|                                                  | each time twice as long, before it joins again                    |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from time import monotonic

from stateline.deployment.workers.entries import FaultEntry, WorkerEntries, WorkerEntry
from stateline.deployment.workers.failed_starts import FailedStarts
from stateline.worker.group.fitness import Fitness
from stateline_store.clock import now_ms

_log = logging.getLogger(__name__)

Known = Mapping[str, tuple[int, WorkerEntry]]
"""Each worker's newest entry by its name, with the entry's offset: `WorkerEntries.all`."""

FAILED_STARTS = 2
_FIRST_REST_S, _MOST_REST_S = 30.0, 600.0
_HOUR_MS = 3_600_000


class CrashLoop:
    def __init__(self, starts: FailedStarts, entries: WorkerEntries, name: str, fitness: Fitness) -> None:
        self._starts = starts
        self._entries = entries
        self._name = name
        self._fitness = fitness
        self._joins_s: float | None = None  # the end of its rest
        self._is_over = False  # it has rested, or need not rest

    def why_out(self, known: Known, leave: Callable[[], None], *, has_others: bool) -> str:
        """Return why the worker does not join now; empty if it does. `leave` takes a member of its name out of the
        group for good. `has_others`: the group has a worker of another node. Raises what the log raises."""
        failed = self._starts.count
        if failed < FAILED_STARTS or self._is_over:
            return ""
        if alike := failed_alike(self._entries, known, self._name):
            return self._stays(failed, alike)
        if self._joins_s is None and not has_others:
            return self._joins()
        rest_s = min(_FIRST_REST_S * 2 ** (failed - FAILED_STARTS), _MOST_REST_S)
        self._fitness.crashed = (
            f"Its last {failed} starts have failed, so it stays out of its group for {rest_s:g} s, and others run its "
            f"tasks. Its log says why it failed. Delete {self._starts.path} to have it join at once."
        )
        if self._joins_s is None:
            own_at = self._entries.say_fault(FaultEntry(stays=False))
            if alike := failed_alike(self._entries, self._entries.all(), self._name, before=own_at):
                return self._stays(failed, alike)
            leave()
            self._joins_s = monotonic() + rest_s
        if monotonic() >= self._joins_s or not self._starts.is_kept:
            return self._joins()
        return self._fitness.crashed

    def _stays(self, failed: int, alike: str) -> str:
        _log.error(
            "The last %d starts of this worker have failed, and others had to leave, too: %s. Every worker may "
            "fail at the same record. It joins its group.", failed, alike,
        )  # fmt: skip
        self._entries.say_fault(FaultEntry(stays=True))
        return self._joins()

    def _joins(self) -> str:
        self._joins_s, self._fitness.crashed = None, ""
        self._is_over = True
        return ""


def failed_alike(entries: WorkerEntries, known: Known, own: str, before: float = math.inf) -> str:
    """Name the workers of other nodes that had to leave, or could not, within the last hour. Without any, name this
    worker if it has stayed nevertheless. `before`: only entries before this offset count."""
    faults = entries.faults.items()
    recent = {name: f.entry for name, f in faults if now_ms() - f.at_ms < _HOUR_MS and f.offset < before}
    mine = recent.pop(own, None)
    node = known[own][1].directory if own in known else ""
    others = sorted(name for name in recent if name in known and known[name][1].directory != node)
    return ", ".join(others) or (own if mine is not None and mine.stays else "")
