"""HTTP over a link: the other node's application answers a request like a client's.

    request := {"id", "type": "http", "method", "path": with its query, "headers": {name: value}, "body": base64}
    reply   := {"id", "status", "headers": {name: value}, "body": base64} | {"id", "error": text}
    cancel  := {"id", "type": "cancel"}             ends that request; has no reply

The other node checks the client (`credentials`). It does not count the request against limits, because the first node
has. It never forwards it to a third node (`came_over_link`). Bodies are whole, so streams without an end are excluded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Scope
from starlette.types import Message as Event

from stateline.processes.seldom import seldom
from stateline.server.contract.observation import current_request_id
from stateline.server.guard.access import PROOF
from stateline.server.guard.proofs import Proof
from stateline.server.wire.exchange import Message
from stateline_store import InvalidArgumentError, StatelineError

# The limit for requests and answers. A larger frame would delay the link's other messages, also heartbeats.
MAX_BODY_BYTES = 32 * 1024 * 1024
# Longer than a snapshot takes to be made, or a page to be read.
TIMEOUT_S = 60.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "DELETE"})
_HEADERS = frozenset({"accept", "content-type", "x-request-id", "traceparent", "tracestate"})
FROM_NODE = "stateline.from-node"
"""In the scope, where no client can put anything: the name of the node that asks."""

_log = seldom(__name__)


class HttpAnswer(NamedTuple):
    """An application's answer. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def came_over_link(request: Request) -> bool:
    """Whether another node asks for this: it is answered by this node, or refused."""
    return FROM_NODE in request.scope


def encode_request(number: int, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Message:
    """The message of a request; of its headers those that mean something there. Raises `InvalidArgumentError` for a
    body that is too large."""
    if len(body) > MAX_BODY_BYTES:
        raise InvalidArgumentError(f"A body of {len(body)} bytes: between nodes {MAX_BODY_BYTES} are the most.")
    sent = {name.lower(): value for name, value in headers.items() if name.lower() in _HEADERS}
    if (asked_as := current_request_id()) is not None:
        sent["x-request-id"] = asked_as
    text = base64.b64encode(body).decode("ascii")
    return {"id": number, "type": "http", "method": method, "path": path, "headers": sent, "body": text}


def decode_answer(reply: Mapping[str, Any], node: str) -> HttpAnswer:
    """Return that node's answer. Raises `StatelineError` if it had none."""
    try:
        headers = {str(name): str(value) for name, value in reply["headers"].items()}
        return HttpAnswer(int(reply["status"]), headers, binascii.a2b_base64(reply["body"], strict_mode=True))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatelineError(f"Node {node!r} could not answer: {reply.get('error', 'not understood')}") from error


async def answered(app: ASGIApp, message: Message, node: str, proof: Proof | None = None) -> dict[str, Any]:
    """The reply to a request of this node, which has shown this proof. Raises `InvalidArgumentError` for a message
    that is none. A cancelled task ends the request."""
    scope, asked = scope_of(message, node, proof), body_of(message)
    try:
        answer = await whole_answer(app, scope, asked)
    except StatelineError as error:
        return {"error": str(error)}
    body = base64.b64encode(answer.body).decode("ascii")
    return {"status": answer.status, "headers": answer.headers, "body": body}


async def whole_answer(app: ASGIApp, scope: Scope, body: bytes) -> HttpAnswer:
    """The application's answer to a request with this body. Raises `StatelineError` if it is too large, or breaks off.
    A cancelled task ends the request."""
    answer = _Answer(body)
    try:
        await app(scope, answer.receive, answer.send)
    except Exception:  # noqa: BLE001 - a defect, or a cut answer: who asks gets an error
        if not answer.is_too_large:
            _log.exception("%s %s of %r failed", scope["method"], scope["path"], scope.get(FROM_NODE, "this node"))
    if answer.is_too_large:
        raise StatelineError(f"The answer has more than {MAX_BODY_BYTES} bytes: ask for less, or at that node itself.")
    if not answer.is_whole:
        raise StatelineError("The answer broke off: see that node's log.")
    return HttpAnswer(answer.status, answer.headers, bytes(answer.body))


class _Answer:
    """The other end of an application: passes a body in, and collects the answer."""

    def __init__(self, body: bytes) -> None:
        self._asked: bytes | None = body
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_whole = False
        self.is_too_large = False

    async def receive(self) -> Event:
        if self._asked is None:
            await asyncio.Event().wait()  # the other node cancels this task when it leaves
        body, self._asked = self._asked, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event["headers"]}
            return
        self.body += event.get("body", b"")
        if len(self.body) > MAX_BODY_BYTES:
            self.is_too_large = True
            self.body.clear()
            raise OSError("The answer is larger than a node takes.")  # as when a client has hung up
        self.is_whole = not event.get("more_body", False)


def scope_of(message: Message, node: str, proof: Proof | None) -> Scope:
    """The scope of a request of this node, which has shown this proof. Raises `InvalidArgumentError` for a message that
    is none."""
    method, path, headers = message.get("method"), message.get("path"), message.get("headers")
    if method not in _METHODS or not isinstance(path, str) or not path.startswith("/v1/") or not path.isascii():
        raise InvalidArgumentError(f"{method!r:.100} of {path!r:.100} is no request that nodes make.")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise InvalidArgumentError("The headers of a request are texts.")
    raw_path, _, query = path.partition("?")
    sent = [(n.encode(), value.encode("latin-1", "replace")) for n, value in headers.items() if n in _HEADERS]
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "root_path": "",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [(b"host", b"node"), *sent],
        "client": None,  # the first node has counted the client (`guard.access`)
        "server": None,
        FROM_NODE: node,
    }
    if proof is not None:
        scope[PROOF] = proof
    return scope


def body_of(message: Message) -> bytes:
    """The body of a request. Raises `InvalidArgumentError` for a message that is none."""
    try:
        return binascii.a2b_base64(message["body"], strict_mode=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError("The body of a request is base64 text.") from error
