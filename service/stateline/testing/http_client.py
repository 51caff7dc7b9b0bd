"""The server in the test's own process: its ASGI application, called without a socket.

It runs on a thread of its own. The test's thread has the stores. While that thread waits for an answer, it serves the
server's queries to the worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from stateline.dsl.app import App
from stateline.server.main import create_app
from stateline.testing.place import DriverFolder
from stateline.worker.loop.worker import Worker
from stateline_store import NotReadyError

_BASE_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.001
_LOOKS = 2_000  # at a server that starts: it is ready at one of the first


class ServedClient:
    """One driver's client, and its server, which the first request starts. One thread uses it."""

    def __init__(self, app: App, place: DriverFolder, worker: Callable[[], Worker]) -> None:
        self._app, self._place, self._worker = app, place, worker
        self._client: httpx.Client | None = None
        self._server: _Server | None = None

    @property
    def client(self) -> httpx.Client:
        """The client. After `stop` the next request starts another server."""
        if self._client is None:
            transport = httpx.MockTransport(self.answer)
            self._client = httpx.Client(transport=transport, base_url=_BASE_URL, timeout=_TIMEOUT_S)
        return self._client

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self._server is None:
            self._server = _Server(self._app, self._place, self._worker)
        return self._server.answer(request)

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self.stop()


class _Server:
    def __init__(self, app: App, place: DriverFolder, worker: Callable[[], Worker]) -> None:
        self._worker = worker
        with ExitStack() as resources:
            self._portal: BlockingPortal = resources.enter_context(start_blocking_portal())
            api = create_app(app, place.config)
            self._asgi = httpx.ASGITransport(api, raise_app_exceptions=False)
            lifespan = self._portal.wrap_async_context_manager(api.router.lifespan_context(api))
            resources.enter_context(lifespan)
            self._wait_until_ready()
            self._resources = resources.pop_all()

    def _wait_until_ready(self) -> None:
        for _ in range(_LOOKS):
            answer = self.answer(httpx.Request("GET", f"{_BASE_URL}/readyz"))
            if answer.status_code == httpx.codes.OK:
                return
            self._worker().context.queries.let_in(_LOOK_AGAIN_S)
        raise NotReadyError(f"The server does not become ready: {answer.text}")

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Raises `httpx.ReadTimeout` if the answer does not end within the request's read timeout."""
        request.read()
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
        future: Future[httpx.Response] = self._portal.start_task_soon(self._ask, asked)
        most_s = request.extensions.get("timeout", {}).get("read")
        until_s = math.inf if most_s is None else time.monotonic() + most_s
        while not future.done():
            self._worker().context.queries.let_in(_LOOK_AGAIN_S)
            if time.monotonic() > until_s:
                future.cancel()
                raise httpx.ReadTimeout(
                    f"No whole answer within {most_s} s: a stream without an end cannot be read here, and what takes "
                    "longer needs another timeout=.",
                    request=request,
                )
        return future.result()

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        answer = await self._asgi.handle_async_request(request)
        as_sent = b"".join([chunk async for chunk in answer.aiter_raw()])  # compressed or not: the client decodes it
        return httpx.Response(answer.status_code, headers=answer.headers, content=as_sent)

    def close(self) -> None:
        self._resources.close()
