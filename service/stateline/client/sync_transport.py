# Generated from async_transport.py: change that file, then run `python docs/generate.py`.
"""Send requests with httpx for threads, for whole answers and for streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import httpx

from stateline.client.answers import NODES, Reply, failure_of
from stateline.client.nodes import Nodes
from stateline.client.requests import Request
from stateline.client.retries import Attempts, Retries
from stateline.client.routing import Affinity, Route
from stateline.client.store_calls import Call
from stateline.client.transport import Incoming, Server, reply_of, unreachable
from stateline_store import StatelineError

T = TypeVar("T")


class Transport:
    """Sends requests, thread-safe. Closes `http` unless it was given."""

    def __init__(self, server: Server, http: httpx.Client | None) -> None:
        self.server = server
        self.routing = server.routing()
        self._owned = http is None
        self._http = httpx.Client() if http is None else http

    def ask(self, call: Call[T], retries: Retries | None = None, affinity: Affinity | None = None) -> T:
        """Return the answer, after as many attempts as `retries` allow. Raises the failure of the last attempt."""
        attempts = Attempts(retries or self.server.retries, call.request.wait_ms)
        route = Route(self.routing, call.request, attempts, affinity)
        while True:
            self._look(route)
            try:
                answer = call.reader.read(self._reply(self.server.attempt(call.request, route, attempts)))
            except StatelineError as error:
                pause_s = route.pause_s(error)
                if pause_s is None:
                    raise
            else:
                route.answered(answer)
                return answer
            time.sleep(pause_s)

    @contextmanager
    def stream(self, request: Request, affinity: Affinity | None = None) -> Iterator[Incoming[Iterator[bytes]]]:
        """Yield an answer as it arrives. The connection is closed after the block. Asks each server at most once."""
        route = Route(self.routing, request, Attempts(self.server.retries), affinity)
        with ExitStack() as stack:
            while True:
                self._look(route)
                try:
                    incoming = stack.enter_context(self._opened(self.server.stream(request, route)))
                    break
                except StatelineError as error:
                    if not route.goes_elsewhere(error):
                        raise
            route.answered()
            yield incoming

    def close(self) -> None:
        """Close the connections."""
        if self._owned:
            self._http.close()

    @contextmanager
    def _opened(self, arguments: dict[str, Any]) -> Iterator[Incoming[Iterator[bytes]]]:
        try:
            with self._http.stream(**arguments) as response:
                if not response.is_success:
                    raise failure_of(reply_of(response, response.read()))
                yield Incoming(response.headers, response.iter_bytes())
        except httpx.RequestError as error:
            raise unreachable(arguments, error) from error

    def _look(self, route: Route) -> None:
        while (look := route.look()) is not None:
            found: Nodes | None = None
            try:
                found = NODES.read(self._reply(self.server.look(look)))
            except StatelineError:
                pass  # `looked` lets the URL rest
            finally:
                self.routing.looked(look, found)

    def _reply(self, arguments: dict[str, Any]) -> Reply:
        try:
            response = self._http.request(**arguments)
        except httpx.RequestError as error:
            raise unreachable(arguments, error) from error
        return reply_of(response, response.content)
