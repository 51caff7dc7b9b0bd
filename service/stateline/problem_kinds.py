"""The one table of failed requests: error class, reason, HTTP status, and whether clients retry.

It stands beside the error tree of `stateline_store.errors`. Server, wire, clients and `docs/reference/errors.md` derive
from it. It imports the standard library and the error tree only.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from stateline_store.errors import (
    CursorExpiredError,
    DoesNotExistError,
    ForbiddenError,
    InvalidArgumentError,
    McpNotInstalledError,
    NewerFormatError,
    NotAcceptableError,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    SqlInvalidError,
    SqlNotAllowedError,
    SqlNotInstalledError,
    SqlTimeoutError,
    SqlTooLargeError,
    StatelineError,
    TooManyRequestsError,
    UnauthenticatedError,
    UnknownQueryTypeError,
)


class Retried(Enum):
    """Whether clients send a read again after this reason, unless their caller says otherwise."""

    NO = "no"
    LATER = "yes"
    ELSEWHERE = "with several nodes"


class ProblemKind(NamedTuple):
    """One row of the table."""

    reason: str
    status: int
    when: str
    retried: Retried = Retried.NO


# The row of an error is that of its nearest class here. The first row of a reason names the class that stands for it.
PROBLEMS: dict[type[Exception], ProblemKind] = {
    UnknownQueryTypeError: ProblemKind("UNKNOWN_QUERY_TYPE", 400, "This kind of store cannot answer this query."),
    SqlInvalidError: ProblemKind("SQL_INVALID", 422, "The statement cannot be parsed, bound or run."),
    SqlNotAllowedError: ProblemKind("SQL_NOT_ALLOWED", 403, "The statement is not one SELECT over stores."),
    SqlTooLargeError: ProblemKind(
        "SQL_TOO_LARGE", 413, "The statement reads or returns too much, or needs too much memory."
    ),
    SqlTimeoutError: ProblemKind("SQL_TIMEOUT", 504, "The statement did not end in time."),
    SqlNotInstalledError: ProblemKind("SQL_NOT_INSTALLED", 501, "DuckDB is not installed: the extra `sql`."),
    McpNotInstalledError: ProblemKind("MCP_NOT_INSTALLED", 501, "The MCP SDK is not installed: the extra `mcp`."),
    InvalidArgumentError: ProblemKind(
        "INVALID_ARGUMENT", 422, "The server cannot read a parameter, the path or the body."
    ),
    NotAcceptableError: ProblemKind("NOT_ACCEPTABLE", 406, "This query does not have the requested format."),
    UnauthenticatedError: ProblemKind("UNAUTHENTICATED", 401, "The request has no valid token."),
    ForbiddenError: ProblemKind("FORBIDDEN", 403, "The token may not do this, or a page of another site asks."),
    DoesNotExistError: ProblemKind(
        "DOES_NOT_EXIST", 404, "There is no such store, partition, cursor, snapshot or path."
    ),
    CursorExpiredError: ProblemKind(
        "CURSOR_EXPIRED", 410, "The state behind a cursor, a snapshot or a place in a change feed is gone."
    ),
    NotUpToBoundError: ProblemKind(
        "NOT_UP_TO_BOUND", 412, "The copy was still behind `position_bound` after `wait_ms`."
    ),
    NotPresentError: ProblemKind("NOT_PRESENT", 421, "No machine that answers has the partition.", Retried.ELSEWHERE),
    TooManyRequestsError: ProblemKind("TOO_MANY_REQUESTS", 429, "The request reached a limit.", Retried.LATER),
    NotActiveError: ProblemKind(
        "NOT_ACTIVE", 503, "Only the owner may answer, and this node does not have the active copy.", Retried.LATER
    ),
    NotReadyError: ProblemKind(
        "NOT_READY", 503, "The server starts or stops, or cannot read the state.", Retried.LATER
    ),
    NewerFormatError: ProblemKind("NOT_READY", 503, "A newer version of Stateline wrote the state.", Retried.LATER),
    Exception: ProblemKind("STORE_EXCEPTION", 500, "Something unexpected failed. See the server's log."),
}
RETRIED_STATUSES = frozenset(row.status for row in PROBLEMS.values() if row.retried is Retried.LATER)
ELSEWHERE_STATUS = PROBLEMS[NotPresentError].status

ERROR_CLASSES: dict[str, type[StatelineError]] = {
    kind.__name__: kind for kind in PROBLEMS if issubclass(kind, StatelineError)
}
_BY_REASON = {PROBLEMS[kind].reason: kind for kind in reversed(ERROR_CLASSES.values())}
_BY_STATUS = {PROBLEMS[kind].status: kind for kind in reversed(ERROR_CLASSES.values())}


def row_of(kind: type[Exception]) -> ProblemKind:
    """The row of errors of this class."""
    return next(PROBLEMS[each] for each in kind.__mro__ if each in PROBLEMS)


def problem_of(error: Exception) -> ProblemKind:
    return row_of(type(error))


def error_of(reason: str, detail: str, status: int = 0) -> StatelineError:
    """The error for an answer's reason, or for its HTTP status if the reason is unknown."""
    return (_BY_REASON.get(reason) or _BY_STATUS.get(status, StatelineError))(detail)
