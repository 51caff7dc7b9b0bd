"""Proofs of tokens: what a node shows to another one for a client, in place of the client's token.

    proof  := key id ":" mac                     hexadecimal
    key id := BLAKE2b, 8 bytes, keyed with the token's hash, of nothing; person "token id"
    mac    := BLAKE2b, 16 bytes, keyed with the connection's key, of what is asked; person "asked"
    connection's key := BLAKE2b, 32 bytes, keyed with the token's hash, of the connection; person "connection"

The token's hash is that of the tokens file, so whoever has a copy of it can check a proof. A proof counts for one
request on one connection alone: what identifies a connection has random bits of the end that is asked. A proof tells
neither the token nor its hash. On the wire: never change.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import NamedTuple

from stateline_store import UnauthenticatedError

_MAC_BYTES, _KEY_BYTES, _ID_BYTES = 16, 32, 8
_MOST_KEPT = 1000  # tokens of a connection


class Shown(NamedTuple):
    """The token of a request: its hash, and its text unless another node has proven it."""

    digest: bytes
    token: str | None


class Proof(NamedTuple):
    """A node's proof, its connection, and the bytes that it signs."""

    key_id: str
    mac: bytes
    connection: ProvenConnection
    asked: bytes

    def holds(self, digest: bytes) -> bool:
        """Return whether its maker knows the token of this hash, or the hash."""
        return hmac.compare_digest(self.connection.mac(digest, self.asked), self.mac)


def key_id(digest: bytes) -> str:
    """Return the id by which a proof's token is found."""
    return blake2b(key=digest, digest_size=_ID_BYTES, person=b"token id").hexdigest()


class ProvenConnection:
    """One connection, at either end. `identity` is the same at both ends, and nowhere else."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self._keys: dict[bytes, tuple[str, bytes]] = {}  # by the token's hash: the key's id, and the connection's key

    def prove(self, digest: bytes, asked: bytes) -> str:
        return f"{self._key(digest)[0]}:{self.mac(digest, asked).hex()}"

    def read(self, text: str, asked: bytes) -> Proof:
        """Return the proof in this text. Raises `UnauthenticatedError` for another text."""
        name, _, mac = text.partition(":")
        try:
            return Proof(name, bytes.fromhex(mac), self, asked)
        except ValueError as error:
            raise UnauthenticatedError("The node that was asked has passed on no proof of a token.") from error

    def mac(self, digest: bytes, asked: bytes) -> bytes:
        return blake2b(asked, key=self._key(digest)[1], digest_size=_MAC_BYTES, person=b"asked").digest()

    def _key(self, digest: bytes) -> tuple[str, bytes]:
        if (known := self._keys.get(digest)) is not None:
            return known
        if len(self._keys) >= _MOST_KEPT:
            self._keys.clear()
        key = blake2b(self.identity, key=digest, digest_size=_KEY_BYTES, person=b"connection").digest()
        return self._keys.setdefault(digest, (key_id(digest), key))
