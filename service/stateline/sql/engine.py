"""DuckDB, locked down, for one statement at a time. It runs in a query process.

A statement is planned over empty tables. Then each table that it reads becomes a view of the rows that the server
sends. All of this is one transaction, which is rolled back: `now()` stays the same, and nothing remains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from stateline.sql.plan import Prepared, TableRead, scanned_once, table_reads
from stateline.sql.statement import check_text, explained
from stateline.sql.struct_types import quoted
from stateline.sql.tables import SqlTable
from stateline_store import InvalidArgumentError, SqlInvalidError, SqlNotAllowedError, SqlTooLargeError

Params = Sequence[Any] | Mapping[str, Any] | None
Rows = Callable[[int], Iterable[pa.RecordBatch]]

BATCH_ROWS = 8192
_NESTED = ("STRUCT", "MAP")
_JSON = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}
_TIME = pa.timestamp("ms", "UTC")
# A statement has a connection of its own, so settings of connections are GLOBAL. The order counts: with external
# access off first, `.tmp` of the working directory stays readable and writable.
_LOCKED = (
    "SET temp_directory=''",
    "SET enable_external_access=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET GLOBAL python_enable_replacements=false",
    "SET GLOBAL TimeZone='UTC'",
    # Without these, empty tables would have plans without scans.
    "SET disabled_optimizers='statistics_propagation,empty_result_pullup,late_materialization'",
    "SET lock_configuration=true",
)
# Advice that follows DuckDB's message: on settings, extensions and its own code.
_ADVICE = re.compile(r"\n\s*\n(?!LINE \d).*?(?=\n\s*\nLINE \d|\Z)", re.DOTALL)
_KIND = re.compile(r"^(?:INTERNAL|[A-Z][A-Za-z-]*(?: [A-Za-z-]+)?) Error: ")
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_MOST_MESSAGE = 1_500


class SqlEngine:
    """`memory_bytes` bounds what DuckDB knows of. The sandbox bounds the process."""

    def __init__(self, memory_bytes: int) -> None:
        self._tables: Sequence[SqlTable] = ()
        config: dict[str, str | bool | int | float | list[str]] = {"threads": "1", "memory_limit": f"{memory_bytes}B"}
        self._database = duckdb.connect(":memory:", config=config)
        for setting in _LOCKED:
            self._database.execute(setting)
        self._connection = self._database.cursor()

    def use_tables(self, tables: Sequence[SqlTable]) -> None:
        """Replace the tables, for all statements that follow. A table that DuckDB refuses is not there."""
        for table in self._tables:
            self._database.execute(f"DROP TABLE {quoted(table.name)}")
        self._tables = [table for table in tables if self._create(table)]

    def _create(self, table: SqlTable) -> bool:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in table.columns.items())
        try:
            self._database.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
        except duckdb.Error:
            return False
        return True

    def prepare(self, sql: str, params: Params) -> Prepared:
        """Plan one SELECT. Raises `InvalidArgumentError`."""
        check_text(sql)
        inner = explained(sql)
        with _clean_errors():
            self._connection = self._database.cursor()
            self._statement = self._one_select(sql if inner is None else inner)
            self._params = params
            self._connection.execute("BEGIN TRANSACTION")
            plan = self._plan()
        self._prepared = Prepared(tuple(table_reads(plan, self._tables)), inner is not None)
        return self._prepared

    def run(self, rows: Rows) -> Iterator[pa.RecordBatch | pa.Schema]:
        """Yield the schema of the result, then its rows. `rows` gives the rows of a read by its number, once.

        Raises `InvalidArgumentError`, and what `rows` raises."""
        if self._prepared.is_explain:
            return _plan_rows(self._prepared.reads)
        return self._result(rows)

    def end(self) -> None:
        """Forget the statement, and all that its connection has."""
        self._connection.close()  # an open transaction is rolled back

    def _result(self, rows: Rows) -> Iterator[pa.RecordBatch | pa.Schema]:
        reads = self._prepared.reads
        feeds = {read.number: self._view(read, rows) for read in reads}
        try:
            with _clean_errors():
                bounded = all(read.keys is not None for read in reads)
                streamed = set() if bounded or not feeds else scanned_once(self._plan(), feeds.keys())
                for number, feed in feeds.items():
                    if number not in streamed:
                        feed.load()
                relation = self._connection.sql(self._statement, params=self._params)
                reader = relation.to_arrow_reader(BATCH_ROWS)
                yield _typed(reader.schema, [str(each) for each in relation.types])
                yield from reader
        except InvalidArgumentError:
            for feed in feeds.values():
                if feed.error is not None:
                    raise feed.error from None
            raise

    def _one_select(self, sql: str) -> duckdb.Statement:
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise SqlNotAllowedError(f"{len(statements)} statements were given. Give one SELECT.")
        if (kind := statements[0].type) != duckdb.StatementType.SELECT:
            raise SqlNotAllowedError(
                f"{kind.name} is not answered here. Give one SELECT, or EXPLAIN SELECT."
                + (" PIVOT needs its columns: ON name IN (…)." if kind.name == "MULTI" else "")
            )
        return statements[0]

    def _plan(self) -> str:
        text = f"EXPLAIN (FORMAT JSON)\n{self._statement.query}"
        with _clean_errors(planned=True):
            plan: str = self._connection.execute(text, self._params).fetchall()[0][1]
        return plan

    def _view(self, read: TableRead, rows: Rows) -> _Feed:
        """Replace a table by a view of its rows."""
        table = next(each for each in self._tables if each.name == read.table)
        feed = _Feed(table, read.number, rows)
        source = f"stateline_read_{read.number}"
        self._connection.register(source, feed)
        self._connection.execute(f"DROP TABLE {quoted(table.name)}")
        columns = ", ".join(
            f"{_converted(f'r{read.number}_{name}', kind)} AS {quoted(name)}" for name, kind in table.columns.items()
        )
        self._connection.execute(f"CREATE VIEW main.{quoted(table.name)} AS SELECT {columns} FROM temp.{source}")
        return feed


class _Feed:
    """The rows of a read, as DuckDB scans them: once as they come, or several times if they are loaded."""

    def __init__(self, table: SqlTable, number: int, rows: Rows) -> None:
        self._number = number
        self._rows = rows
        self._loaded: pa.Table | None = None
        self._is_taken = False
        self.error: Exception | None = None
        self._schema = pa.schema([_field(f"r{number}_{name}", table, name) for name in table.columns])
        self._names = tuple(table.columns)

    def load(self) -> None:
        self._loaded = pa.Table.from_batches(list(self._batches()), self._schema)

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if self._loaded is not None:
            return self._loaded.__arrow_c_stream__()
        if self._is_taken:
            raise RuntimeError("The plan scans rows twice that stream.")
        self._is_taken = True
        return pa.RecordBatchReader.from_batches(self._schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._rows(self._number):
                arrays = [
                    self._array(batch, name, field) for name, field in zip(self._names, self._schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except Exception as error:
            self.error = error
            raise

    def _array(self, batch: pa.RecordBatch, name: str, field: pa.Field) -> pa.Array:
        if (place := batch.schema.get_field_index(name)) < 0:
            return pa.nulls(batch.num_rows, field.type)  # the plan does not need it
        array = batch.column(place)
        return array if array.type == field.type else array.view(field.type)


def _typed(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    """Return the schema with JSON columns marked as such (Arrow's canonical extension `arrow.json`)."""
    fields = [
        field.with_metadata(_JSON) if kind == "JSON" else field for field, kind in zip(schema, types, strict=True)
    ]
    return pa.schema(fields, schema.metadata)


def _field(name: str, table: SqlTable, column: str) -> pa.Field:
    """Return the column as DuckDB scans it: JSON by its extension type, times as such."""
    kind, sql = table.schema.field(column).type, table.columns[column]
    if sql == "TIMESTAMPTZ" and kind == pa.int64():
        kind = _TIME
    return pa.field(name, kind, True, _JSON if sql == "JSON" and kind == pa.utf8() else None)


def _converted(column: str, kind: str) -> str:
    if kind == "UUID":
        return f"CAST({column} AS UUID)"
    if column.endswith("_headers") or not (kind.startswith(_NESTED) or kind.endswith("[]")):
        return column if kind in _SCANNED or column.endswith("_headers") else f"CAST({column} AS {kind})"
    spec = json.dumps(kind).replace("'", "''")
    return f"json_transform({column}, '{spec}')"


_SCANNED = ("VARCHAR", "JSON", "BLOB", "INTEGER", "BIGINT", "DOUBLE", "TIMESTAMPTZ")


def _plan_rows(reads: Iterable[TableRead]) -> Iterator[pa.RecordBatch | pa.Schema]:
    schema = pa.schema([("table", pa.utf8()), ("reads", pa.utf8()), ("columns", pa.list_(pa.utf8()))])
    yield schema
    rows = [{"table": read.table, "reads": read.described(), "columns": list(read.columns)} for read in reads]
    yield pa.RecordBatch.from_pylist(rows, schema)


@contextmanager
def _clean_errors(*, planned: bool = False) -> Iterator[None]:
    """Raise DuckDB's errors as errors of the statement. A statement that is `planned` is behind a line of EXPLAIN."""
    try:
        yield
    except InvalidArgumentError:
        raise
    except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError) as error:
        raise SqlTooLargeError(
            "The statement needs more memory than a query may have. Read fewer rows, or aggregate them."
        ) from error
    except (duckdb.Error, pa.ArrowException, RuntimeError, ValueError, TypeError) as error:
        kind = SqlNotAllowedError if _is_forbidden(str(error)) else SqlInvalidError
        raise kind(cleaned(str(error), planned=planned)) from error


def _is_forbidden(message: str) -> bool:
    return "disabled by configuration" in message or "Permission Error" in message


def cleaned(message: str, *, planned: bool = False) -> str:
    """Return DuckDB's message with its place and candidates, without advice on settings, extensions and its code."""
    if message.startswith("INTERNAL") or "Stack Trace" in message:
        return "DuckDB failed to run the statement. Write it in another way."
    if _is_forbidden(message):
        return "The statement reads a file, the network or a setting. It can read the tables of stores only."
    text = _ADVICE.sub("", _KIND.sub("", message)).strip()
    if planned:
        text = _LINE.sub(lambda found: f"LINE {int(found[1]) - 1}:", text)
    return text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}…"
