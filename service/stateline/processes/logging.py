"""What the command line writes to standard error as it goes: lines of text, or of JSON (`log.format`).

A line of JSON has `time` (UTC, ISO 8601), `level`, `logger` and `message`, `error` with a traceback where
there is one, and `process` where a supervisor passed it on.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

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


class JsonLines(logging.Formatter):
    """Each record as one line of JSON, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _line(line)


def use_log_format(name: Literal["text", "json"]) -> None:
    """Write in this format from now on. `set_up_logging` begins with text: settings are read later."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines() if name == "json" else logging.Formatter(LOG_FORMAT))


def say_error(message: str) -> None:
    """What ends the process: its last line."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        logging.getLogger("stateline").critical("%s", message)
    else:
        sys.stderr.write(f"error: {message}\n")


def last_words(line: str) -> str:
    """The message of a line that `say_error` wrote in another process."""
    said = _parsed(line)
    return line.removeprefix("error: ") if said is None else str(said.get("message", line))


def write_json_line(process: str, line: str) -> None:
    """A line of a supervised process on standard output, as JSON with its process's name whatever it was before."""
    said = _parsed(line)
    sys.stdout.write(_line({"process": process, **({"message": line} if said is None else said)}) + "\n")
    sys.stdout.flush()


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _line(content: dict[str, Any]) -> str:
    try:
        return orjson.dumps(content).decode()
    except orjson.JSONEncodeError:  # half of a character, as in a file name that is not UTF-8
        return orjson.dumps({name: _whole(value) for name, value in content.items()}).decode()


def _whole(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def set_up_logging(verbosity: int) -> None:
    """Above 0 everything, the repetitions of librdkafka too; 0 what happens; below 0 only what goes wrong."""
    level = logging.DEBUG if verbosity > 0 else logging.WARNING if verbosity < 0 else logging.INFO
    logging.basicConfig(format=LOG_FORMAT, level=level, stream=sys.stderr)
    for chatty in ("py4j", "httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    if verbosity <= 0:
        logging.getLogger("stateline.kafka").addFilter(SaidOnce())
