"""How many records one slice of work takes, and how much memory the next one may stage. Pure."""

from __future__ import annotations

# A slice aims at this long: the most that an uncommitted query waits for, apart from a commit.
SLICE_S = 0.004
_MAX_RECORDS = 5_000


class Pace:
    """Learns from the slices so far."""

    def __init__(self) -> None:
        self.records = 500
        self._growth = 0

    def learn(self, records: int, seconds: float, growth_bytes: int) -> None:
        """A slice took this long and staged so much: fit the next one to `SLICE_S`, by at most a factor of two."""
        wanted = records * SLICE_S / max(seconds, 1e-6)
        self.records = int(min(max(wanted, self.records / 2, 1), self.records * 2, _MAX_RECORDS))
        self._growth = max(growth_bytes, self._growth // 2)

    def would_cross(self, staged_bytes: int, max_bytes: int) -> bool:
        """Whether the buffers are, or after the next slice are likely to be, beyond the limit (-1: none); KIP-892.

        Empty buffers never cross: one record may stage more than the limit, and a commit would not help.
        """
        return max_bytes >= 0 and staged_bytes > 0 and staged_bytes + self._growth > max_bytes
