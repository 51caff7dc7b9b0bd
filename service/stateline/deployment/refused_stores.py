"""Stores that no worker may run, and why."""

from __future__ import annotations

from collections.abc import Mapping

from stateline_store import TopologyError


class StoresRefusedError(TopologyError):
    """No worker may run these stores. `reasons` says why, by store: servers answer it in place of rows."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)
