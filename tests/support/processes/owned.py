"""Ownership where a test has no workers: every task is run by one that is there."""

from __future__ import annotations

from stateline.model.store_definition import StoreDefinition
from stateline.query.values import CopyStatus, Terms
from stateline.server.state.ownership import Ownership
from stateline_store import NotActiveError


class Owned(Ownership):
    """Of all tasks."""

    def __init__(self) -> None:
        self.place = "here"

    def is_active(self, task_id: str) -> bool:
        return True

    def with_lag(self, copy: CopyStatus, *_: object, **__: object) -> CopyStatus:
        return copy

    def is_owned(self, task_id: str) -> bool:
        return True

    def left(self, store: StoreDefinition, partition: int, generation: int, committed_at_ms: int) -> None:
        pass

    def refusal(
        self, task_id: str, terms: Terms, partition: int, copy: CopyStatus, *, given_back: bool, is_whole: bool
    ) -> NotActiveError | None:
        return None
