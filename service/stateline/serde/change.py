"""Values of the repartition topic of a grouped table: what leaves a group, and what comes into it.

The kind is in the last byte, as Kafka Streams' `ChangedSerializer` writes it (KIP-904). The length is Kafka's zig-zag
varint.

| bytes                                               | the group loses | and gets |
|-----------------------------------------------------|-----------------|----------|
| ``old ‖ 00``                                        | old             |          |
| ``new ‖ 01``                                        |                 | new      |
| ``length of new:varint ‖ new ‖ old ‖ 02``           | old             | new      |
| the same with a byte before ``03``, ``04``, ``05``  | as above        | as above |

Kafka Streams reads the last three, and does not write them. In topics: never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from stateline.serde.binding import PartsSerde
from stateline.serde.plain import Serde, shown
from stateline_store import InvalidArgumentError

REMOVED, ADDED, REPLACED = range(3)
_KINDS = 3  # with as many more that have a flag


class OldAndNew(NamedTuple):
    """A row of a group before and after. None: the row was not in the group, or is not any more."""

    old: Any
    new: Any


def kind_of(data: bytes) -> int:
    """Return `REMOVED`, `ADDED` or `REPLACED` for bytes that `parted` reads."""
    return data[-1] % _KINDS


def joined(old: bytes | None, new: bytes | None) -> bytes:
    """Return the bytes of a change. At least one of both is given."""
    if old is None:
        if new is None:
            raise AssertionError("A change has neither an old row nor a new one.")
        return b"%b%c" % (new, ADDED)
    if new is None:
        return b"%b%c" % (old, REMOVED)
    return b"%b%b%b%c" % (_varint(len(new)), new, old, REPLACED)


def parted(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the old and the new row of a change. Raises `InvalidArgumentError` for other bytes."""
    if not data or data[-1] >= 2 * _KINDS or len(data) < 1 + data[-1] // _KINDS:
        raise InvalidArgumentError(f"{shown(data)} is no change of a grouped table: its last byte is 0 to 5.")
    rows = data[: -1 - data[-1] // _KINDS]
    kind = kind_of(data)
    if kind != REPLACED:
        return (rows, None) if kind == REMOVED else (None, rows)
    length, start = _read_varint(rows)
    if start + length > len(rows):
        raise InvalidArgumentError(f"{shown(data)} is no change of a grouped table: it is cut short.")
    return rows[start + length :], rows[start : start + length]


def _varint(length: int) -> bytes:
    rest, found = length << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return the number, and where it ends."""
    number = 0
    for place, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if number & 1:
                break  # negative
            return number >> 1, place + 1
    raise InvalidArgumentError(f"{shown(data)} is no change of a grouped table: it begins with no length.")


@dataclass(frozen=True, slots=True)
class ChangeSerde(PartsSerde):
    """Changes of rows of the serde `inner`. In JSON a change is ``{"old": …, "new": …}``, null for no row."""

    @property
    def name(self) -> str:
        return f"change-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        old, new = value
        return joined(*(None if row is None else self.inner.serialize(row) for row in (old, new)))

    def deserialize(self, data: bytes) -> OldAndNew:
        return OldAndNew(*(None if row is None else self.inner.deserialize(row) for row in parted(data)))

    def check(self, data: bytes) -> None:
        for row in parted(data):
            if row is not None:
                self.inner.check(row)

    def from_json(self, value: Any) -> bytes:
        rows = [value.get(side) for side in OldAndNew._fields] if isinstance(value, dict) else []
        if rows in ([], [None, None]):
            raise InvalidArgumentError(f'{shown(value)} is no change: it is {{"old": …, "new": …}}, with one of both.')
        return joined(*(None if row is None else self.inner.from_json(row) for row in rows))

    def to_json(self, data: bytes) -> Any:
        return {
            side: None if row is None else self.inner.to_json(row)
            for side, row in zip(OldAndNew._fields, parted(data), strict=True)
        }


def inner_of(serde: Serde) -> Serde:
    """Return the serde of the rows of a grouped table, from that of its repartition topic."""
    if not isinstance(serde, ChangeSerde):
        raise AssertionError(f"{serde.name} is no serde of changes.")
    return serde.inner
