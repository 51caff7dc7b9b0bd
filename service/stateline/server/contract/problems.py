"""Answer failures as `application/problem+json` (RFC 9457), by the table of `stateline.problem_kinds`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stateline.problem_kinds import RETRIED_STATUSES, problem_of
from stateline.query.values import Failure, Terms
from stateline.serde.plain import shortened, shown
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.contract.observation import observed
from stateline_store import StatelineError

MEDIA_TYPE = "application/problem+json"
_LONGEST_NAME = 249  # of a topic, as Kafka has it; stores have less
CLIENT_CLOSED_REQUEST = 499  # nginx's; HTTP has no status for what nobody is told
CHALLENGE = 'Bearer realm="stateline"'
"""What `WWW-Authenticate` says beside a 401 (RFC 6750)."""
_RETRY_AFTER_S = "1"  # a rebalance or a start takes seconds; asking once a second costs nothing


def problem_response(error: Exception, *, given: str = "", **where: Any) -> Response:
    """Return the answer to a request that failed with this error. `where` are more members; None is left out. Paths in
    the message that the caller has `given` are shown.

    Only a `StatelineError` shows its message. Another error may hold secrets.
    """
    deliberate = isinstance(error, StatelineError)
    detail = str(error) if deliberate else "Something unexpected went wrong: see the server's log."
    reason, status, *_ = problem_of(error)
    return _response(status, reason, detail, where, given)


def unreadable_response(detail: str, status: int) -> Response:
    """Return the answer to a request that breaks a rule of HTTP, with HTTP's status for that."""
    return _response(status, "INVALID_ARGUMENT", detail, {})


def failure_response(terms: Terms, failures: Mapping[int, Failure]) -> Response:
    """Return the answer to a query whose partitions failed: the reason of the first, and all failures."""
    partition, first = next(iter(failures.items()))
    return problem_response(
        first.error,
        store=terms.store,
        partition=partition,
        position=None if first.position is None else first.position.to_json(),
        bound=None if terms.bound.is_unbounded() else terms.bound.position.to_json(),
        owner=first.owner,
        failures=failures_json(failures),
    )


def failures_json(failures: Mapping[int, Failure]) -> dict[str, Any]:
    return {str(partition): _failure_json(failure) for partition, failure in failures.items()}


async def on_stateline_error(request: Request, error: Exception) -> Response:
    return problem_response(error, store=request.path_params.get("store"))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: an unknown path, or a method that this path does not take."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"Nothing is at {shown(request.url.path)}: see /docs for what there is."
        return _response(404, "DOES_NOT_EXIST", detail, {})
    detail = f"{request.method}: {error.detail}."
    if allowed := (error.headers or {}).get("allow") or (error.headers or {}).get("Allow"):
        detail = f"{request.method} is not taken here: use {allowed}."
    response = _response(error.status_code, "INVALID_ARGUMENT", detail, {})
    response.headers.update(error.headers or {})
    return response


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Count a client that hung up while it sent its request. Nobody reads this answer."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer a defect. The server logs it with its traceback; the client learns only that there was one."""
    return problem_response(error, store=request.path_params.get("store"))


HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    StatelineError: on_stateline_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    Exception: on_unexpected_error,
}
"""The answers to what handlers raise."""


def _failure_json(failure: Failure) -> dict[str, Any]:
    reason, status, *_ = problem_of(failure.error)
    members = {
        "reason": reason,
        "status": status,
        "detail": without_paths(failure.error),
        "position": None if failure.position is None else failure.position.to_json(),
        "owner": failure.owner,
    }
    return {name: value for name, value in members.items() if value is not None}


def _response(status: int, reason: str, detail: str, where: Mapping[str, Any], given: str = "") -> Response:
    observed().reason = reason
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "reason": reason}
    body["detail"] = without_paths(detail, given)
    body |= {name: _shown(value) for name, value in where.items() if value is not None}
    headers = {"Retry-After": _RETRY_AFTER_S} if status in RETRIED_STATUSES else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = f'{CHALLENGE}, error="invalid_token"'
    return Response(orjson.dumps(body), status, headers, MEDIA_TYPE)


def _shown(value: Any) -> Any:
    """Return a further member. A list of texts has messages. Names from clients are cut to a name's limit."""
    match value:
        case list():
            return [without_paths(each) for each in value]
        case str():
            return shortened(value, _LONGEST_NAME)
        case dict():
            return {shortened(name, _LONGEST_NAME): member for name, member in value.items()}
    return value
