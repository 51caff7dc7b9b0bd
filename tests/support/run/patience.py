"""How long tests wait for what never comes."""

from __future__ import annotations

HANGING_S = 240.0
"""What does not move for so long hangs. It decides nothing about speed: a machine may have much else to do.
Less than half of a test's own limit, so that a test says what it waited for."""

PATIENT = f"sql.timeout.ms={HANGING_S * 1000:.0f}"
"""A setting: ten seconds, as it is unless told, may be over before a query process has started on a busy machine."""


MOST_PAUSE_S = 0.1


def pause_s(waited_s: float, most_s: float = MOST_PAUSE_S) -> float:
    """How long to sleep before one looks again: looking takes processor time from what is waited for."""
    return min(max(0.005, waited_s / 20), most_s)
