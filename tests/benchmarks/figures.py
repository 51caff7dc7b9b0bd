"""How the benchmarks take and print their figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def latencies(seconds: Sequence[float]) -> str:
    """Median and 99th percentile, as printed."""
    median, p99 = statistics.median(seconds), percentile(seconds, 0.99)
    return f"median {median * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms of {len(seconds):,}"


def at_least(name: str, figure: float, target: float, unit: str = "") -> None:
    """Print a figure that should not be below its target."""
    _report(name, figure, f"≥ {target:g}{unit}", unit, met=figure >= target)


def at_most(name: str, figure: float, target: float, unit: str = "") -> None:
    """Print a figure that should not be above its target."""
    _report(name, figure, f"≤ {target:g}{unit}", unit, met=figure <= target)


def _report(name: str, figure: float, target: str, unit: str, *, met: bool) -> None:
    print(f"{name}: {figure:.2f}{unit} (target {target}: {'met' if met else 'MISSED'})", flush=True)
