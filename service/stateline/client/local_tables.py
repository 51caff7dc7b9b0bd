"""The rows of a snapshot in a DuckDB of this process."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stateline.client.sql import installed
from stateline.sql.struct_types import converted, quoted, times_of
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

SERVERS_TABLES = "show all tables"
_TIME = "TIMESTAMPTZ"
_VERSIONS = "_versions"


class LocalTables:
    """Tables with the names and types of the server's SQL. `described` are the rows of `SERVERS_TABLES`.

    Raises `ConfigurationError` if DuckDB is not installed, and `InvalidArgumentError` for a store that is no table.
    For one thread at a time.
    """

    def __init__(self, described: Iterable[Mapping[str, Any]], stores: Container[str]) -> None:
        self.connection: DuckDBPyConnection = installed("duckdb", "'stateline[sql]'").connect(":memory:")
        self.connection.execute("SET TimeZone = 'UTC'")
        self._stores = stores
        self._columns: dict[str, dict[str, str]] = {}
        for row in described:
            types = (kind.replace("TIMESTAMP WITH TIME ZONE", _TIME) for kind in row["column_types"])
            self._columns[row["name"]] = dict(zip(row["column_names"], types, strict=True))

    def create(self, store: str) -> None:
        """Make the empty tables of a store."""
        if store not in self._columns:
            raise InvalidArgumentError(f"{store!r} is no table in the server's SQL, so it is none here: leave it out.")
        for table in self._tables(store):
            columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._columns[table].items())
            self.connection.execute(f"CREATE TABLE {quoted(table)} ({columns})")

    def add(self, store: str, batch: pa.RecordBatch) -> None:
        """Add rows of the snapshot to the tables of their store."""
        import pyarrow as pa

        types = self._columns[self._tables(store)[-1]]
        arrays = {
            name: times_of(array) if types.get(name) == _TIME and array.type == pa.int64() else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        }
        self.connection.register("stateline_rows", pa.table(arrays))
        for table in self._tables(store):
            columns = ", ".join(
                converted(quoted(name), kind, arrays[name].type) for name, kind in self._columns[table].items()
            )
            valid = " WHERE valid_to IS NULL" if table == store and "valid_to" in arrays else ""
            self.connection.execute(f"INSERT INTO {quoted(table)} SELECT {columns} FROM stateline_rows{valid}")
        self.connection.unregister("stateline_rows")

    def _tables(self, store: str) -> list[str]:
        versions = store + _VERSIONS
        has_versions = "valid_to" in self._columns.get(versions, ()) and versions not in self._stores
        return [store, versions] if has_versions else [store]
