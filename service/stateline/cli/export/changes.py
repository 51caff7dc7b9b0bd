"""`TableChanges`: the rows in which a store and its table differ, found by DuckDB.

Both are read whole and joined by key. So no history is needed, and rows that expired are found, which no changelog
tells. DuckDB uses up to 1 GiB of memory, and files in a temporary directory beyond.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import duckdb
import pyarrow as pa

from stateline.cli.export.rows import StoreRows
from stateline.sql.struct_types import quoted
from stateline_store.errors import RetryLaterError

DELETED, NUMBER = "_deleted", "_export"
_MEMORY = "1GiB"


class TableChanges:
    """Compares when it is made. `has_twins` says that the key of a change has several rows, as in window stores with
    duplicates: it identifies none of them. A context manager, for one thread."""

    def __init__(self, rows: StoreRows, table: Any, *, is_log: bool) -> None:
        """`table` is an Arrow stream of what was exported before. If `is_log`, its rows are changes, of which the last
        one of a key counts. Raises what reading the store raises, and `RetryLaterError` if the disk is too small."""
        self._keys, self._columns = [quoted(name) for name in rows.keys], [quoted(name) for name in rows.schema.names]
        failed: list[Exception] = []
        found = _noted((batch for part in rows.read() for batch in part), failed)
        with ExitStack() as stack:
            self._connection = stack.enter_context(duckdb.connect(":memory:"))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stateline-export-"))
            self._connection.execute(f"SET temp_directory='{folder}'; SET memory_limit='{_MEMORY}'")
            self._connection.execute("SET TimeZone='UTC'; SET preserve_insertion_order=false")
            self._connection.register("now_", pa.RecordBatchReader.from_batches(rows.schema, found))
            self._connection.register("before", pa.RecordBatchReader.from_stream(table))
            try:
                self._connection.execute(self._compared(is_log=is_log))
            except duckdb.Error as error:
                if failed:  # DuckDB has only its text
                    raise failed[0] from error
                raise RetryLaterError(f"{rows.store!r} and its table cannot be compared: {error!s:.500}") from error
            counts = f"count(*) FILTER (NOT {DELETED}), count(*) FILTER ({DELETED}), coalesce(bool_or(twin), false)"
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
        others = [name for name in self._columns if name not in self._keys]
        now, before, joined, twin = "now_", "before", list(self._keys), "false"
        if is_log:
            newest = f"row_number() OVER (PARTITION BY {keys} ORDER BY {NUMBER} DESC) = 1"
            before = f"(SELECT * FROM (SELECT * FROM before QUALIFY {newest}) WHERE NOT {DELETED})"
        if '"start"' in self._keys:
            numbered = (
                f"(SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(others)}) AS nth, "
                f"count(*) OVER (PARTITION BY {keys}) AS rows_ FROM {{}})"
            )
            now, before, twin = numbered.format(now), numbered.format(before), "greatest(n.rows_, b.rows_) > 1"
            joined.append("nth")
        return (
            f"CREATE TABLE changes AS SELECT "
            f"{', '.join(f'coalesce(n.{each}, b.{each}) AS {each}' for each in joined)}, "
            f"{', '.join(f'n.{each}' for each in others)}, n.key IS NULL AS {DELETED}, {twin} AS twin "
            f"FROM {now} n FULL JOIN {before} b ON {' AND '.join(f'n.{each} = b.{each}' for each in joined)} "
            f"WHERE n.key IS NULL OR b.key IS NULL OR {_values('n', others)} IS DISTINCT FROM {_values('b', others)}"
        )


def _values(of: str, names: list[str]) -> str:
    return f"({', '.join(f'{of}.{each}' for each in names)})"


def _noted(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as error:
        failed.append(error)
        raise
