"""Frames between a server and a query process, over a socket that the process inherits.

`docs/formats/sql.md` has every byte. A query process sends nothing that the server runs: reads and errors are JSON,
rows are Arrow.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import IntEnum
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa

from stateline.sql.plan import Prepared, TableRead
from stateline.sql.tables import SqlTable
from stateline_store import InvalidArgumentError

HEADER = struct.Struct(">IBI")
"""The payload's length, the kind, and the number of a read."""
MOST_BYTES = 1 << 24
"""Of a frame to the server that is no RESULT: a plan with its keys is the largest. What a RESULT may have is the
server's to say."""


class Kind(IntEnum):
    """The kind of a frame. The first eight go to the query process."""

    TABLES = 1
    PREPARE = 2
    RUN = 3
    ROWS = 4
    ROWS_END = 5
    ROWS_FAILED = 6
    DROP = 7
    LOOKUP = 8
    READY = 16
    PREPARED = 17
    PULL = 18
    RESULT = 19
    DONE = 20
    FAILED = 21


def frame(kind: Kind, payload: bytes = b"", number: int = 0) -> bytes:
    return HEADER.pack(len(payload), kind, number) + payload


def tables_payload(tables: Sequence[SqlTable]) -> bytes:
    return orjson.dumps(
        [
            {"name": table.name, "kind": table.kind, "schema": base64.b64encode(table.schema.serialize()).decode()}
            for table in tables
        ]
    )


def read_tables(payload: bytes | bytearray) -> list[SqlTable]:
    return [
        SqlTable(each["name"], pa.ipc.read_schema(pa.py_buffer(base64.b64decode(each["schema"]))), each["kind"])
        for each in orjson.loads(payload)
    ]


def statement_payload(sql: str, params: Sequence[Any] | Mapping[str, Any] | None, table: str | None = None) -> bytes:
    """Return a statement, with the table of a lookup. Raises `InvalidArgumentError` for parameters that JSON does not
    have."""
    try:
        return json.dumps({"sql": sql, "params": params, "table": table}).encode()  # orjson knows 64 bits alone
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"The parameters cannot be sent ({error}). Give JSON values.") from error


def prepared_payload(prepared: Prepared) -> bytes:
    """Values of keys are text: of bytes in base64, of times in ISO 8601."""
    reads = [asdict(read) for read in prepared.reads]
    told = {"explain": prepared.is_explain, "lookup": prepared.is_lookup, "reads": reads}
    return orjson.dumps(told, default=_as_text)


def read_prepared(payload: bytes, tables: Sequence[SqlTable]) -> Prepared:
    """Return the plan over these tables. Raises `ValueError` and `KeyError` for other payloads."""
    given = orjson.loads(payload)
    kinds = {table.name: table.columns for table in tables}
    reads = []
    for each in given["reads"]:
        read = _READERS.get(kinds[each["table"]]["key"], _unchanged)
        each["columns"] = tuple(each["columns"])
        each["keys"] = None if each["keys"] is None else tuple(map(read, each["keys"]))
        each["lower"], each["upper"] = (None if each[n] is None else read(each[n]) for n in ("lower", "upper"))
        reads.append(TableRead(**each))
    return Prepared(tuple(reads), bool(given["explain"]), bool(given["lookup"]))


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is no key")


def _unchanged(value: Any) -> Any:
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "BLOB": base64.b64decode,
    "UUID": UUID,
    "TIMESTAMPTZ": datetime.fromisoformat,
}
