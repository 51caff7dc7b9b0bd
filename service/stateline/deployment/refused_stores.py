"""Stores that no worker may run, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stateline_store import TopologyError


class StoresRefusedError(TopologyError):
    """No worker may run these stores. `reasons` says why, by store. With `keeps_rows` the last committed rows are
    right, and servers answer them; otherwise they answer the reason."""

    keeps_rows: ClassVar[bool] = False

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)
