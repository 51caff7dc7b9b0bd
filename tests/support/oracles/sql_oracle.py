"""What the same SELECT has over DuckDB tables of the input up to an answer's Position."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import duckdb
import pyarrow as pa

from stateline import serdes
from support.apps.matrix_app import History
from support.apps.sql_app import COLUMNS, SqlOracle
from support.oracles.sql_statements import PLAIN_OF, Statement, columns_of

Offsets: TypeAlias = Mapping[int, int]

_ARROW = {
    "JSON": pa.utf8(),
    "VARCHAR": pa.utf8(),
    "UUID": pa.utf8(),
    "BLOB": pa.binary(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMPTZ": pa.timestamp("ms", "UTC"),
    COLUMNS["models"][1]: pa.struct([("n", pa.int64()), ("city", pa.utf8()), ("tags", pa.list_(pa.utf8()))]),
}
_KEPT = 4
_HEADERS = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))


class SqlTables:
    """The stores at any Position, of a growing input."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._at: dict[int, list[SqlOracle]] = {}

    def answer(self, statement: Statement, offsets: Mapping[str, Offsets]) -> list[list[Any]]:
        """Return the rows of the statement as JSON has them. `offsets` are those of each table."""
        with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
            connection.execute("SET TimeZone='UTC'")
            for table in statement.tables:
                self._create(connection, table, offsets.get(table, {}), statement.as_of)
            relation = connection.sql(statement.sql)
            kinds = [str(kind) for kind in relation.types]
            return [
                [_shown(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in relation.fetchall()
            ]

    def _create(self, connection: Any, table: str, offsets: Offsets, as_of: int | None) -> None:
        name, kinds = PLAIN_OF[table.removesuffix("_versions")], columns_of(table)
        all_versions = table.endswith("_versions")
        rows = [
            row for p, end in offsets.items() for row in self._of(p, end).rows(name, as_of, all_versions=all_versions)
        ]
        columns = [
            pa.array([_stored(row[at], kind) for row in rows], _ARROW.get(kind, _HEADERS))
            for at, kind in enumerate(kinds.values())
        ]
        connection.register("given", pa.Table.from_arrays(columns, [*kinds]))
        cast = ", ".join(f'CAST("{column}" AS {kind}) AS "{column}"' for column, kind in kinds.items())
        connection.execute(f'CREATE TABLE "{table}" AS SELECT {cast} FROM given')

    def _of(self, partition: int, offset: int) -> SqlOracle:
        """Return the stores of a partition at an offset. Some are kept, since offsets go back a little now and then: a
        table's commit is behind another's, and a node behind another."""
        kept = self._at.setdefault(partition, [])
        oracle = max((each for each in kept if each.offset <= offset), key=lambda each: each.offset, default=None)
        if oracle is None:
            oracle = SqlOracle()
            kept[:] = [oracle, *sorted(kept, key=lambda each: each.offset)[: _KEPT - 1]]
        for event in self._history.records[partition][oracle.offset + 1 : offset + 1]:
            oracle.take(event)
        return oracle


def _stored(value: Any, kind: str) -> Any:
    match kind:
        case "JSON":
            return serdes.json.serialize(value).decode()
        case "UUID":
            return str(value)
        case _ if kind == COLUMNS["models"][1]:
            return vars(value)
        case _ if kind.endswith("[]"):
            return [{"name": name, "value": content} for name, content in value]
    return value


def _shown(value: Any, kind: str) -> Any:
    """Return a value as an answer in JSON has it."""
    match value:
        case None:
            return None
        case str() if kind == "JSON":
            return json.loads(value)
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        case datetime():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case UUID():
            return str(value)
        case dict():
            return {name: _shown(each, "") for name, each in value.items()}
        case list():
            return [_shown(each, "") for each in value]
    return value


def told(answer: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of an answer in the order of its columns."""
    names = [column["name"] for column in answer["columns"]]
    return [[row[name] for name in names] for row in answer["rows"]]


def in_order(rows: Sequence[Sequence[Any]], sql: str) -> list[str]:
    """Return rows to compare: as they come if the statement orders them. To DuckDB, -0.0 equals 0.0: either may come
    first, or stand for both."""
    found = [json.dumps([0.0 if value == 0 and isinstance(value, float) else value for value in row]) for row in rows]
    return found if "ORDER BY ALL" in sql else sorted(found)
