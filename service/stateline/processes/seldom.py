"""Limit log lines that strangers can cause by repeated requests, so that the disk does not fill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINE_INTERVAL_S = 1.0
SAME_LINE_INTERVAL_S = 60.0
_MOST_KINDS = 100


class Seldom:
    """Passes one line a second, and the same line once a minute. For one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said_s, self._said, self._left_out = -SAME_LINE_INTERVAL_S, "", 0

    def line(self, text: str, cause: str = "") -> str:
        """The text to log, with the number of lines left out before. Empty if this one is left out. Lines are equal if
        text and `cause` are."""
        now_s, said = self._now(), f"{text}\0{cause}"
        if now_s < self._said_s + (SAME_LINE_INTERVAL_S if said == self._said else LINE_INTERVAL_S):
            self._left_out += 1
            return ""
        more = f" ({self._left_out} more lines were left out before)" if self._left_out else ""
        self._said_s, self._said, self._left_out = now_s, said, 0
        return text + more


class _SeldomFilter(logging.Filter):
    """Applies `Seldom` to each kind of message of a logger, from INFO on."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, Seldom] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        kind = str(record.msg)
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        line = self._kinds.setdefault(kind, Seldom()).line(record.getMessage().rstrip(), _raised_at(record))
        record.msg, record.args = line, ()
        return bool(line)


def _raised_at(record: logging.LogRecord) -> str:
    """Type and place of the record's exception, empty without one."""
    kind, _, traceback = record.exc_info or (None, None, None)
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else f"{kind} {traceback.tb_frame.f_code.co_filename} {traceback.tb_lineno}"


def seldom(name: str) -> logging.Logger:
    """The logger of this name, limited by `Seldom` from now on."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, _SeldomFilter) for each in logger.filters):
        logger.addFilter(_SeldomFilter())
    return logger
