"""The access log: a line for each request, written by a thread of its own.

    method=GET route=/v1/stores/{store}/keys/{key} store=orders level=read_committed status=200 outcome=ok ms=0.412
    rows=1 bytes=312 token=dashboards

all in one line, through the logger ``stateline.access``. Members that say nothing are left out. There are neither
keys nor values nor paths in it: what clients ask for may be personal.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
from collections.abc import Iterator
from typing import Literal, NamedTuple

from stateline.server.telemetry.request_counts import Answered

# Lines that may wait for a slow reader of the log, about 2 MB of them; further ones are left out and counted.
MOST_WAITING = 10_000

_PLAIN = re.compile(r"[^\s\"=]+")

_log = logging.getLogger("stateline.access")


class Line(NamedTuple):
    """What is written of one request."""

    method: str
    answered: Answered
    status: int
    seconds: float
    rows: int
    size: int
    token: str

    def text(self) -> str:
        """As it is written, without a line break."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in self._members() if value)

    def _members(self) -> Iterator[tuple[str, str]]:
        yield "method", self.method
        yield from self.answered._asdict().items()
        yield "status", str(self.status)
        yield "ms", f"{self.seconds * 1000:.3f}"
        yield "rows", str(self.rows)
        yield "bytes", str(self.size)
        yield "token", self.token


class AccessLog:
    """Writes lines of all requests, or of slow and failed ones. `wants` and `write` are for one thread."""

    def __init__(self, mode: Literal["slow", "on"], slow_ms: int) -> None:
        self._slow_s = slow_ms / 1000 if mode == "slow" else 0.0
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._thread.start()

    def wants(self, seconds: float, status: int) -> bool:
        """Whether a request that took so long and ended so is written."""
        return seconds >= self._slow_s or status >= 500

    def write(self, line: Line) -> bool:
        """Have this line written soon. False when it is left out, because too many wait. Never blocks."""
        if self._lines.qsize() >= MOST_WAITING:
            return False
        self._lines.put(line)
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits; what a reader that hangs does not take in this time is lost."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            _log.info("%s", line.text())


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
