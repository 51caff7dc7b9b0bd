"""DuckDB, locked down, for one statement at a time. It runs in a query process.

A statement is planned over empty tables. Then each table that it reads becomes a view of the rows that the server
sends. All of this is one transaction, which is rolled back: `now()` stays the same, and nothing remains.

A lookup takes less time: a statement that names all keys it reads, without joins and functions that make rows. Its rows
are few, and views of a second database have them. These views stay. Statements that may ask the time or set a seed are
no lookups, so that a lookup leaves nothing behind either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from stateline.sql.feeds import JSON, Feed, Rows
from stateline.sql.plan import Prepared, TableRead, is_plain, scanned_once, table_reads
from stateline.sql.statement import EMPTY, check_text, explained, is_momentary
from stateline.sql.struct_types import quoted
from stateline.sql.tables import SqlTable
from stateline.sql.told_errors import Params, is_forbidden, told
from stateline_store import InvalidArgumentError, SqlInvalidError, SqlNotAllowedError, SqlTooLargeError

BATCH_ROWS = 8192
_SHARE_OF_LOOKUPS = 8
"""Lookups have this part of the memory. Their rows are few."""
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


class SqlEngine:
    """`memory_bytes` bounds what its two databases know of. The sandbox bounds the process."""

    def __init__(self, memory_bytes: int) -> None:
        self._tables: Sequence[SqlTable] = ()
        lookups_bytes = memory_bytes // _SHARE_OF_LOOKUPS or 1
        self._database, self._lookups = _locked(memory_bytes - lookups_bytes), _locked(lookups_bytes)
        self._connection = self._database.cursor()
        self._feeds: dict[str, Feed] = {}  # of the lookups' views
        self._last_lookup: tuple[str, duckdb.Statement] | None = None

    def use_tables(self, tables: Sequence[SqlTable]) -> None:
        """Replace the tables, for all statements that follow. A table that DuckDB refuses is not there."""
        for table in self._tables:
            self._database.execute(f"DROP TABLE {quoted(table.name)}")
            self._lookups.execute(f"DROP VIEW {quoted(table.name)}")
            self._lookups.unregister(self._feeds.pop(table.name).name)
        self._tables = [table for number, table in enumerate(tables) if self._create(number, table)]

    def _create(self, number: int, table: SqlTable) -> bool:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in table.columns.items())
        feed = Feed(table, f"rows of {number}")
        try:
            self._database.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
        except duckdb.Error:
            return False
        self._lookups.register(feed.name, feed)
        self._lookups.execute(f"CREATE VIEW main.{quoted(table.name)} AS {feed.select()}")
        self._feeds[table.name] = feed
        return True

    def prepare(self, sql: str, params: Params) -> Prepared:
        """Plan one SELECT. Raises `InvalidArgumentError`."""
        check_text(sql)
        inner, self._sql, self._params = explained(sql), sql, params
        with self._clean_errors():
            self._connection = self._database.cursor()
            self._statement = self._one_select(sql if inner is None else inner)
            if momentary := is_momentary(sql):
                self._connection.execute("BEGIN TRANSACTION")
            plan = self._plan()
            reads = tuple(table_reads(plan, self._tables))
            names_keys = bool(reads) and all(read.keys is not None for read in reads)
            is_lookup = names_keys and not momentary and is_plain(plan)
            if not is_lookup and not momentary:
                self._connection.execute("BEGIN TRANSACTION")
        self._prepared = Prepared(reads, inner is not None, is_lookup)
        return self._prepared

    def prepare_lookup(self, sql: str, params: Params, table: str) -> None:
        """Take a lookup in this table alone, which was planned before with another key. Raises like `prepare`."""
        self._sql, self._params = sql, params
        if self._last_lookup is None or self._last_lookup[0] != sql:
            with self._clean_errors():
                self._connection = self._database.cursor()
                self._last_lookup = sql, self._one_select(sql)
        self._statement = self._last_lookup[1]
        self._prepared = Prepared((TableRead(0, table, (), keys=()),), is_lookup=True)

    def run(self, rows: Rows) -> Iterator[pa.RecordBatch | pa.Schema]:
        """Yield the schema of the result, then its rows. `rows` gives the rows of a read by its number, once.

        Raises `InvalidArgumentError`, and what `rows` raises."""
        return self._result(rows)

    def end(self) -> None:
        """Forget the statement, and all that its connection has."""
        self._connection.close()  # an open transaction is rolled back

    def _result(self, rows: Rows) -> Iterator[pa.RecordBatch | pa.Schema]:
        reads, is_lookup = self._prepared.reads, self._prepared.is_lookup
        is_bounded = all(read.keys is not None for read in reads)
        feeds = {each.number: self._feeds[each.table] if is_lookup else self._view(each) for each in reads}
        for number, feed in feeds.items():
            feed.begin(number, rows)
        try:
            with self._clean_errors():
                streamed = set() if is_bounded or not feeds else scanned_once(self._plan(), feeds.keys())
                for number, feed in feeds.items():
                    if number not in streamed:
                        feed.load()
                reader, types = self._looked_up() if is_lookup else self._ran()
                yield _typed(reader.schema, types)
                yield from reader
        except InvalidArgumentError:
            for feed in feeds.values():
                if feed.error is not None:
                    raise feed.error from None
            raise
        finally:
            for feed in feeds.values():
                feed.end()

    def _ran(self) -> tuple[pa.RecordBatchReader, list[str]]:
        relation = self._connection.sql(self._statement, params=self._params)
        return relation.to_arrow_reader(BATCH_ROWS), [str(each) for each in relation.types]

    def _looked_up(self) -> tuple[pa.RecordBatchReader, list[str]]:
        """Bind once, and hold the few rows in memory: this takes half a millisecond less."""
        cursor = self._lookups.execute(self._statement, self._params)
        types = [str(column[1]) for column in cursor.description or ()]
        return cursor.to_arrow_reader(BATCH_ROWS), types

    def _one_select(self, sql: str) -> duckdb.Statement:
        statements = self._connection.extract_statements(sql)
        if not statements:  # comments and semicolons alone
            raise SqlInvalidError(EMPTY)
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
        with self._clean_errors(planned=True):
            plan: str = self._connection.execute(text, self._params).fetchall()[0][1]
        return plan

    def _view(self, read: TableRead) -> Feed:
        """Replace a table by a view of its rows. A view of the session would only hide it: `memory.t` names the table
        itself."""
        table = next(each for each in self._tables if each.name == read.table)
        feed = Feed(table, f"read {read.number}", f"r{read.number}_")
        self._connection.register(feed.name, feed)
        self._connection.execute(f"DROP TABLE {quoted(table.name)}")
        self._connection.execute(f"CREATE VIEW main.{quoted(table.name)} AS {feed.select()}")
        return feed

    @contextmanager
    def _clean_errors(self, *, planned: bool = False) -> Iterator[None]:
        """Raise DuckDB's errors as errors of the statement. A statement that is `planned` is behind a line of
        EXPLAIN."""
        try:
            yield
        except InvalidArgumentError:
            raise
        except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError) as error:
            raise SqlTooLargeError(
                "The statement needs more memory than a query may have. Read fewer rows, or aggregate them."
            ) from error
        except (duckdb.Error, pa.ArrowException, RuntimeError, ValueError, TypeError) as error:
            kind = SqlNotAllowedError if is_forbidden(str(error)) else SqlInvalidError
            given = self._sql, self._params, self._tables, self._names_with_quotes()
            raise kind(told(str(error), *given, planned=planned)) from error

    def _names_with_quotes(self) -> list[str]:
        """Return the names of tables and columns that a statement must quote."""
        names = {name for table in self._tables for name in (table.name, *table.columns)}
        words = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        reserved = {word for (word,) in self._database.execute(words).fetchall()}
        return sorted(name for name in names if not name.isidentifier() or name.lower() in reserved)


def _locked(memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reaches nothing outside."""
    config: dict[str, str | bool | int | float | list[str]] = {"threads": "1", "memory_limit": f"{memory_bytes}B"}
    database = duckdb.connect(":memory:", config=config)
    for setting in _LOCKED:
        database.execute(setting)
    return database


def _typed(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    """Return the schema with JSON columns marked as such (Arrow's canonical extension `arrow.json`)."""
    fields = [field.with_metadata(JSON) if kind == "JSON" else field for field, kind in zip(schema, types, strict=True)]
    return pa.schema(fields, schema.metadata)
