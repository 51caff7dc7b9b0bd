"""A cursor as clients see it, opaque to them: base64url without padding.

    node:4 bytes (`node_mark`) ‖ process:8 random bytes ‖ cursor:8 random bytes ‖ page:u32 BE ‖ HMAC-SHA256 of all that,
    its first 16 bytes

Every server process of a node signs with the same key (`signing_key`), which no other node knows: whose cursor it is
can be told everywhere, and whether it is genuine there. Pure, but for the key's file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from pathlib import Path
from typing import NamedTuple

from stateline.serde.plain import shown
from stateline_store import DoesNotExistError
from stateline_store.files.durable_files import create_file, refused

MARK_BYTES = 4
_BODY = struct.Struct(">4s8s8sI")
_MAC_BYTES = 16
_KEY_BYTES = 32


class CursorToken(NamedTuple):
    """The content of a cursor: the process that has it, its number, and the next page (from 1)."""

    process: bytes
    cursor: bytes
    page: int


def node_mark(node: str) -> bytes:
    """By which its cursors are known to be of the node of this name."""
    return hashlib.sha256(node.encode()).digest()[:MARK_BYTES]


def mark_of(text: str) -> bytes | None:
    """Return the mark of the node that made this cursor; None for other text."""
    data = _decoded(text)
    return None if data is None else data[:MARK_BYTES]


def signing_key(application: Path) -> bytes:
    """The key of this node's application, made when there is none: ``cursor.key``, which its user alone can read.

    Raises `RetryLaterError` when the directory cannot be written.
    """
    path = application / "cursor.key"
    try:
        application.mkdir(mode=0o750, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size < _KEY_BYTES:
            path.unlink()  # a power cut left a part: a short key could be guessed
        if not path.exists():
            create_file(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        return path.read_bytes()
    except OSError as error:
        raise refused(path, "written", error) from error


def write_cursor(key: bytes, node: bytes, token: CursorToken) -> str:
    """The cursor that says this, as `read_cursor` reads it; `node` is a mark."""
    body = _BODY.pack(node, *token)
    return _encoded(body + _mac(key, body))


def read_cursor(key: bytes, text: str) -> CursorToken:
    """Read a client's cursor. Raises `DoesNotExistError` for one that was not signed with this key."""
    data = _decoded(text)
    if data is None or not hmac.compare_digest(data[_BODY.size :], _mac(key, data[: _BODY.size])):
        raise never_given(text)
    return CursorToken(*_BODY.unpack(data[: _BODY.size])[1:])


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)[:_MAC_BYTES]


def never_given(text: str) -> DoesNotExistError:
    """Return the error for a text that is no cursor."""
    return DoesNotExistError(f"cursor={shown(text)} is not known. Start over without it.")


def _decoded(text: str) -> bytes | None:
    """The bytes of what may be a cursor; None for what cannot be one. Base64 has several spellings of the same bytes:
    only ours is taken."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == _BODY.size + _MAC_BYTES and _encoded(data) == text else None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
