"""The messages between two server processes of one state directory. A connection carries one request and its answer.

    request := version u8, head, body            head and body: length u32, bytes
    head    := JSON {"method", "path", "query", "root", "headers": [[name, value] …], "client": [host, port] | null,
                     "token": {"name", "digest", "role", "stores", "expires_at_s"} | null, "request_id",
                     "node": the node that asks, or null}
    answer  := start, piece …, end               each: kind u8, rows u64, length u32, bytes
    start   := JSON {"status", "headers"}
    end     := JSON {"reason", "level", "route"}

Numbers are big-endian. Texts of HTTP are latin-1. `rows` counts the entries of the answer so far. An answer without an
end has broken off. Large reads of another node come over a connection that begins otherwise, and continues as a link
(`nodes.link`):

    node    := 128 u8, length u32, JSON {"hello": `nodes.greeting`, "identity": of the link, for proofs}

 A process closes the connection if it finds another version: servers of two releases can share a
directory for a moment.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
from starlette.types import Scope

from stateline.server.contract.observation import Observation
from stateline.server.contract.request_id import KEY as REQUEST_ID
from stateline.server.guard.caller import CALLER
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.guard.tokens import Token
from stateline.server.nodes.greeting import Hello
from stateline.server.nodes.http_over_link import FROM_NODE

VERSION = 1
NODE = 128
START, PIECE, END = 1, 2, 3
RELAYED = "stateline.relayed"
"""In the scope, where no client can put anything: another process of this server has checked and counts the request."""

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">BQI")
_MOST_BYTES = 64 * 1024 * 1024  # of a request or a piece; the largest body has 4 MiB by default


class Frame(NamedTuple):
    """One frame of an answer."""

    kind: int
    rows: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A request as another process has it."""

    scope: Scope
    body: bytes
    request_id: str
    token: Token | None


def encode_request(scope: Scope, body: bytes) -> bytes:
    """Return the bytes of this request. The scope is of a request that the guard has let in."""
    token: Token | None = scope.get(CALLER)
    head = {
        "method": scope["method"],
        "path": scope["raw_path"].decode("latin-1"),
        "query": scope["query_string"].decode("latin-1"),
        "root": scope.get("root_path", ""),
        "headers": _texts(scope["headers"]),
        "client": scope["client"],
        "token": None if token is None else _token_members(token),
        "request_id": scope[REQUEST_ID],
        "node": scope.get(FROM_NODE),
    }
    text = orjson.dumps(head)
    return b"".join((bytes([VERSION]), _LENGTH.pack(len(text)), text, _LENGTH.pack(len(body)), body))


def encode_node(hello: Hello, proven: ProvenConnection) -> bytes:
    """Return what begins a connection for large reads of this node."""
    text = orjson.dumps({"hello": asdict(hello), "identity": proven.identity.hex()})
    return bytes([NODE]) + _LENGTH.pack(len(text)) + text


async def read_node(reader: asyncio.StreamReader) -> tuple[Hello, ProvenConnection]:
    """Read the rest of it. Raises like `read_request`."""
    told = orjson.loads(await _sized(reader))
    return Hello.of(told["hello"]), ProvenConnection(bytes.fromhex(told["identity"]))


async def read_request(reader: asyncio.StreamReader, version: int) -> RelayedRequest:
    """Read one request after its version. Raises `ValueError` if it is none, `asyncio.IncompleteReadError` if the other
    end has gone."""
    if version != VERSION:
        raise ValueError(f"a request of version {version}, and this process reads version {VERSION}")
    head = orjson.loads(await _sized(reader))
    body = await _sized(reader)
    token = None if head["token"] is None else _token(head["token"])
    return RelayedRequest(_scope(head, token), body, head["request_id"], token)


def encode_start(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    return _frame(START, 0, orjson.dumps({"status": status, "headers": _texts(headers)}))


def encode_piece(rows: int, piece: bytes) -> tuple[bytes, bytes]:
    """Return the frame's head and its bytes, which are not copied."""
    return _FRAME.pack(PIECE, rows, len(piece)), piece


def encode_end(observation: Observation) -> bytes:
    told = {"reason": observation.reason, "level": observation.level, "route": observation.route}
    return _frame(END, observation.rows, orjson.dumps(told))


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read one frame of an answer. Raises `asyncio.IncompleteReadError` if the answer broke off."""
    kind, rows, length = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    return Frame(kind, rows, await reader.readexactly(length))


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _frame(kind: int, rows: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, rows, len(payload)) + payload


async def _sized(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MOST_BYTES:
        raise ValueError(f"{length} bytes, and at most {_MOST_BYTES} are accepted")
    return await reader.readexactly(length)


def _scope(head: dict[str, Any], token: Token | None) -> Scope:
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # from 2.4 on, Starlette would not notice who leaves
        "http_version": "1.1",
        "scheme": "http",
        "server": None,
        "method": head["method"],
        "root_path": head["root"],
        "raw_path": head["path"].encode("latin-1"),
        "path": unquote(head["path"]),
        "query_string": head["query"].encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]],
        "client": None if head["client"] is None else tuple(head["client"]),
        REQUEST_ID: head["request_id"],
        RELAYED: True,
    }
    if token is not None:
        scope[CALLER] = token
    if head["node"] is not None:
        scope[FROM_NODE] = head["node"]
    return scope


def _token_members(token: Token) -> dict[str, Any]:
    stores = None if token.stores is None else sorted(token.stores)
    return {
        "name": token.name,
        "digest": token.digest.hex(),
        "role": token.role,
        "stores": stores,
        "expires_at_s": token.expires_at_s,
    }


def _token(told: dict[str, Any]) -> Token:
    stores = None if told["stores"] is None else frozenset(told["stores"])
    return Token(told["name"], bytes.fromhex(told["digest"]), told["role"], stores, told["expires_at_s"])
