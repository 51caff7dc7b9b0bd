"""An `AsyncClient` that is called as a `Client`, so that one set of tests speaks for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from stateline.client import AsyncClient, AsyncScan, AsyncSnapshot, AsyncStore, Client


class _Blocking:
    """Runs what the methods of `target` return until it is there."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target, self._runner = target, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found
        return lambda *arguments, **named: self._settled(found(*arguments, **named))

    def __iter__(self) -> Iterator[Any]:
        return _entries(aiter(self._target), self._runner)

    def __enter__(self) -> Any:
        return self._settled(self._target.__aenter__())

    def __exit__(self, *raised: Any) -> Any:
        return self._settled(self._target.__aexit__(*raised))

    def _settled(self, returned: Any) -> Any:
        if inspect.iscoroutine(returned):
            return self._settled(self._runner.run(returned))
        if inspect.isasyncgen(returned):
            return _entries(returned, self._runner)
        ours = isinstance(returned, AsyncClient | AsyncStore | AsyncScan | AsyncSnapshot)
        return _Blocking(returned, self._runner) if ours else returned


def _entries(source: Any, runner: asyncio.Runner) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(source)

    async def close() -> None:
        await source.aclose()

    try:
        while True:
            try:
                entry = runner.run(following())
            except StopAsyncIteration:
                return
            yield entry
    finally:
        runner.run(close())


@contextmanager
def blocking_client(url: str | list[str], **arguments: Any) -> Iterator[Client]:
    """An `AsyncClient` with an event loop of its own."""
    with asyncio.Runner() as runner, _Blocking(AsyncClient(url, **arguments), runner) as client:
        yield cast(Client, client)


@contextmanager
def clients_of(kind: str) -> Iterator[Callable[..., Client]]:
    """Makes clients that use "threads" or "asyncio"; they are closed at the end."""
    with ExitStack() as stack:
        made: Any = Client if kind == "threads" else blocking_client
        yield lambda url, **arguments: stack.enter_context(
            made(url if isinstance(url, list) else str(url), **arguments)
        )
