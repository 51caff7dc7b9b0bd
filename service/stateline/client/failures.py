"""The client's exceptions: one for each reason of the contract. Each is also the library's error of that name.

    StatelineError
    ├── RequestError              the server refused; `problem` says why and where
    │   ├── … one class for each reason, as in `BY_REASON`
    │   └── UnexpectedAnswerError     an answer that is not the contract's
    └── UnreachableError          (a RetryLaterError) no answer arrived: connection refused, lost, timed out

`except stateline_store.NotUpToBoundError` catches the client's, too, as `except RetryLaterError` catches whatever can
succeed later.
"""

from __future__ import annotations

from stateline.client.results import Problem
from stateline.problem_kinds import row_of
from stateline_store import RetryLaterError, StatelineError, errors


class RequestError(StatelineError):
    """The server answered with a problem; `problem` has all of it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem.reason} ({self.problem.status}): {self.problem.detail}"


class UnreachableError(RetryLaterError):
    """No answer arrived: the server is not there, the connection was lost, or time ran out. `sent` is False when it
    has surely not been asked, because no connection was had."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class UnexpectedAnswerError(RequestError):
    """An answer that is none of the contract's: something else listens there, or a newer server."""


class GatewayError(RequestError, RetryLaterError):
    """Something between here and the server answered in its place, with status 429, 502, 503 or 504."""


class UnknownQueryTypeError(RequestError, errors.UnknownQueryTypeError):
    """This kind of store cannot answer this query."""


class InvalidArgumentError(RequestError, errors.InvalidArgumentError):
    """The server cannot read an argument: correct the call."""


class NotAcceptableError(RequestError, errors.NotAcceptableError):
    """The answer cannot be had in the format that was asked for."""


class UnauthenticatedError(RequestError, errors.UnauthenticatedError):
    """No token, or none that the server knows."""


class ForbiddenError(RequestError, errors.ForbiddenError):
    """The token may not do this."""


class DoesNotExistError(RequestError, errors.DoesNotExistError):
    """No such store, partition, snapshot or cursor."""


class CursorExpiredError(RequestError, errors.CursorExpiredError):
    """The state behind a cursor, a snapshot or a place in the change feed is gone: start over."""


class NotUpToBoundError(RequestError, errors.NotUpToBoundError):
    """Still behind the bound when the wait ran out: `problem.position` is where it is."""


class NotPresentError(RequestError, errors.NotPresentError):
    """The partition is elsewhere and could not be reached: `problem.owner` has it."""


class TooManyRequestsError(RequestError, errors.TooManyRequestsError):
    """A limit was reached: ask again after `problem.retry_after_s`."""


class StoreExceptionError(RequestError):
    """An error while executing: the server's log has more."""


class NotActiveError(RequestError, errors.NotActiveError):
    """An active copy was required, and there is only a standby or a restoring one."""


class NotReadyError(RequestError, errors.NotReadyError):
    """The service is starting or shutting down."""


BY_REASON: dict[str, type[RequestError]] = {
    row_of(kind).reason: kind
    for kind in RequestError.__subclasses__()
    if kind not in (UnexpectedAnswerError, GatewayError)
}
