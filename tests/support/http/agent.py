"""An agent: the client of the protocol's SDK, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.run.patience import HANGING_S

T = TypeVar("T")


class Told(NamedTuple):
    """The result of a tool."""

    body: dict[str, Any]
    is_error: bool

    @property
    def reason(self) -> str | None:
        return self.body.get("reason") if self.is_error else None


def with_client(url: str, ask: Callable[[Client], Awaitable[T]], token: str = "", mode: str = "auto") -> T:
    async def asked() -> T:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        http = httpx2.AsyncClient(headers=headers, timeout=HANGING_S, trust_env=False)
        async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client:
            return await ask(client)

    return asyncio.run(asked())


async def called(client: Client, name: str, **given: Any) -> Told:
    result = await client.call_tool(name, given)
    (content,) = result.content
    assert content.type == "text"
    return Told(json.loads(content.text), result.is_error)


def told(url: str, name: str, *, token: str = "", mode: str = "auto", **given: Any) -> Told:
    return with_client(url, lambda client: called(client, name, **given), token, mode)
