"""The client's exceptions: one for each reason of HTTP. Each is also the store library's error of that name.

    StatelineError
    ├── RequestError              the server refused; `problem` says why and where
    │   ├── … one class for each reason, as in `BY_REASON`
    │   └── UnexpectedAnswerError     the answer is not Stateline's
    └── UnreachableError          (a RetryLaterError) no answer arrived: connection refused, lost, timed out

`except stateline_store.NotUpToBoundError` also catches the client's error. `except RetryLaterError` catches every
failure that may succeed later.
"""

from __future__ import annotations

from stateline.client.results import Problem
from stateline.problem_kinds import row_of
from stateline_store import RetryLaterError, StatelineError, errors


class RequestError(StatelineError):
    """The server answered with a failure. `problem` has all of it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem.reason} ({self.problem.status}): {self.problem.detail}"


class UnreachableError(RetryLaterError):
    """No answer arrived: there is no server, the connection was lost, or time ran out. `sent` is False if the request
    was certainly not sent, because there was no connection."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class UnexpectedAnswerError(RequestError):
    """The answer is not Stateline's: another program listens there, or a newer server."""


class GatewayError(RequestError, RetryLaterError):
    """Something between client and server answered, with status 429, 502, 503 or 504."""


class UnknownQueryTypeError(RequestError, errors.UnknownQueryTypeError):
    """This kind of store cannot answer this query."""


class InvalidArgumentError(RequestError, errors.InvalidArgumentError):
    """The server cannot read an argument: correct the call."""


class NotAcceptableError(RequestError, errors.NotAcceptableError):
    """This query does not have the requested format."""


class SqlInvalidError(RequestError, errors.SqlInvalidError):
    """A statement cannot be parsed, bound or run. The message has the place."""


class SqlNotAllowedError(RequestError, errors.SqlNotAllowedError):
    """A statement is not one SELECT over stores."""


class SqlTooLargeError(RequestError, errors.SqlTooLargeError):
    """A statement reads or returns too much, or needs too much memory: narrow it."""


class SqlTimeoutError(RequestError, errors.SqlTimeoutError):
    """A statement did not end in time: narrow it, or give it more time."""


class SqlNotInstalledError(RequestError, errors.SqlNotInstalledError):
    """The server has no DuckDB."""


class McpNotInstalledError(RequestError, errors.McpNotInstalledError):
    """The server has no MCP SDK."""


class UnauthenticatedError(RequestError, errors.UnauthenticatedError):
    """The request has no token, or one that the server does not know."""


class ForbiddenError(RequestError, errors.ForbiddenError):
    """The token may not do this."""


class DoesNotExistError(RequestError, errors.DoesNotExistError):
    """There is no such store, partition, snapshot or cursor."""


class CursorExpiredError(RequestError, errors.CursorExpiredError):
    """The state behind a cursor, a snapshot or a place in the change feed is gone: start over."""


class NotUpToBoundError(RequestError, errors.NotUpToBoundError):
    """The copy was still behind the bound after `wait_ms`. `problem.position` is the copy's Position."""


class NotPresentError(RequestError, errors.NotPresentError):
    """The partition is elsewhere and could not be reached. `problem.owner` is its node's URL, or None."""


class TooManyRequestsError(RequestError, errors.TooManyRequestsError):
    """A limit was reached. Retry after `problem.retry_after_s`."""


class StoreExceptionError(RequestError):
    """Something unexpected failed. See the server's log."""


class NotActiveError(RequestError, errors.NotActiveError):
    """Only the owner may answer, and the server has a standby or a restoring copy."""


class NotReadyError(RequestError, errors.NotReadyError):
    """The server starts or stops, or cannot read the state."""


BY_REASON: dict[str, type[RequestError]] = {
    row_of(kind).reason: kind
    for kind in RequestError.__subclasses__()
    if kind not in (UnexpectedAnswerError, GatewayError)
}
