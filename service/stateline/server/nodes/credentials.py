"""Who asks, in what one node says to another: a proof of the client's token, or with an older node the token itself.

    member "proof" := `guard.proofs`, of the message without it, in which an HTTP body is replaced by its digest;
                      from version 3 of the wire on
    member "token", header "authorization" := the token; up to version 2

The bytes that a proof is of are the message as JSON with sorted members; of "point", of which there are most, they are
its number, path and query with a zero byte before each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from stateline.server.guard.proofs import Proof, ProvenConnection, Shown
from stateline.server.guard.tokens import Credential
from stateline.server.wire.exchange import Message
from stateline_store import NotPresentError

_PROOF, _TOKEN = "proof", "token"


class Sender:
    """Of one link, to `node`. `connection` is None where that node speaks an older version, which is sent tokens only
    if it `may_have_tokens`."""

    def __init__(self, node: str, connection: ProvenConnection | None, *, may_have_tokens: bool) -> None:
        self._node, self._connection, self._may_have_tokens = node, connection, may_have_tokens

    def with_shown(self, message: Message, shown: Shown | None) -> Message:
        """The same message, with what says who asks. Raises `NotPresentError` where that node would want the token."""
        if self._connection is None:
            return self._with_token(message, None if shown is None else self._token(shown))
        if shown is not None:
            message[_PROOF] = self._connection.prove(shown.digest, _proven(message))
        return message

    def _token(self, shown: Shown) -> str:
        if not self._may_have_tokens or shown.token is None:
            raise NotPresentError(
                f"Node {self._node!r} runs an older build, which would have to be sent the client's token. Ask that "
                "node, or upgrade it. node.peer.require.proofs = false sends tokens until then."
            )
        return shown.token

    def _with_token(self, message: Message, token: str | None) -> Message:
        if message["type"] != "http":
            message[_TOKEN] = token
        elif token is not None:
            message["headers"] = {**message["headers"], "authorization": f"Bearer {token}"}
        return message


class Receiver:
    """Of one link, at the end that is asked; `connection` is None where the other node speaks an older version."""

    def __init__(self, connection: ProvenConnection | None) -> None:
        self._connection = connection

    def shown(self, message: Message) -> Credential | None:
        """What says who asks; None where nothing does. Raises `UnauthenticatedError` for what is no proof."""
        if self._connection is None:
            token = message.get(_TOKEN)
            return token if isinstance(token, str) else None
        text = message.get(_PROOF)
        if not isinstance(text, str):
            return None
        rest = {**message}
        del rest[_PROOF]
        return self._connection.read(text, _proven(rest))

    def proof(self, message: Message) -> Proof | None:
        """The same of a request over HTTP, which has a token in its headers where there is one."""
        found = None if self._connection is None else self.shown(message)
        return found if isinstance(found, Proof) else None


def _proven(message: Mapping[str, Any]) -> bytes:
    if message.get("type") == "point":
        return f"\0{message['id']}\0{message['path']}\0{message['query']}".encode()
    if message.get("type") == "http":
        digest = hashlib.sha256(str(message.get("body")).encode()).hexdigest()
        message = {**message, "body": digest}
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
