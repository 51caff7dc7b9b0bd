"""`Feed`: the rows of a table, as DuckDB scans them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from stateline.sql.struct_types import TIME, converted, quoted, times_of
from stateline.sql.tables import SqlTable

Rows = Callable[[int], Iterable[pa.RecordBatch]]
"""Gives the rows of a read by its number, once."""

JSON = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}


class Feed:
    """The rows of one statement's read: once as they come, or several times if they are loaded. None before `begin`.

    `name` is what DuckDB knows it by: with a space, as no store's. The names of its columns begin with `prefix`.
    `error` is what `rows` raised.
    """

    def __init__(self, table: SqlTable, name: str, prefix: str = "r_") -> None:
        self.table = table
        self.name = name
        self._prefix = prefix
        self._schema = pa.schema([_field(prefix + column, table, column) for column in table.columns])
        self._read: tuple[int, Rows] | None = None
        self._loaded: pa.Table | None = self._schema.empty_table()
        self.error: Exception | None = None

    def begin(self, number: int, rows: Rows) -> None:
        """Take the rows of this read from now on."""
        self._read, self._loaded, self.error = (number, rows), None, None

    def end(self) -> None:
        """Have no rows from now on."""
        self._read, self._loaded = None, self._schema.empty_table()

    def load(self) -> None:
        """Read all rows into memory."""
        self._loaded = pa.Table.from_batches(list(self._batches(*self._taken())), self._schema)

    def select(self) -> str:
        """Return the SELECT of the table's columns, with their SQL types, of DuckDB's source `name`."""
        table = self.table
        columns = ", ".join(
            f"{converted(self._prefix + name, kind, table.schema.field(name).type)} AS {quoted(name)}"
            for name, kind in table.columns.items()
        )
        return f"SELECT {columns} FROM temp.{quoted(self.name)}"

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if self._loaded is not None:
            return self._loaded.__arrow_c_stream__()
        return pa.RecordBatchReader.from_batches(self._schema, self._batches(*self._taken())).__arrow_c_stream__()

    def _taken(self) -> tuple[int, Rows]:
        if self._read is None:
            raise RuntimeError("The plan scans rows twice that stream.")
        taken, self._read = self._read, None
        return taken

    def _batches(self, number: int, rows: Rows) -> Iterator[pa.RecordBatch]:
        try:
            for batch in rows(number):
                arrays = [
                    self._array(batch, name, field)
                    for name, field in zip(self.table.columns, self._schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except Exception as error:
            self.error = error
            raise

    def _array(self, batch: pa.RecordBatch, name: str, field: pa.Field) -> pa.Array:
        if (place := batch.schema.get_field_index(name)) < 0:
            return pa.nulls(batch.num_rows, field.type)  # the plan does not need it
        array = batch.column(place)
        if array.type == field.type:
            return array
        return times_of(array) if field.type == TIME else array.view(field.type)


def _field(name: str, table: SqlTable, column: str) -> pa.Field:
    """Return the column as DuckDB scans it: JSON by its extension type, times as such."""
    kind, sql = table.schema.field(column).type, table.columns[column]
    if sql == "TIMESTAMPTZ" and kind == pa.int64():
        kind = TIME
    return pa.field(name, kind, True, JSON if sql == "JSON" and kind == pa.utf8() else None)
