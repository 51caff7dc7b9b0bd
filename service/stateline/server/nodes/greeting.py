"""How two nodes begin: each proves who it is before it is told anything, then both say what they are.

    greeting := [nonce proof] hello            in both directions; nonce and proof without TLS alone
    nonce    := {"nonce": 64 hexadecimal digits}
    proof    := {"proof": HMAC-SHA256 of the secret over who proves ("dialer", "listener"), the place of the listener,
                 and both nonces, the dialer's first}
    hello    := {"wire": [versions that are understood], "application", "node", "directory", "version",
                 "topology", "url", "tasks", "purpose": "link" or, of who dials for files of stores, "copy",
                 "challenge": of the listener: random hexadecimal digits}
              | {"refused": why}               to who has proven it, and is not wanted

Frames are those of `stateline.query.wire`, of 4 KiB at most until both are known. Over TLS the certificates prove it,
each signed by the authority of the nodes (`node.peer.tls.ca.file`) and made out to the node's name; without, a secret
that both have, which never travels, and between addresses of one machine alone: what follows is not encrypted. An end
that does not prove it learns nothing: the connection is closed.

The two speak the highest version of the wire that both understand (`spoken`), so nodes of two versions of Stateline
are linked while one after the other is upgraded. There is version 1, which `link` describes.

A query says whether who asks has declared the store with timestamps, and is answered so: topologies may differ in that,
and be equal in their `tasks`. Instead of a client's token a proof of it is sent (`guard.proofs`), which counts on this
link alone: its identity is the listener's challenge, name, directory and place.

A proof holds once, for the nonces are new; in one direction, so the other end's own words do not count as its proof;
and at one place. So nobody who took the port of a node that is gone can hand on what two others say, and have the
connection that comes of it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from stateline.deployment.nodes_topic import is_node_name, is_server_url
from stateline.query.wire import LENGTH, decode_message, frame
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.keys import certificate_names
from stateline_store import InvalidArgumentError

WIRE_VERSIONS = (1,)
"""What nodes of this build say to each other after the greeting, newest first."""
LINK, COPY = "link", "copy"
"""What a connection is for. On the wire: never change."""
MAX_GREETING_BYTES = 4096
GREETING_TIMEOUT_S = 5.0
_NONCE_BYTES = 32


class NotANodeError(Exception):
    """The other end has not shown that it is a node of this application. str() says why, for the log."""


class RefusedError(NotANodeError):
    """A node of the application refuses this one; str() says why."""


class OtherWireError(Exception):
    """A node that speaks no version that this one does; str() says which one does what, for people."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's description of itself. `directory` is the id of its state directory, `topology` a digest of what it
    runs, `url` where clients reach it, empty where nobody does. `tasks` is a digest that is equal, too, where stores
    have timestamps at one of them alone (`Topology.tasks_digest`). `purpose` is what the connection is for, of who
    dials; `challenge` is the listener's, new for each connection."""

    application: str
    node: str
    directory: str
    version: str
    topology: str
    url: str
    wire: tuple[int, ...] = WIRE_VERSIONS
    tasks: str = ""
    purpose: str = LINK
    challenge: str = ""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Hello:
        """Raises `NotANodeError` for what is none. Members that are not known here are a newer build's."""
        texts: dict[str, Any] = {each.name: message.get(each.name) for each in fields(cls) if each.name != "wire"}
        wire = message.get("wire")
        if not all(isinstance(text, str) for text in texts.values()):
            raise NotANodeError("its hello lacks what every hello has")
        if not is_node_name(texts["node"]):
            raise NotANodeError(f"it calls itself {texts['node']!r:.100}, which is no name of a node (node.name)")
        if texts["url"] and not is_server_url(texts["url"]):
            raise NotANodeError(f"its url, {texts['url']!r:.100}, is no http or https URL of a server (node.url)")
        if not isinstance(wire, list) or not all(isinstance(each, int) for each in wire):
            raise NotANodeError("its hello does not say which versions of the wire it understands")
        return cls(**texts, wire=tuple(wire))

    def spoken(self, other: Hello) -> int:
        """The version of the wire that the two speak. Raises `OtherWireError` when there is none."""
        if both := {*self.wire} & {*other.wire}:
            return max(both)
        raise OtherWireError(
            f"Node {other.node!r} runs Stateline {other.version} and speaks version {_listed(other.wire)} of the wire, "
            f"{self.node!r} runs {self.version} and speaks {_listed(self.wire)}: they do not understand each other: "
            "bring both to one version, or first to one between the two"
        )

    def understands(self, other: Hello) -> bool:
        """Whether either can take what the other has of a store for what it would have itself."""
        return self.tasks == other.tasks


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"


