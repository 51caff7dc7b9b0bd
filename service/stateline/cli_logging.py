"""What the command line writes to standard error as it goes."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
REPEAT_AFTER_S = 60.0
_MOST_KEPT = 1000  # of different messages; beyond it they are forgotten and may be said again
_VARIES = re.compile(r"\d+")  # ports of the client, times, counts, numbers of clients


class SaidOnce(logging.Filter):
    """Lets a message pass once a minute, whatever numbers are in it: librdkafka says the same hundreds of times.

    Any thread may log through it; two that say the same at the same moment may both be heard.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = _VARIES.sub("0", record.getMessage().split(" (after ", 1)[0])
        now = self._now()
        if now - self._said.get(text, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        if len(self._said) >= _MOST_KEPT:
            self._said.clear()
        self._said[text] = now
        return True


def set_up_logging(verbosity: int) -> None:
    """Above 0 everything, the repetitions of librdkafka too; 0 what happens; below 0 only what goes wrong."""
    level = logging.DEBUG if verbosity > 0 else logging.WARNING if verbosity < 0 else logging.INFO
    logging.basicConfig(format=LOG_FORMAT, level=level, stream=sys.stderr)
    for chatty in ("py4j", "httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    if verbosity <= 0:
        logging.getLogger("stateline.kafka").addFilter(SaidOnce())
