"""A wall clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import timedelta

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError


class MovedClock:
    """A `stateline.processing.clock.Clock`. One thread uses it."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms

    def monotonic_ms(self) -> int:
        return self._at_ms

    def advance(self, by: int | timedelta) -> None:
        """Milliseconds, or a `timedelta`. Raises `InvalidArgumentError` for a time back, and for what is no time."""
        if not isinstance(by, int | timedelta):
            raise InvalidArgumentError(
                f"{shown(by)} is no time to move the wall clock by: give whole milliseconds, or a timedelta."
            )
        by_ms = by // timedelta(milliseconds=1) if isinstance(by, timedelta) else by
        if by_ms < 0:
            raise InvalidArgumentError(f"The wall clock goes forward alone, not by {by}: give a time from 0 on.")
        self._at_ms += by_ms
