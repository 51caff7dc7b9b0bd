"""The columns of what is answered in Arrow: names, types as Arrow calls them, whether there may be nulls.

| of                      | columns                                           |
|-------------------------|---------------------------------------------------|
| rows, key-value         | key, value, timestamp                             |
| rows, window or session | key, start, end, value, timestamp                 |
| rows, versioned         | key, value, timestamp, valid_to                   |
| changes                 | key, value, timestamp, partition, offset          |
| changes, window, session| key, start, end, value, timestamp, partition, offset |

`timestamp` is there in rows of stores that keep one, and in all changes. `headers` comes last in stores that keep them.
`arrow_rows` and `changes.batches` say more, and make them; they load pyarrow, which takes a quarter of a server's
start, so they are imported by who has rows to send. Here nothing is loaded. Pure, and thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stateline.model.store_definition import StoreDefinition
from stateline.serde.binding import PartsSerde
from stateline.serde.model import ModelSerde
from stateline.serde.plain import FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde, shown
from stateline.serde.scalars import DatetimeSerde, UuidSerde
from stateline.serde.shown_as_json import SHOWN_AS_JSON
from stateline_store import InvalidArgumentError

# What ends a stream; without it a reader cannot tell the end from a broken connection (Arrow's IPC format: a
# continuation marker and a length of 0).
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


HEADERS = "headers"
"""The type of a record's headers: a list of pairs of a name, a string, and a value, nullable bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; the members of its description over HTTP."""

    name: str
    type: str
    """string, binary, int32, int64, double, timestamp (milliseconds, UTC) or headers (`HEADERS`)."""
    nullable: bool = False


def row_columns(definition: StoreDefinition, chosen: Iterable[str] | None = None) -> list[Column]:
    """Return the columns of this store's rows: all, or those named, in the order named.

    Raises `InvalidArgumentError` for a column that the store does not have, and for one that is named twice.
    """
    key, value = Column("key", type_name(definition.key)), Column("value", type_name(definition.value))
    timestamp = Column("timestamp", "int64", nullable=True)
    if definition.kind == "versioned":
        known = [key, value, timestamp, Column("valid_to", "int64", nullable=True)]
    else:
        known = [key, *_window(definition), value, *([timestamp] if definition.timestamped else [])]
        known += _headers(definition)
    return _chosen(known, chosen, f"{definition.name!r}: it has")


def change_columns(definition: StoreDefinition, chosen: Iterable[str] | None = None) -> list[Column]:
    """Return the columns of this store's changes, like `row_columns`. `value` is null in a deletion."""
    known = [
        Column("key", type_name(definition.key)),
        *_window(definition),
        Column("value", type_name(definition.value), nullable=True),
        Column("timestamp", "int64", nullable=True),
        Column("partition", "int32"),
        Column("offset", "int64"),
        *_headers(definition),
    ]
    return _chosen(known, chosen, f"the changes of {definition.name!r}: they have")


def type_name(serde: Serde) -> str:
    """Return the name of the Arrow type of this serde's values."""
    kind = type(serde)  # not isinstance: who derives one gives the bytes another meaning
    if kind in (StringSerde, JsonSerde, UuidSerde, ModelSerde) or is_shown_as_json(serde):
        return "string"
    if kind is DatetimeSerde:
        return "timestamp"
    if kind is FloatSerde:
        return "double"
    if kind is IntegerSerde:
        return "int32" if serde.name == "int32" else "int64"
    return "binary"


def is_shown_as_json(serde: Serde) -> bool:
    """Return whether a column has the JSON of its values instead of their stored bytes."""
    return type(serde) in SHOWN_AS_JSON or isinstance(serde, PartsSerde)


def _window(definition: StoreDefinition) -> list[Column]:
    return [Column("start", "int64"), Column("end", "int64")] if definition.plain_kind in ("window", "session") else []


def _headers(definition: StoreDefinition) -> list[Column]:
    return [Column("headers", HEADERS, nullable=True)] if definition.headers else []


def _chosen(known: Sequence[Column], chosen: Iterable[str] | None, whose: str) -> list[Column]:
    by_name = {column.name: column for column in known}
    names = tuple(by_name if chosen is None else chosen)
    for name in names:
        if name not in by_name:
            raise InvalidArgumentError(f"columns={shown(name)} is no column of {whose} {', '.join(by_name)}.")
    if len(set(names)) < len(names) or not names:
        raise InvalidArgumentError(f"columns={','.join(names)!r:.60} names one twice, or none: name each once.")
    return [by_name[name] for name in names]
