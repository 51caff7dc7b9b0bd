"""Log lines of a process: text, or JSON (`log.format`).

Each line of JSON has `time` (UTC, ISO 8601), `level`, `message`, `node`, `application` and `process`. `node` and
`application` are missing before the settings are read. Lines of loggers also have `logger`, the fields their record
carries in `FIELDS`, and `error` with a traceback if there is one.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TextIO

import orjson

FIELDS = "stateline_fields"
"""Attribute of a log record: a mapping whose members become members of its JSON line."""

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
REPEAT_AFTER_S = 60.0
_MOST_KEPT = 1000  # different messages; beyond it all are forgotten
_VARIES = re.compile(r"\d+")  # ports, times, counts


class SaidOnce(logging.Filter):
    """Passes a message once a minute. Numbers make no difference: librdkafka repeats a message hundreds of times.

    Thread-safe, except that two equal messages at the same moment may both pass.
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
    """Formats each record as one line of JSON. `origin` has members that every line gets."""

    def __init__(self, origin: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__()
        self._origin = dict(origin)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _iso(record.created),
            "level": record.levelname,
            **self._origin,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _line(line)


def use_log_format(name: Literal["text", "json"], origin: Mapping[str, str] = MappingProxyType({})) -> None:
    """Use this format from now on; `set_up_logging` begins with text. JSON also logs Python's warnings and unhandled
    errors, which would be several lines of text otherwise."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines(origin) if name == "json" else logging.Formatter(LOG_FORMAT))
    logging.captureWarnings(name == "json")
    threading.excepthook = _log_thread_failure if name == "json" else threading.__excepthook__
    if name == "json":
        sys.excepthook, sys.unraisablehook = _log_failure, _log_unraisable
    elif sys.unraisablehook is _log_unraisable:
        sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__


def _log_thread_failure(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is None or issubclass(failed.exc_type, SystemExit):
        return
    name = "unknown" if failed.thread is None else failed.thread.name
    trace = (failed.exc_type, failed.exc_value, failed.exc_traceback)
    logging.getLogger("stateline").critical("Thread %s failed", name, exc_info=trace)


def _log_unraisable(failed: sys.UnraisableHookArgs) -> None:
    trace = (failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    logging.getLogger("stateline").error(
        "%s: %r", failed.err_msg or "Exception ignored in", failed.object, exc_info=trace
    )


def _log_failure(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("stateline").critical("The process failed", exc_info=(kind, failure, trace))


def say_error(message: str, traceback_of: BaseException | None = None) -> None:
    """Write the last line of a process that fails, after the traceback."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        logging.getLogger("stateline").critical("%s", message, exc_info=traceback_of)
        return
    if traceback_of is not None:
        traceback.print_exception(traceback_of)
    sys.stderr.write(f"error: {message}\n")


def last_words(line: str) -> str:
    """The message of a line that another process wrote with `say_error`."""
    said = _parsed(line)
    return line.removeprefix("error: ") if said is None else str(said.get("message", line))


def json_line_writer(origin: Mapping[str, str], stream: TextIO | None = None) -> Callable[[str, str], None]:
    """Return a function that writes a process's line as JSON to the stream, by default standard output. A line of text
    becomes the `message` of a JSON line with the current time and level INFO. A line of JSON keeps its members and gets
    missing ones."""

    def write(process: str, line: str) -> None:
        said = _parsed(line)
        lacking = {"time": _iso(time.time()), "level": "INFO", **origin, "message": line}
        content = lacking if said is None else {**lacking, "message": "", **said}
        output = stream or sys.stdout
        output.write(_line({**content, "process": process}) + "\n")
        output.flush()

    return write


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _line(content: dict[str, Any]) -> str:
    try:
        return orjson.dumps(content).decode()
    except orjson.JSONEncodeError:  # a surrogate, as in a file name that is not UTF-8
        return orjson.dumps({name: _whole(value) for name, value in content.items()}).decode()


def _whole(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def set_up_logging(verbosity: int) -> None:
    """Log everything above 0, including librdkafka's repetitions; events at 0; only warnings and errors below 0."""
    level = logging.DEBUG if verbosity > 0 else logging.WARNING if verbosity < 0 else logging.INFO
    logging.basicConfig(format=LOG_FORMAT, level=level, stream=sys.stderr)
    for chatty in ("py4j", "httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    if verbosity <= 0:
        logging.getLogger("stateline.kafka").addFilter(SaidOnce())
