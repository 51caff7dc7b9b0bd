"""The middleware that sees every HTTP request, and tells metrics and the access log of it when it was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.server.access_log import AccessLog, Line
from stateline.server.metrics import Answered, Metrics
from stateline.server.observation import Observation, begin
from stateline.server.problems import CLIENT_CLOSED_REQUEST

# Of requests that no route took: their paths are the client's invention.
UNMATCHED = "unmatched"


class MeasuringMiddleware:
    """Observes requests under their route's template, never under their path."""

    def __init__(
        self, app: ASGIApp, routes: Iterable[BaseRoute], metrics: Metrics, access_log: AccessLog | None
    ) -> None:
        self._app = app
        # FastAPI's router tells the endpoint that it has chosen, not the route.
        self._templates: dict[object, str] = {
            route.endpoint: route.path_format for route in routes if isinstance(route, Route)
        }
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        observation = begin()
        status, size = 500, 0  # unless an answer begins

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        self._metrics.in_progress += 1
        began_s = time.perf_counter()
        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:
            observation.reason = "cancelled"  # the server stops, and this took longer than it waits
            raise
        finally:
            seconds = time.perf_counter() - began_s
            self._metrics.in_progress -= 1
            self._tell(scope, observation, status, seconds, size)

    def _tell(self, scope: Scope, observation: Observation, status: int, seconds: float, size: int) -> None:
        store = scope["path_params"].get("store", "") if "path_params" in scope else ""
        answered = Answered(
            observation.route or self._templates.get(scope.get("endpoint"), UNMATCHED),
            store if store in self._metrics.stores else "",
            observation.level,
            observation.reason or _outcome(status),
        )
        self._metrics.observe(answered, seconds, size, observation.rows)
        log = self._access_log
        if log is not None and log.wants(seconds, status):
            line = Line(scope["method"], answered, status, seconds, observation.rows, size, observation.token)
            self._metrics.lines_dropped += not log.write(line)


def _outcome(status: int) -> str:
    """Of an answer that is no problem of `problems.PROBLEMS`."""
    if status < 400:
        return "ok"
    if status == 404:
        return "not_found"  # an absent key
    return "client_gone" if status == CLIENT_CLOSED_REQUEST else "STORE_EXCEPTION"
