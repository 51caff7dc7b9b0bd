"""The error for stores that no worker may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stateline_store import TopologyError


class StoresRefusedError(TopologyError):
    """`reasons` is by store. With `keeps_rows` servers answer the last committed rows, otherwise the reason."""

    keeps_rows: ClassVar[bool] = False

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)
