"""One line on standard error that shows how far a command has come."""

from __future__ import annotations

import time
from typing import TextIO

_EVERY_S = 0.2
_WIDTH = 20


class Progress:
    """Writes nothing if standard error is no terminal. For one thread. `close` removes the line."""

    def __init__(self, stream: TextIO, what: str, total_bytes: int | None = None, unit: str = "records") -> None:
        """Without `total_bytes` there is no bar."""
        self._stream, self._what, self._total, self._unit = stream, what, total_bytes, unit
        self._is_shown = stream.isatty()
        self._next_s = 0.0
        self._length = 0

    def show(self, count: int, done_bytes: int = 0) -> None:
        if not self._is_shown or (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        share = min(done_bytes / self._total, 1.0) if self._total else None
        bar = "" if share is None else f" [{'#' * int(share * _WIDTH):<{_WIDTH}}] {share:4.0%}"
        text = f"{self._what}{bar} {count:,} {self._unit}"
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)

    def close(self) -> None:
        if self._length:
            self._stream.write("\r" + " " * self._length + "\r")
            self._stream.flush()
            self._length = 0
