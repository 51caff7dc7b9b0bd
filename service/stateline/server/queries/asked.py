"""`Asked`: what a request demands, whatever its query."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from stateline.query.values import Terms
from stateline.server.state.partitions import ServedStore


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read: the store, the terms, and where and for how long to look."""

    store: ServedStore
    terms: Terms
    partitions: tuple[int, ...] | range
    wait_ms: int
    allow_partial: bool
    deadline_s: float | None = None
    """Until when, on the loop's clock; None for a single look, and until it begins."""

    def from_now(self) -> Asked:
        """The same, begun: on the event loop's thread."""
        if not self.wait_ms:
            return self
        return replace(self, deadline_s=asyncio.get_running_loop().time() + self.wait_ms / 1000)
