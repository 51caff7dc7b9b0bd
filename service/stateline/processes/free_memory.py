"""How much memory this machine has to spare."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def free_bytes() -> int | None:
    """Memory that is available without swapping; None if the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
