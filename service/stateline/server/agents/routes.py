"""`/mcp`: the Model Context Protocol over streamable HTTP, without sessions.

A tool asks this server's own application, with the caller's token. So it meets the guard, validation, limits, nodes,
metrics and access log of a client of HTTP. A call has two lines in the access log, with one request id: the POST of
`/mcp`, and the request of the tool. Only the first counts for server.rate.limit.

Every message stands alone, so any process of any node may answer it. The server begins no streams: a GET gets 405.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stateline.config.extras import install_line, lacks
from stateline.config.settings import Config
from stateline.processes.seldom import seldom
from stateline.server.agents.tools import INSTRUCTIONS, MOST_BYTES, SQL, TOOLS, AskedRequest, Tool
from stateline.server.contract.observation import current_request_id
from stateline.server.contract.problems import MEDIA_TYPE, problem_response
from stateline.server.guard.access import COUNTED
from stateline.server.guard.sites import Sites
from stateline.server.nodes.http_over_link import HttpAnswer, whole_answer
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import while_there
from stateline_store import InvalidArgumentError, McpNotInstalledError, StatelineError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

PATH = "/mcp"
MAX_BODY_BYTES = 256 * 1024
_PASSED_ON = frozenset({b"host", b"authorization", b"traceparent", b"tracestate"})
_OF_CONNECTION = ("type", "asgi", "http_version", "scheme", "client", "server")


class AgentRoutes:
    """The endpoint of one server process, for the event loop's thread."""

    def __init__(self, config: Config, bodies: Bodies) -> None:
        self._config, self._bodies, self._sites = config, bodies, Sites(config)
        self._making = asyncio.Lock()
        self._server: Server[Any] | None = None

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.answer, methods=["POST"])] if self._config.server_mcp else []

    async def answer(self, request: Request) -> Response:
        """POST /mcp: one message of the protocol."""
        self._sites.check_origin(request.scope)  # the protocol demands it, also with tokens
        server = await self._made()
        # The message is held, and counts, until the answer is there.
        read = self._bodies.read(request, lambda body: (body, len(body)), MAX_BODY_BYTES)
        async with read as body, while_there(request):
            answer = await whole_answer(partial(_answered, server), request.scope, body)
        return Response(answer.body, answer.status, answer.headers)

    async def _made(self) -> Server[Any]:
        """Return the SDK's server. The first request makes it, because the import takes a second."""
        if lacks("mcp"):
            raise McpNotInstalledError(
                f"Agents need the MCP SDK, which this server does not have: run `{install_line('mcp')}`."
            )
        async with self._making:
            if self._server is None:
                try:
                    self._server = await asyncio.to_thread(_server, self._config)
                except ImportError as error:
                    raise McpNotInstalledError(
                        f"The MCP SDK of this server is of another version ({error}): run `{install_line('mcp')}`."
                    ) from error
            return self._server


def _server(config: Config) -> Server[Any]:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    logging.getLogger("mcp").setLevel(logging.WARNING)  # below, it has two lines for each message
    # Strangers can cause their lines.
    for name in ("mcp.server.runner", "mcp.server.streamable_http", "mcp.shared.jsonrpc_dispatcher"):
        seldom(name)
    tools = {tool.name: tool for tool in TOOLS if tool is not SQL or not lacks("sql")}
    only_reads = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    listed = [
        types.Tool(name=t.name, description=t.description, input_schema=t.input_schema(), annotations=only_reads)
        for t in tools.values()
    ]

    async def list_tools(_: object, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[Any, Request], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if (tool := tools.get(params.name)) is None or context.request is None:
            names = ", ".join(tools)
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name[:100]!r}; there are: {names}.")
        text, is_error = await _called(context.request, tool, params.arguments or {}, config.server_limit_max)
        return types.CallToolResult(content=[types.TextContent(text=text.decode())], is_error=is_error)

    return Server(
        "stateline",
        title=f"Stateline: {config.application_id}",
        version=version("stateline"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _answered(server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    # One for each message: without sessions it keeps nothing, and ends what the message began.
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def _called(request: Request, tool: Tool, given: Mapping[str, Any], most: int) -> tuple[bytes, bool]:
    """Return the text of a tool's result, and whether it failed."""
    try:
        asked, limit = tool.requests(given, most)
        answers = [await _asked(request, each) for each in asked]
        if answers[0].headers.get("content-type") == MEDIA_TYPE:
            return answers[0].body, True
        shown = tool.shown(answers, limit)
        if len(shown) > MOST_BYTES:
            raise InvalidArgumentError(
                f"The answer has {len(shown)} bytes, and agents get at most {MOST_BYTES}: ask for less, by a smaller "
                "limit, a narrower range, or SQL."
            )
        return shown, False
    except StatelineError as error:
        return bytes(problem_response(error).body), True


async def _asked(request: Request, asked: AskedRequest) -> HttpAnswer:
    """Return the answer of this server's own application to a request of the same caller."""
    path, _, query = asked.path.partition("?")
    headers = [(name, value) for name, value in request.scope["headers"] if name in _PASSED_ON]
    headers += [(b"content-type", b"application/json"), (b"x-request-id", (current_request_id() or "").encode())]
    scope = {
        **{name: request.scope[name] for name in _OF_CONNECTION},
        "method": "POST" if asked.body else "GET",
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        COUNTED: True,
    }
    # A task of its own, because metrics and the access log observe it as another request.
    return await asyncio.create_task(whole_answer(request.app, scope, asked.body))
