"""What a window or session store must do, in the plainest way: a dict, a stream time, and a copy of both per commit.

A row is (key, time, other): (key, start, sequence) of a window, (key, end, start) of a session. Its time decides in
which segment it is and when it expires.
"""

import struct
from copy import deepcopy
from dataclasses import dataclass, field

from stateline_store import IsolationLevel

Row = tuple[bytes, int, int]


@dataclass
class State:
    """Rows, and the largest time and sequence put so far."""

    rows: dict[Row, bytes] = field(default_factory=dict)
    stream_time: int = -1
    sequence: int = 0


class Oracle:
    """A store of one process: `now` is staged over committed."""

    def __init__(self, retention: int, suffix: str) -> None:
        self.retention = retention
        self.interval = max(retention // 2, 60_000)
        self.suffix = suffix
        self.now, self.committed = State(), State()
        self.dropped = 0

    def put(self, key: bytes, time: int, other: int, value: bytes | None, *, counted: bool = True) -> bool:
        """Whether it was taken: not when its whole segment is older than stream time - retention."""
        stream_time = max(self.now.stream_time, time)
        if time // self.interval < (stream_time - self.retention) // self.interval:
            self.dropped += counted
            return False
        self.now.stream_time = stream_time
        if value is None:
            self.now.rows.pop((key, time, other), None)
        else:
            self.now.rows[key, time, other] = value
        return True

    def commit(self) -> None:
        self.committed = deepcopy(self.now)

    def rollback(self) -> None:
        self.now = deepcopy(self.committed)

    def reopen(self, *, persistent: bool) -> None:
        """What a closed store keeps."""
        if not persistent:
            self.committed = State()
        self.rollback()
        self.dropped = 0

    def seen(self, level: IsolationLevel, *, reverse: bool = False) -> list[tuple[Row, bytes]]:
        """What reads show: nothing of `retention` or more before stream time; by segment, then by row key."""
        state = self.now if level is IsolationLevel.READ_UNCOMMITTED else self.committed
        live = [(row, value) for row, value in state.rows.items() if row[1] > state.stream_time - self.retention]
        return sorted(live, key=lambda item: self.order(item[0]), reverse=reverse)

    def order(self, row: Row) -> tuple[int, bytes]:
        key, time, other = row
        return time // self.interval, key + struct.pack(self.suffix, time, other)
