"""The access log: one line per request, written by a thread of its own through the logger ``stateline.access``.

    method=GET route=/v1/stores/{store}/keys/{key} store=orders level=read_committed status=200 outcome=ok ms=0.412
    rows=1 bytes=312 token=dashboards client=10.0.0.7 request_id=9f2c1d0a77be-1c

For requests of another node over its link, ``node`` has its name. Messages that are no HTTP are of the method LINK.

With log.format=json these are members of the line's object. Empty members are left out. A line has no keys, values or
paths, because they may be personal.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
from typing import Literal, NamedTuple

from stateline.processes.logging import FIELDS
from stateline.server.telemetry.request_counts import Answered

# Lines that may wait for a slow reader of the log, about 2 MB of them; further ones are left out and counted.
MOST_WAITING = 10_000

_PLAIN = re.compile(r"[^\s\"=]+")

_log = logging.getLogger("stateline.access")


class RequestOrigin(NamedTuple):
    """The sender of a request: the token's name, the address without a port, the other node that asks for a client, and
    the request's id. Empty: unknown."""

    token: str = ""
    client: str = ""
    node: str = ""
    request_id: str = ""


class Line(NamedTuple):
    """One line of the access log."""

    method: str
    answered: Answered
    status: int
    seconds: float
    rows: int
    size: int | None
    origin: RequestOrigin

    def text(self) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in self.members().items())

    def members(self) -> dict[str, str | int | float]:
        """Return the members that are not empty."""
        found: dict[str, str | int | float | None] = {
            "method": self.method,
            **self.answered._asdict(),
            "status": self.status,
            "ms": round(self.seconds * 1000, 3),
            "rows": self.rows,
            "bytes": self.size,
            **self.origin._asdict(),
        }
        return {name: value for name, value in found.items() if value not in ("", None)}


class AccessLog:
    """Writes lines of all requests, or of slow and failed ones. `wants` and `write` are for one thread."""

    def __init__(self, mode: Literal["slow", "on"], slow_ms: int) -> None:
        self._slow_s = slow_ms / 1000 if mode == "slow" else 0.0
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._thread.start()

    def wants(self, seconds: float, status: int) -> bool:
        """Return whether a request with this duration and status is written."""
        return seconds >= self._slow_s or status >= 500

    def write(self, line: Line) -> bool:
        """Have this line written soon. Return False if it is left out, because too many wait. Never blocks."""
        if self._lines.qsize() >= MOST_WAITING:
            return False
        self._lines.put(line)
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the waiting lines. If the reader hangs for `timeout_s`, the rest is lost."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            message = f"{line.method} {line.answered.route}"  # of a line of JSON
            _log.info("%s", line.text(), extra={FIELDS: {"message": message, **line.members()}})


def _quoted(member: str | float) -> str:
    value = f"{member:.3f}" if isinstance(member, float) else str(member)
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