async def greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    own: Hello,
    *,
    dialing: bool,
    secret: bytes | None,
    place: str,
) -> Hello:
    """Return the other end's description of itself, once it is known to be another node of this application. A
    dialer's has the challenge that this end has made for the connection.

    `secret` is None over TLS; `place` is where the listener is said to be (``host:port``). Raises `NotANodeError`,
    `OtherWireError`, or `OSError` when the other end hangs up or says nothing for `GREETING_TIMEOUT_S`.
    """
    if not dialing:
        own = replace(own, challenge=secrets.token_hex(_NONCE_BYTES))
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            if secret is not None:
                await _prove(reader, writer, secret, place, dialing=dialing)
            if dialing:  # the listener speaks second: who only knocks learns nothing of it
                _say(writer, asdict(own))
            told = await _heard_of_itself(reader, dialing=dialing)
            try:
                other = Hello.of(told)
                _check(writer, own, other, over_tls=secret is None)
            except NotANodeError as error:
                if not dialing:  # who dials hangs up, and says in its own log why
                    _say(writer, {"refused": str(error)[:300]})
                raise
            if not dialing:
                _say(writer, asdict(own))
    except TimeoutError as error:
        raise ConnectionResetError("it did not introduce itself in time") from error
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("it hung up") from error
    own.spoken(other)
    return other if dialing else replace(other, challenge=own.challenge)


def proven_link(listener: Hello, challenge: str, place: str) -> ProvenConnection:
    """Return the connection for which proofs of tokens are made; `place` is where the listener was dialed."""
    parts = (challenge, listener.application, listener.node, listener.directory, place)
    return ProvenConnection("\0".join(("stateline link", *parts)).encode())


async def _heard_of_itself(reader: asyncio.StreamReader, *, dialing: bool) -> dict[str, Any]:
    try:
        told = await _heard(reader)
    except asyncio.IncompleteReadError as error:
        if not dialing:
            raise
        raise NotANodeError(
            "it hung up instead of greeting: see its log. Perhaps it does not take this node's certificate, which has "
            "to be of the same authority, and not expired (node.peer.tls.certificate.file)"
        ) from error
    if "refused" in told:
        raise RefusedError(f"it refuses this node: {told['refused']!s:.300}")
    return told


def _check(writer: asyncio.StreamWriter, own: Hello, other: Hello, *, over_tls: bool) -> None:
    if over_tls:
        _check_certificate(writer, other.node)
    if other.application != own.application:
        raise NotANodeError(f"it is of application {other.application!r}, and {own.node!r} of {own.application!r}")
    if other.node == own.node:
        raise NotANodeError(f"it calls itself {own.node!r}, as this one does: give each a node.name of its own")
    if other.directory == own.directory:
        raise NotANodeError(
            f"it has the state directory of node {own.node!r}, or a copy of it: give it a state.dir of its own"
        )


async def _prove(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, place: str, *, dialing: bool
) -> None:
    own = secrets.token_hex(_NONCE_BYTES)
    if dialing:
        _say(writer, {"nonce": own})
    other = (await _heard(reader)).get("nonce")
    if not isinstance(other, str) or len(other) != 2 * _NONCE_BYTES or not other.isascii():
        raise NotANodeError("it sent no nonce")
    if not dialing:
        _say(writer, {"nonce": own})
    nonces = own + other if dialing else other + own
    if dialing:
        _say(writer, {"proof": _proof(secret, "dialer", place, nonces)})
    try:
        theirs = (await _heard(reader)).get("proof")
    except asyncio.IncompleteReadError as error:
        if not dialing:
            raise
        raise NotANodeError(
            "it does not take this node's proof: give both the same secret (node.peer.secret.file), or it does not "
            f"mean {place} (node.peer.advertised)"
        ) from error
    expected = _proof(secret, "listener" if dialing else "dialer", place, nonces)
    if not isinstance(theirs, str) or not theirs.isascii() or not hmac.compare_digest(theirs, expected):
        raise NotANodeError(
            f"it has another secret (node.peer.secret.file), or does not mean {place} (node.peer.advertised)"
        )
    if not dialing:
        _say(writer, {"proof": _proof(secret, "listener", place, nonces)})


def _proof(secret: bytes, who: str, place: str, nonces: str) -> str:
    return hmac.digest(secret, f"stateline node {who} {place} {nonces}".encode(), "sha256").hex()


def _check_certificate(writer: asyncio.StreamWriter, node: str) -> None:
    """A node's name is one of the DNS names. One that only begins with it may be another node's."""
    names = certificate_names(writer.get_extra_info("peercert") or {})
    if node not in names:
        raise NotANodeError(
            f"it calls itself {node!r}, and its certificate is made out to {', '.join(names) or 'nobody'}"
        )


def _say(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(frame(message))


async def _heard(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if not 1 <= size <= MAX_GREETING_BYTES:
        raise NotANodeError(f"it began with a message of {size} bytes")
    try:
        return decode_message(await reader.readexactly(size))
    except InvalidArgumentError as error:
        raise NotANodeError("it began with something else") from error
