"""Why a query failed, in one line: what Spark wraps again and again on the way to Python and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql.streaming.query import StreamingQuery

from stateline_store import RecordError, StatelineError, errors

_OURS = re.compile(r"stateline_store\.errors\.(\w+): (.*)")  # of `in_one_line`, whatever Spark has put before it
# Spark's error conditions (error-conditions.json).
_OTHER_STATE = re.compile(r"\[(STATE_STORE_\w*(SCHEMA|VARIABLE)\w*|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*)\]")


def root_cause(query: StreamingQuery, raised: Exception | None) -> str:
    """The deepest cause that says anything, in one line; of a Python traceback the last line.

    `raised` is what the sink ended with: of that the query's own exception knows the Python traceback alone, which has
    of Java's exceptions the outermost.
    """
    java = _java_exception(raised)
    found = [cause for cause in _causes(java or query._jsq.exception().get()) if str(cause.getMessage() or "").strip()]
    message = str(found[-1].getMessage() if found else query.exception())
    if "Traceback (most recent call last)" in message:
        lines = [line for line in message.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning)?: ", line)]
        return lines[-1] if lines else first_line(message)
    if ours := _OURS.search(message):
        return ours[0]
    kind = found[-1].getClass().getSimpleName() if found else "StreamingQueryException"
    return f"{kind}: {first_line(message)}"


def kind_of(cause: str) -> type[StatelineError]:
    """The type of an error of which Spark has kept the text only.

    What `raise_error` raised is about a record: it comes again until the code or the policy changes.
    """
    if "[USER_RAISED_EXCEPTION]" in cause:
        return RecordError
    named = _OURS.match(cause)
    kind = getattr(errors, named[1], None) if named else None
    return kind if isinstance(kind, type) and issubclass(kind, StatelineError) else StatelineError


def sentence_of(cause: str) -> str:
    """The cause without the name that one of Stateline's own errors has in it: `kind_of` says the same."""
    ours = _OURS.match(cause)
    return cause if ours is None else ours[2]


def is_of_other_state(cause: str) -> bool:
    """Whether the state in the checkpoint is not as the query's operators want it: their code has changed."""
    return _OTHER_STATE.search(cause) is not None


def first_line(text: str) -> str:
    """The first line that has anything in it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), text)


def _java_exception(raised: Exception | None) -> Any:
    if isinstance(raised, Py4JJavaError):
        return raised.java_exception
    return raised._origin if isinstance(raised, CapturedException) else None


def _causes(java: Any) -> Iterator[Any]:
    """A Java exception, its cause, and so on."""
    while java is not None:
        yield java
        java = java.getCause()
