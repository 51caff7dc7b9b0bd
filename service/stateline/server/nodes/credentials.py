"""The client of a message from one node to another: a proof of the client's token.

    member "proof" := `guard.proofs`, of the message without it, in which an HTTP body is replaced by its digest

The bytes that a proof is of are the message as JSON with sorted members; of "point", of which there are most, they are
its number, path and query with a zero byte before each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from stateline.server.guard.proofs import Proof, ProvenConnection, Shown
from stateline.server.wire.exchange import Message

_PROOF = "proof"


def with_proof(message: Message, shown: Shown | None, connection: ProvenConnection) -> Message:
    """Return the same message with a proof of the token that was shown, if one was."""
    if shown is not None:
        message[_PROOF] = connection.prove(shown.digest, _proven(message))
    return message


def proof_in(message: Message, connection: ProvenConnection) -> Proof | None:
    """Return the proof in a message that has arrived, None without one. Raises `UnauthenticatedError` for a text that
    is no proof."""
    text = message.get(_PROOF)
    if not isinstance(text, str):
        return None
    rest = {**message}
    del rest[_PROOF]
    return connection.read(text, _proven(rest))


def _proven(message: Mapping[str, Any]) -> bytes:
    if message.get("type") == "point":
        return f"\0{message['id']}\0{message['path']}\0{message['query']}".encode()
    if message.get("type") == "http":
        digest = hashlib.sha256(str(message.get("body")).encode()).hexdigest()
        message = {**message, "body": digest}
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
