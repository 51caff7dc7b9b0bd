"""Read the tokens file, and find the holder of a token.

    {"tokens": [{"name": "dashboard", "sha256": 64 hexadecimal digits, "role": "read" | "admin",
                 "stores": "*" | ["orders", …], "expires_at": "2027-01-31T00:00:00Z" | null}, …]}

`sha256` is the plain hash of the token's text. A token is 256 random bits, so a guess takes 2^255 hashes. A slow hash,
as for passwords, would only slow down requests. Names and hashes are unique. On disk: never change.

`admin` reads every store, also future ones, so its `stores` is `"*"`. It renews and releases all snapshots. `read` does
so only for snapshots that a token of its name has made.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from stateline.server.guard.proofs import Proof, key_id
from stateline.server.guard.token_errors import described_error
from stateline_store import ConfigurationError, UnauthenticatedError

# Scanners for leaked secrets recognize this prefix.
TOKEN_PREFIX = "stateline_"
_TOKEN_BYTES = 32
# A writer of the file can make tokens, so only its owner may write it, like sshd's authorized_keys. Others may read it,
# because only nodes can use the hashes (`proofs`).
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

Credential: TypeAlias = str | Proof
"""A token, or another node's proof that a client sent one."""

_BEARER = re.compile(rb"bearer +([A-Za-z0-9._~+/-]{1,1024}=*)", re.IGNORECASE)

_log = logging.getLogger(__name__)


class TokenEntry(BaseModel):
    """One entry of the tokens file. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.@:+-]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    role: Literal["read", "admin"] = "read"
    stores: Literal["*"] | tuple[str, ...] = "*"
    expires_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _admin_reads_all(self) -> TokenEntry:
        if self.role == "admin" and self.stores != "*":
            raise ValueError('an admin reads every store: leave stores out, or make it "*"')
        return self


class TokensFile(BaseModel):
    """The whole tokens file. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[TokenEntry, ...]

    @model_validator(mode="after")
    def _each_once(self) -> TokensFile:
        for what in ("name", "sha256"):
            if len({getattr(entry, what) for entry in self.tokens}) < len(self.tokens):
                raise ValueError(f"two tokens have the same {what}")
        return self


@dataclass(frozen=True, slots=True)
class Token:
    """The rights of a token's holder. `stores` of None is all. `expires_at_s` is Unix time."""

    name: str
    digest: bytes
    role: str
    stores: frozenset[str] | None
    expires_at_s: float | None

    def may_read(self, store: str) -> bool:
        return self.stores is None or store in self.stores


class Tokens:
    """The tokens of a file, read again when it has changed: with the next request, without a restart.

    For the event loop's thread: `holder` asks the file system for the file's times, a microsecond on a local disk. If
    the file is gone or unreadable, the last tokens stay valid and one line is logged: an editor must not lock everybody
    out.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        """Raises `ConfigurationError` if the file cannot be read now."""
        self._path, self._now_s = path, now_s
        # Taken before the read, so that a write meanwhile is noticed.
        self._seen = _signature(path)
        self._tokens = read_tokens(path)
        self._by_key_id: tuple[tuple[Token, ...], dict[str, Token]] = (), {}

    def holder(self, credential: Credential) -> Token:
        """Return the token of this credential. Raises `UnauthenticatedError` for an unknown or expired one.

        All known hashes are compared in constant time, so the duration reveals nothing about a token.
        """
        found = self._proven(credential) if isinstance(credential, Proof) else self._shown(credential)
        if found is None:
            raise UnauthenticatedError("The token is not known here: send one that is, or ask the operator for one.")
        if self._has_expired(found):
            raise UnauthenticatedError("The token has expired: ask the operator for a new one.")
        return found

    def _shown(self, token: str) -> Token | None:
        digest, found = hash_of(token), None
        for known in self._current():
            if hmac.compare_digest(known.digest, digest):
                found = known
        return found

    def _proven(self, proof: Proof) -> Token | None:
        current = self._current()
        if self._by_key_id[0] is not current:
            self._by_key_id = current, {key_id(token.digest): token for token in current}
        found = self._by_key_id[1].get(proof.key_id)
        return found if found is not None and proof.holds(found.digest) else None

    def is_valid(self, token: Token) -> bool:
        """Return whether this token is still in the file, unchanged, and has not expired."""
        return token in self._current() and not self._has_expired(token)

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at_s is not None and token.expires_at_s <= self._now_s()

    def _current(self) -> tuple[Token, ...]:
        signature = _signature(self._path)
        if signature != self._seen:
            self._seen = signature
            try:
                self._tokens = read_tokens(self._path)
                _log.info("%s has changed: %d tokens are known now", self._path, len(self._tokens))
            except ConfigurationError as error:
                _log.error("%s The tokens that were read last stay valid.", error)
                if isinstance(error.__cause__, OSError):
                    self._seen = None  # it may be readable the next time: a token that was removed must not stay
        return self._tokens


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the token of a request. Raises `UnauthenticatedError` for none, or more than one."""
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        raise UnauthenticatedError("This needs a token: send it as the header `Authorization: Bearer …`.")
    found = _BEARER.fullmatch(given[0])
    if found is None or len(given) > 1:
        raise UnauthenticatedError("The header Authorization is to be there once, as `Bearer` and a token.")
    return found[1].decode("ascii")


def new_token() -> str:
    """Return a new token: 256 random bits as text that a header accepts."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def hash_of(token: str) -> bytes:
    """Return SHA-256 of the token's text: 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file, also expired ones. Raises like `read_tokens_file`."""
    return tuple(_token(entry) for entry in read_tokens_file(path).tokens)


def read_tokens_file(path: Path) -> TokensFile:
    """Return the file's content.

    Raises `ConfigurationError` if it is missing or unreadable, if its group or others may write it, or if it does not
    have the form in the module's docstring.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror}): make it with `stateline token add`") from error
    if mode & _WRITABLE_BY_OTHERS:
        raise _refused(path, f"may be written by others (mode {stat.S_IMODE(mode):04o}): chmod go-w it")
    try:
        return TokensFile.model_validate_json(content, strict=True)
    except ValidationError as error:
        # Nothing of pydantic's own goes along: its error holds what stands in the file.
        raise _refused(path, f"is no tokens file ({described_error(error)}): correct it") from None


def _refused(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"server.tokens.file = {str(path)!r} {why}.")


def _token(entry: TokenEntry) -> Token:
    stores = None if entry.stores == "*" else frozenset(entry.stores)
    expires_at: datetime | None = entry.expires_at
    return Token(
        entry.name,
        bytes.fromhex(entry.sha256),
        entry.role,
        stores,
        None if expires_at is None else expires_at.timestamp(),
    )


def _signature(path: Path) -> tuple[int, ...] | None:
    """Return what changes with the file: inode, size, times of content and of mode. None if it cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
