"""How long tests wait for what never comes."""

from __future__ import annotations

HANGING_S = 600.0
"""What does not move for so long hangs. It decides nothing about speed: a machine may have much else to do."""


MOST_PAUSE_S = 0.1


def pause_s(waited_s: float, most_s: float = MOST_PAUSE_S) -> float:
    """How long to sleep before one looks again: looking takes processor time from what is waited for."""
    return min(max(0.005, waited_s / 20), most_s)
