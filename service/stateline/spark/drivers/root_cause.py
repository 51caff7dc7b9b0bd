"""Finds why a query failed, in one line, below the layers of exceptions that Spark adds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql.streaming.query import StreamingQuery

from stateline_store import RecordError, StatelineError, errors

_OURS = re.compile(r"stateline_store\.errors\.(\w+): (.*)")  # text of `in_one_line`, behind any prefix of Spark's
# Spark's error conditions (error-conditions.json).
_OTHER_STATE = re.compile(r"\[(STATE_STORE_\w*(SCHEMA|VARIABLE)\w*|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*)\]")


def root_cause(query: StreamingQuery, raised: Exception | None) -> str:
    """Return why a query failed, in one line. `raised` is the sink's error. The query's own exception has only its
    Python traceback, with the outermost Java exception."""
    return _deepest_cause(_java_exception(raised) or query._jsq.exception().get())


def start_cause(raised: Py4JJavaError | CapturedException) -> str:
    """Return why a query did not start, in one line. `raised` is the error of its start."""
    return _deepest_cause(_java_exception(raised))


def _deepest_cause(java: Any) -> str:
    """Return the deepest cause with a message, or the last line of a Python traceback."""
    found = [cause for cause in _causes(java) if str(cause.getMessage() or "").strip()]
    if not found:
        return first_line(str(java.toString()))
    message = str(found[-1].getMessage())
    if "Traceback (most recent call last)" in message:
        lines = [line for line in message.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning)?: ", line)]
        return lines[-1] if lines else first_line(message)
    if ours := _OURS.search(message):
        return ours[0]
    return f"{found[-1].getClass().getSimpleName()}: {first_line(message)}"


def kind_of(cause: str) -> type[StatelineError]:
    """Return the type of an error whose text alone Spark has kept. An error of `raise_error` is about a record: it
    returns until the code or the policy changes."""
    if "[USER_RAISED_EXCEPTION]" in cause:
        return RecordError
    named = _OURS.match(cause)
    kind = getattr(errors, named[1], None) if named else None
    return kind if isinstance(kind, type) and issubclass(kind, StatelineError) else StatelineError


def sentence_of(cause: str) -> str:
    """Return the cause without the class name of one of Stateline's errors."""
    ours = _OURS.match(cause)
    return cause if ours is None else ours[2]


def is_of_other_state(cause: str) -> bool:
    """Return whether the state in the checkpoint does not fit the query's operators: their code has changed."""
    return _OTHER_STATE.search(cause) is not None


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), text)


def _java_exception(raised: Exception | None) -> Any:
    if isinstance(raised, Py4JJavaError):
        return raised.java_exception
    return raised._origin if isinstance(raised, CapturedException) else None


def _causes(java: Any) -> Iterator[Any]:
    while java is not None:
        yield java
        java = java.getCause()
