"""Greet another node: each end proves that it is a node, then describes itself.

    greeting := [nonce proof] hello            in both directions; nonce and proof only without TLS
    nonce    := {"nonce": 64 hexadecimal digits}
    proof    := {"proof": HMAC-SHA256 of the secret over the prover ("dialer", "listener"), the listener's place,
                 and both nonces, the dialer's first}
    hello    := {"wire": [understood versions], "application", "node", "directory", "version", "topology", "url",
                 "tasks", "purpose": "link", "copy" to fetch files of stores, or "read" for one long answer,
                 "challenge": the listener's random hexadecimal digits}
              | {"refused": why}               for a proven node that is refused

Frames are those of `stateline.query.wire`, at most 4 KiB until both ends are proven. Over TLS, certificates are the
proof: the nodes' authority (`node.peer.tls.ca.file`) has signed them for the node's name. Without TLS, a shared secret
is. The secret is never sent. It links only addresses of one machine, because the link is not encrypted. An end without
a proof learns nothing, and is disconnected.

The ends speak the highest version that both understand (`spoken`), so nodes of two versions of Stateline can link
during an upgrade. Version 1 is the only one. `link` describes it.

A query says whether the asking node declares the store with timestamps, and the answer fits that. Topologies may differ
in this, and have equal `tasks`. Instead of a client's token, a proof of it is sent (`guard.proofs`). It is valid on
this link only: its identity is the listener's challenge, name, directory and place.

A proof is valid once, because nonces are new. It is valid in one direction, so an end cannot return the other's proof.
It is valid at one place, so a program on a lost node's port cannot relay two nodes' greetings and keep the connection.
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
"""Versions of the protocol after the greeting, newest first."""
LINK, COPY, READ = "link", "copy", "read"
"""Purposes of a connection. On the wire: never change."""
MAX_GREETING_BYTES = 4096
GREETING_TIMEOUT_S = 5.0
_NONCE_BYTES = 32


class NotANodeError(Exception):
    """The other end has not proven to be a node of this application. str() has the reason, for the log."""


class RefusedError(NotANodeError):
    """A node of the application refuses this one. str() has the reason."""


class OtherWireError(Exception):
    """The two nodes have no common version of the protocol. str() has both, for people."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's description of itself.

    - `directory` is the id of its state directory. `url` is its address for clients, or empty.
    - `topology` is a digest of its topology. `tasks` is a digest that ignores timestamps of stores
      (`Topology.tasks_digest`).
    - `purpose` is the dialer's. `challenge` is the listener's, new for each connection."""

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
        """Read a message. Raises `NotANodeError` if it is no hello. Ignores unknown members, which newer builds
        send."""
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
        """Return the highest common version. Raises `OtherWireError` if there is none."""
        if both := {*self.wire} & {*other.wire}:
            return max(both)
        raise OtherWireError(
            f"Node {other.node!r} runs Stateline {other.version} and speaks version {_listed(other.wire)} of the wire, "
            f"{self.node!r} runs {self.version} and speaks {_listed(self.wire)}: they do not understand each other: "
            "bring both to one version, or first to one between the two"
        )

    def understands(self, other: Hello) -> bool:
        """Whether both nodes have the same stores, except for timestamps."""
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
    """Return the hello of the other end, after it has proven to be another node of this application. A dialer's hello
    gets this end's challenge.

    `secret` is None over TLS. `place` is the listener's announced address (``host:port``). Raises `NotANodeError`,
    `OtherWireError`, or `OSError` if the other end hangs up or is silent for `GREETING_TIMEOUT_S`.
    """
    if not dialing:
        own = replace(own, challenge=secrets.token_hex(_NONCE_BYTES))
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            if secret is not None:
                await _prove(reader, writer, secret, place, dialing=dialing)
            if dialing:  # the listener speaks second, so that strangers learn nothing
                _say(writer, asdict(own))
            told = await _heard_of_itself(reader, dialing=dialing)
            try:
                other = Hello.of(told)
                _check(writer, own, other, over_tls=secret is None)
            except NotANodeError as error:
                if not dialing:  # a dialer hangs up, and logs the reason
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
    """Return the identity of a connection for proofs of tokens. `place` is the dialed address."""
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
    """Raise `NotANodeError` unless the node's name is one of the certificate's DNS names."""
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
