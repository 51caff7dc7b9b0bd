"""`TableChanges`: the rows in which a store and its table differ, found by DuckDB.

Both are read whole and joined by key. So no history is needed, and rows that expired are found, which no changelog
tells. DuckDB uses up to 1 GiB of memory, and files in a temporary directory beyond.

Twins are rows of one key and window (of a store that retains duplicates), or of keys that SQL takes for one: 0.0 and
-0.0, and the kinds of NaN. A double is compared by its bits here.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from stateline.cli.export.rows import StoreRows
from stateline.sql.struct_types import quoted
from stateline_store.errors import RetryLaterError

DELETED, NUMBER = "_deleted", "_export"
_MEMORY = "1GiB"
_OF_TABLE = re.compile(r"registered as 'before' failed: (.*)")
_TWINS = "SELECT 1 FROM {} GROUP BY {} HAVING count(*) > 1"


def has_twins(rows: StoreRows) -> bool:
    """Return whether rows of the store are twins. Raises as `TableChanges`."""
    if not _may_have_twins(rows):
        return False
    with ExitStack() as stack, _reading(rows) as found:
        connection = _connected(stack)
        connection.register("now_", found)
        query = _TWINS.format("now_", ", ".join(map(quoted, rows.keys)))
        return bool(connection.execute(f"{query} LIMIT 1").fetchall())


class TableChanges:
    """Compares when it is made. `has_twins` says that a change is of twins: its key does not identify it. A context
    manager, for one thread."""

    def __init__(self, rows: StoreRows, table: Any, *, is_log: bool) -> None:
        """`table` is an Arrow stream of what was exported before. If `is_log`, its rows are changes, of which the last
        one of a key counts. Raises what reading the store raises, and `RetryLaterError` if the table cannot be read or
        the disk is too small."""
        self._rows = rows
        self._keys, self._columns = [quoted(name) for name in rows.keys], [quoted(name) for name in rows.schema.names]
        with ExitStack() as stack:
            self._connection = _connected(stack)
            with _reading(rows, "Restore it" if is_log else "Write all of it again with --full") as found:
                self._connection.register("now_", found)
                self._connection.register("before", pa.RecordBatchReader.from_stream(table))
                self._connection.execute(self._compared(is_log=is_log))
            counts = f"count(*) FILTER (NOT {DELETED}), count(*) FILTER ({DELETED}), coalesce(bool_or(twin), false)"
            if _may_have_twins(rows):  # one of them left, and the other came
                counts += f" OR EXISTS ({_TWINS.format('changes', ', '.join(self._keys))})"
            (figures,) = self._connection.execute(f"SELECT {counts} FROM changes").fetchall()
            self.changed: int
            self.deleted: int
            self.has_twins: bool
            self.changed, self.deleted, self.has_twins = figures
            self._open = stack.pop_all()

    def __enter__(self) -> TableChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, number: int | None = None) -> pa.RecordBatchReader:
        """Return the changes by key, with a column `_deleted`. With a number, a column `_export` has it."""
        columns = [*self._columns, DELETED, *([] if number is None else [f"{number}::BIGINT AS {NUMBER}"])]
        query = f"SELECT {', '.join(columns)} FROM changes ORDER BY {', '.join(self._keys)}"
        return self._connection.sql(query).to_arrow_reader(65_536)

    def _compared(self, *, is_log: bool) -> str:
        keys = ", ".join(self._keys)
        exact = {quoted(each.name): _exact(each) for each in self._rows.schema}
        others = [name for name in self._columns if name not in self._keys]
        now, before, joined, twin = "now_", "before", list(self._keys), "false"
        if is_log:
            newest = f"row_number() OVER (PARTITION BY {keys} ORDER BY {NUMBER} DESC) = 1"
            before = f"(SELECT * FROM (SELECT * FROM before QUALIFY {newest}) WHERE NOT {DELETED})"
        if _may_have_twins(self._rows):
            partition, order = (", ".join(exact[each].format("") for each in names) for names in (self._keys, others))
            numbered = (
                f"(SELECT *, row_number() OVER (PARTITION BY {partition} ORDER BY {order}) AS nth, "
                f"count(*) OVER (PARTITION BY {keys}) AS rows_ FROM {{}})"
            )
            now, before, twin = numbered.format(now), numbered.format(before), "greatest(n.rows_, b.rows_) > 1"
            joined.append("nth")
        exact["nth"] = "{}nth"
        on = (f"{exact[each].format('n.')} = {exact[each].format('b.')}" for each in joined)
        values = (f"({', '.join(exact[each].format(of) for each in others)})" for of in ("n.", "b."))
        return (
            f"CREATE TABLE changes AS SELECT "
            f"{', '.join(f'coalesce(n.{each}, b.{each}) AS {each}' for each in joined)}, "
            f"{', '.join(f'n.{each}' for each in others)}, n.key IS NULL AS {DELETED}, {twin} AS twin "
            f"FROM {now} n FULL JOIN {before} b ON {' AND '.join(on)} "
            f"WHERE n.key IS NULL OR b.key IS NULL OR {' IS DISTINCT FROM '.join(values)}"
        )


def _may_have_twins(rows: StoreRows) -> bool:
    return "start" in rows.keys or pa.types.is_floating(rows.schema.field("key").type)


def _exact(column: pa.Field) -> str:
    """Return an expression that is equal only for equal values, with a place for the name of their table."""
    return f"{{}}{quoted(column.name)}{'::BIT' if pa.types.is_floating(column.type) else ''}"


def _connected(stack: ExitStack) -> duckdb.DuckDBPyConnection:
    connection = stack.enter_context(duckdb.connect(":memory:"))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stateline-export-"))
    connection.execute(f"SET temp_directory='{folder}'; SET memory_limit='{_MEMORY}'")
    connection.execute("SET TimeZone='UTC'; SET preserve_insertion_order=false")
    return connection


@contextmanager
def _reading(rows: StoreRows, advice: str = "") -> Iterator[pa.RecordBatchReader]:
    """Yield the rows for DuckDB, and raise the errors of reading them as they are: DuckDB has only their text. `advice`
    is for a table whose files are missing or damaged."""
    failed: list[Exception] = []
    found = _noted((batch for part in rows.read() for batch in part), failed)
    try:
        yield pa.RecordBatchReader.from_batches(rows.schema, found)
    except duckdb.Error as error:
        if failed:
            raise failed[0] from error
        if why := _OF_TABLE.search(str(error)):
            raise RetryLaterError(
                f"The table of {rows.store!r} cannot be read: {why[1]:.500}. If a file is missing or damaged: {advice}."
            ) from error
        raise RetryLaterError(f"{rows.store!r} and its table cannot be compared: {error!s:.500}") from error


def _noted(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as error:
        failed.append(error)
        raise
