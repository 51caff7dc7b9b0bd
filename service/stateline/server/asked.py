"""`Asked`: what a request demands, whatever its query."""

from __future__ import annotations

from dataclasses import dataclass

from stateline.query import Terms
from stateline.server.partitions import ServedStore


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read: the store, the terms, and where and until when to look (`wait_ms` from now; on the
    loop's clock)."""

    store: ServedStore
    terms: Terms
    partitions: tuple[int, ...] | range
    deadline_s: float | None
    wait_ms: int
    allow_partial: bool
