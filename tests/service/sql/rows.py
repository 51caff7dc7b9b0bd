"""Tables of tests: their rows as a server would send them, and the same rows in a plain DuckDB."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from stateline import serdes
from stateline.model.store_definition import StoreDefinition
from stateline.serde.plain import Serde
from stateline.sql.engine import SqlEngine
from stateline.sql.plan import TableRead
from stateline.sql.struct_types import quoted
from stateline.sql.tables import SqlTable, tables_of
from stateline.sql.told_errors import Params

Row = Mapping[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def key_value(name: str, key: Serde, value: Serde = serdes.json) -> StoreDefinition:
    return StoreDefinition(name, "timestamped_key_value", key, value)


@dataclass
class Model:
    """A value that is a STRUCT in SQL."""

    n: int
    city: str


TABLES = tables_of(
    [
        key_value("texts", serdes.string),
        key_value("blobs", serdes.bytes),
        key_value("numbers", serdes.int64),
        key_value("moments", serdes.datetime),
        key_value("ids", serdes.uuid),
        key_value("doubles", serdes.float64),
        StoreDefinition("windows", "timestamped_window", serdes.int32, serdes.json, retention_ms=1, window_size_ms=1),
        key_value('odd "name".x', serdes.string),
        key_value("models", serdes.string, serdes.model(Model)),
    ]
)
BY_NAME = {table.name: table for table in TABLES}


def batch(table: SqlTable, rows: Sequence[Row], columns: Sequence[str]) -> pa.RecordBatch:
    """Return rows as the server's Arrow rows: times in milliseconds."""
    schema = pa.schema([pa.field(each.name, each.type) for each in table.schema if each.name in columns])
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def admits(read: TableRead, table: SqlTable, row: Row) -> bool:
    """Return whether a row is in the part of the table that the read names."""
    key = row["key"]
    if table.columns["key"] == "UUID" and (read.keys is not None or read.lower is not None or read.upper is not None):
        key = _uuid(key)
    if read.keys is not None and key not in read.keys:
        return False
    bounds = [(read.lower, key, read.upper)]
    if table.has_windows:
        bounds += [(read.start_from, row["start"], read.start_to), (read.end_from, row["end"], read.end_to)]
    return all((low is None or low <= each) and (high is None or each <= high) for low, each, high in bounds)


def answer(
    engine: SqlEngine, sql: str, rows: Mapping[str, Sequence[Row]], params: Params = None
) -> list[dict[str, Any]]:
    """Return what the engine answers over the admitted rows alone, in batches of two."""
    try:
        prepared = engine.prepare(sql, params)
        reads = {read.number: read for read in prepared.reads}

        def of_read(number: int) -> Iterator[pa.RecordBatch]:
            read = reads[number]
            table = BY_NAME[read.table]
            given = [row for row in rows.get(table.name, ()) if admits(read, table, row)]
            for start in range(0, len(given), 2):
                yield batch(table, given[start : start + 2], read.columns)

        schema, *batches = engine.run(of_read)
        found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
        return found
    finally:
        engine.end()


def in_plain_duckdb(sql: str, rows: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return DuckDB's own answer over all rows."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone='UTC'")
        for table in TABLES:
            given = batch(table, rows.get(table.name, ()), table.schema.names)
            connection.register("given", pa.Table.from_batches([given]))
            columns = (
                f"make_timestamptz({quoted(name)} * 1000) AS {quoted(name)}"
                if kind == "TIMESTAMPTZ" and given.schema.field(name).type == pa.int64()
                else f"json_transform({quoted(name)}, '{json.dumps(kind)}') AS {quoted(name)}"
                if kind.startswith("STRUCT")
                else f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
                for name, kind in table.columns.items()
            )
            connection.execute(f"CREATE TABLE {quoted(table.name)} AS SELECT {', '.join(columns)} FROM given")
        found: list[dict[str, Any]] = connection.sql(sql).to_arrow_table().to_pylist()
        return found


def table_of(parts: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the rows of a result's Arrow IPC stream."""
    found: list[dict[str, Any]] = pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()
    return found


async def stream(given: pa.RecordBatch, times: int = 1) -> AsyncIterator[bytes]:
    """Yield an Arrow IPC stream, a batch several times."""
    yield given.schema.serialize().to_pybytes()
    for _ in range(times):
        yield given.serialize().to_pybytes()


def _uuid(text: str) -> Any:
    from uuid import UUID

    return UUID(text)
