"""The middleware that sees every HTTP request, and reports answered ones to metrics and the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from stateline.problem_kinds import PROBLEMS
from stateline.processes.tracing import carried_by, is_tracing, span
from stateline.server.contract import request_id
from stateline.server.contract.observation import Observation, begin
from stateline.server.contract.problems import CLIENT_CLOSED_REQUEST
from stateline.server.contract.request_id import AskedBy
from stateline.server.nodes.http_over_link import FROM_NODE
from stateline.server.nodes.traffic import CANCELLED, Counted
from stateline.server.telemetry.access_log import AccessLog, Line, RequestOrigin
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.request_counts import Answered

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# The route of requests without one, because clients can invent any path.
UNMATCHED = "unmatched"


_NO_APP = cast(Any, None)  # only the middleware's list of proxies is needed


class Measuring:
    """Reports answers to metrics and to the access log, if there is one. For the event loop's thread."""

    def __init__(self, metrics: Metrics, access_log: AccessLog | None, proxies: str | None = None) -> None:
        """`proxies` are the addresses whose X-Forwarded-For is believed."""
        self.metrics = metrics
        self._access_log = access_log
        self._proxies = None if proxies is None else ProxyHeadersMiddleware(_NO_APP, proxies).trusted_hosts
        self.observe = metrics.requests.observe if access_log is None else None
        """What does all of `tell` where there is no access log."""

    def tell(
        self, scope: Scope, token: str, answered: Answered, status: int, seconds: float, rows: int, size: int
    ) -> None:
        """Report an answered request, with its seconds, entries and bytes of body. `token` is the token's name."""
        self.metrics.requests.observe(answered, seconds, size, rows)
        log = self._access_log
        if log is not None and log.wants(seconds, status):
            origin = RequestOrigin(token, self._client(scope), scope.get(FROM_NODE, ""), scope[request_id.KEY])
            line = Line(scope["method"], answered, status, seconds, rows, size, origin)
            self.metrics.lines_dropped += not log.write(line)

    def _client(self, scope: Scope) -> str:
        """Return the client's address: of a request through a proxy, what the proxy says. A point read that is answered
        at once has not passed uvicorn's middleware for this."""
        address: str = "" if scope["client"] is None else scope["client"][0]
        if self._proxies is None or address not in self._proxies:
            return address
        said = b", ".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        return self._proxies.get_trusted_client_address(said)[0] or address

    def tell_node(
        self, by: AskedBy, method: str, answered: Answered, status: int, seconds: float, rows: int, size: int | None
    ) -> None:
        """Report to the access log alone what another node asked over its link."""
        log = self._access_log
        if log is not None and log.wants(seconds, status):
            origin = RequestOrigin(node=by.node, request_id=by.request_id)
            self.metrics.lines_dropped += not log.write(Line(method, answered, status, seconds, rows, size, origin))

    def tell_message(self, by: AskedBy, kind: str, counted: Counted, seconds: float) -> None:
        """Report a message that is no HTTP request."""
        answered = Answered(f"link/{kind}", counted.store, counted.level, counted.outcome)
        self.tell_node(by, "LINK", answered, _status(counted.outcome), seconds, counted.rows, None)

    def close(self) -> None:
        if self._access_log is not None:
            self._access_log.close()


class MeasuringMiddleware:
    """Observes requests under their route's template, never under their path."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], measuring: Measuring) -> None:
        self._app = app
        # FastAPI's router notes the chosen endpoint in the scope, not the route.
        self._templates: dict[object, str] = {
            route.endpoint: route.path_format for route in routes if isinstance(route, Route)
        }
        self._measuring = measuring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = request_id.request_id(scope["headers"])
        scope[request_id.KEY] = number
        observation = begin(number)
        status, size = 500, 0  # unless an answer begins

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (request_id.HEADER, number.encode("ascii"))]
            else:
                size += len(message.get("body", b""))
            await send(message)

        metrics = self._measuring.metrics
        metrics.in_progress += 1
        began_s = time.perf_counter()
        try:
            with span(scope["method"], {"stateline.request_id": number}, "SERVER", _parent(scope)) as made:
                try:
                    await self._app(scope, receive, watch)
                finally:
                    if made is not None:
                        self._name(made, self._answered(scope, observation, status), status)
        except asyncio.CancelledError:
            observation.reason = "cancelled"  # the server stops, and this took longer than it waits
            raise
        finally:
            seconds = time.perf_counter() - began_s
            metrics.in_progress -= 1
            answered = self._answered(scope, observation, status)
            rows, token = observation.rows, observation.token
            self._measuring.tell(scope, token, answered, status, seconds, rows, size)

    @staticmethod
    def _name(made: Span, answered: Answered, status: int) -> None:
        """Names and attributes are those of OpenTelemetry's semantic conventions for HTTP servers."""
        made.update_name(f"{made.name} {answered.route}")  # type: ignore[attr-defined]
        made.set_attribute("http.response.status_code", status)
        made.set_attribute("http.route", answered.route)

    def _answered(self, scope: Scope, observation: Observation, status: int) -> Answered:
        store = scope["path_params"].get("store", "") if "path_params" in scope else ""
        return Answered(
            observation.route or self._templates.get(scope.get("endpoint"), UNMATCHED),
            store if store in self._measuring.metrics.stores else "",
            observation.level,
            observation.reason or _outcome(status),
        )


def _parent(scope: Scope) -> dict[str, str]:
    headers = scope["headers"] if is_tracing() else ()
    return carried_by({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})


def _status(outcome: str) -> int:
    """Return the status of an outcome: the inverse of `_outcome` and of the problem table."""
    if outcome == CANCELLED:
        return CLIENT_CLOSED_REQUEST
    return next((each.status for each in PROBLEMS.values() if each.reason == outcome), 200 if outcome == "ok" else 500)


def _outcome(status: int) -> str:
    """Return the outcome of an answer that is not in `problem_kinds.PROBLEMS`."""
    if status < 400:
        return "ok"
    if status == 404:
        return "not_found"  # an absent key
    return "client_gone" if status == CLIENT_CLOSED_REQUEST else "STORE_EXCEPTION"
