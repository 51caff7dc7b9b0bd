"""Snapshot: which stores it has, at which commits, and until when it is kept; the pin that somebody knows it by.

The manifest, `snapshot.json`, is described in `snapshot_directory`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from stateline_store.checkpoints import CheckpointPart
from stateline_store.errors import DamagedDataError, DoesNotExistError, NewerFormatError

PIN = ".pin-"  # on disk: never change
_FORMAT = 1  # on disk: never change what 1 means


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot. Times are milliseconds since the epoch. Thread-safe: it never changes."""

    id: str
    created_at_ms: int
    expires_at_ms: int
    parts: tuple[CheckpointPart, ...]
    owner: str | None = None
    caller: str | None = None

    def part(self, store: str, partition: int) -> CheckpointPart:
        """What it has of this store partition. Raises `DoesNotExistError` when that is nothing."""
        for part in self.parts:
            if (part.store, part.partition) == (store, partition):
                return part
        raise DoesNotExistError(f"The snapshot {self.id} has no partition {partition} of {store[:200]!r}.")

    def encode(self) -> bytes:
        """The manifest."""
        members = {
            "format": _FORMAT,
            "id": self.id,
            "created_at_ms": self.created_at_ms,
            "expires_at_ms": self.expires_at_ms,
            "parts": [part.to_json() for part in self.parts],
            **({} if self.owner is None else {"owner": self.owner}),
            **({} if self.caller is None else {"caller": self.caller}),
        }
        return json.dumps(members).encode()

    @classmethod
    def decode(cls, data: bytes, where: object = "A snapshot") -> Snapshot:
        """Read it. Raises `NewerFormatError` for one of a newer version, which `where` has, `DamagedDataError` for what
        is none.
        """
        try:
            members: dict[str, Any] = json.loads(data)
            if members["format"] > _FORMAT:
                raise NewerFormatError.of(where, f"format {members['format']!r:.200}", f"up to {_FORMAT}")
            parts = tuple(map(CheckpointPart.from_json, members["parts"]))
            times = int(members["created_at_ms"]), int(members["expires_at_ms"])
            owner, caller = (None if name is None else str(name) for name in map(members.get, ("owner", "caller")))
            return cls(str(members["id"]), *times, parts, owner, caller)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedDataError(f"{data!r:.200} is no manifest of a snapshot ({error!r}).") from error


@dataclass(frozen=True, slots=True)
class Pin:
    """What somebody calls the snapshot of these stores that they ask for. Thread-safe: it never changes."""

    text: str
    owner: str | None
    stores: frozenset[str]

    @property
    def file_name(self) -> str:
        """Where its snapshot's id stands. On disk: never change."""
        named = json.dumps([self.text, self.owner, sorted(self.stores)])
        return f"{PIN}{hashlib.sha256(named.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Share:
    """How many snapshots there may be of one caller, a name for who is counted. Thread-safe: it never changes."""

    caller: str
    most: int
