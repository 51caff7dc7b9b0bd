"""What a micro-batch came to, and how long its steps took."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a micro-batch came to: records written (a replay writes none), and how long each step took."""

    batch_id: int
    rows: int = 0
    tombstones: int = 0
    dead_lettered: int = 0
    compute_ms: int = 0
    arrange_ms: int = 0
    produce_ms: int = 0
    commit_ms: int = 0


class StepClock:
    """How long each step of a micro-batch took, since `started_s` of the monotonic clock."""

    def __init__(self, started_s: float) -> None:
        self.steps_ms: dict[str, int] = {}
        self._since_s = started_s

    def passed(self, step: str) -> None:
        """The step ends now, and the next one begins. Of one that is done again the last time counts."""
        now_s = time.monotonic()
        self.steps_ms[f"{step}_ms"] = round((now_s - self._since_s) * 1000)
        self._since_s = now_s
