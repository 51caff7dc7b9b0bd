"""How long tests wait for what never comes."""

from __future__ import annotations

HANGING_S = 600.0
"""What does not move for so long hangs. It decides nothing about speed: a machine may have much else to do."""
