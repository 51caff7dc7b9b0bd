"""Snapshot: its parts, their commits and its lease, and the pin by which a caller finds it again.

`snapshot_directory` describes the manifest, `snapshot.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateline_store.errors import DamagedDataError, DoesNotExistError, NewerFormatError
from stateline_store.snapshots.checkpoints import CheckpointPart

PIN = ".pin-"  # on disk: never change
_FORMAT = 1  # on disk: never change what 1 means


@dataclass(frozen=True, slots=True)
class PartsElsewhere:
    """The parts of a snapshot at another node, in that node's directory and under the same id. Without parts, the node
    only remembers the pin. Thread-safe: it never changes. JSON as `to_json` writes it, on disk: never change."""

    node: str
    parts: tuple[CheckpointPart, ...]

    def has(self, store: str, partition: int) -> bool:
        """Return whether this store partition is there."""
        return any((part.store, part.partition) == (store, partition) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"node": self.node, "parts": [part.to_json() for part in self.parts]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartsElsewhere:
        """Read the JSON object. Raises `KeyError`, `TypeError`, `ValueError` or `DamagedDataError` for anything
        else."""
        return cls(str(value["node"]), tuple(map(CheckpointPart.from_json, value["parts"])))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot, or the part of one node in a snapshot over several nodes. One of these nodes knows `elsewhere`.
    Times are milliseconds since the epoch. Thread-safe: it never changes."""

    id: str
    created_at_ms: int
    expires_at_ms: int
    parts: tuple[CheckpointPart, ...]
    owner: str | None = None
    caller: str | None = None
    elsewhere: tuple[PartsElsewhere, ...] = ()

    def part(self, store: str, partition: int) -> CheckpointPart:
        """Return the part of this store partition. Raises `DoesNotExistError` if there is none."""
        for part in self.parts:
            if (part.store, part.partition) == (store, partition):
                return part
        raise DoesNotExistError(f"The snapshot {self.id} has no partition {partition} of {store[:200]!r}.")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "format": _FORMAT,
            "id": self.id,
            "created_at_ms": self.created_at_ms,
            "expires_at_ms": self.expires_at_ms,
            "parts": [part.to_json() for part in self.parts],
            **({} if self.owner is None else {"owner": self.owner}),
            **({} if self.caller is None else {"caller": self.caller}),
            **({"elsewhere": [each.to_json() for each in self.elsewhere]} if self.elsewhere else {}),
        }

    def encode(self) -> bytes:
        """Return the bytes of the manifest."""
        return json.dumps(self.to_json()).encode()

    @classmethod
    def decode(cls, data: bytes, where: object = "A snapshot") -> Snapshot:
        """Read the manifest. Raises as `from_json`."""
        try:
            members = json.loads(data)
        except ValueError as error:
            raise DamagedDataError(f"{data!r:.200} is no manifest of a snapshot ({error!r}).") from error
        return cls.from_json(members, where)

    @classmethod
    def from_json(cls, members: Mapping[str, Any], where: object = "A snapshot") -> Snapshot:
        """Read the JSON object at `where`. Raises `NewerFormatError` for a newer version, `DamagedDataError` for
        anything else."""
        try:
            if members["format"] > _FORMAT:
                raise NewerFormatError.of(where, f"format {members['format']!r:.200}", f"up to {_FORMAT}")
            parts = tuple(map(CheckpointPart.from_json, members["parts"]))
            times = int(members["created_at_ms"]), int(members["expires_at_ms"])
            owner, caller = (None if name is None else str(name) for name in map(members.get, ("owner", "caller")))
            elsewhere = tuple(map(PartsElsewhere.from_json, members.get("elsewhere", ())))
            return cls(str(members["id"]), *times, parts, owner, caller, elsewhere)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedDataError(f"{members!r:.200} is no manifest of a snapshot ({error!r}).") from error


@dataclass(frozen=True, slots=True)
class Pin:
    """A caller's name for the snapshot of these stores. Thread-safe: it never changes."""

    text: str
    owner: str | None
    stores: frozenset[str]

    @property
    def file_name(self) -> str:
        """The name of the file with the snapshot's id. On disk: never change."""
        named = json.dumps([self.text, self.owner, sorted(self.stores)])
        return f"{PIN}{hashlib.sha256(named.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class CallerShare:
    """The most snapshots that one caller may have, by the name under which they are counted. Thread-safe."""

    caller: str
    most: int
