"""Read the stores of a backup without a server: their files are fetched to a temporary directory, and read there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from stateline.backup.cached_files import cached_part
from stateline.backup.cut import BackupCut, fetch_part
from stateline.backup.location import BackupLocation
from stateline.client.requests import key_text, refuse_text
from stateline.client.sql import installed
from stateline.rows.arrow_rows import arrow_schema
from stateline.rows.ranges import possible_ranges
from stateline.rows.selection import RowSelection, keys_between
from stateline.rows.snapshot_rows import batches
from stateline.serde.key_text import key_of_text
from stateline_store import DoesNotExistError, Position
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.checkpoints import Checkpoint

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    from duckdb import DuckDBPyConnection

    from stateline.client.requests import Key
    from stateline.model.store_definition import StoreDefinition


class OpenBackup:
    """The stores of one backup, all nodes' parts. `stateline.client.backup` makes it. Thread-safe: it never changes."""

    def __init__(self, cut: BackupCut) -> None:
        self._cut, self._location = cut, BackupLocation(cut.url, cut.application_id)
        self.id, self.application_id, self.stores = cut.id, cut.application_id, cut.stores
        """The backup's id, by which it is found again, the application, and the names of its stores."""

    @property
    def position(self) -> Position:
        """The input that all stores together reflect. Parts of one worker are of one moment."""
        return reduce(Position.merge, map(self._cut.position, self.stores), Position())

    def store(self, name: str, declared: StoreDefinition | None = None) -> BackupStore:
        """Return this store. `declared` is its declaration in the application, as `app.topology().stores[name]`.
        Without it, values of a Schema Registry and of serdes of one's own are the stored bytes.

        Raises `DoesNotExistError` for an unknown store, `DamagedDataError` if a partition is not in the backup, and
        `TopologyError` if `declared` has another kind or other types."""
        return BackupStore(self._location, self._cut, name, declared)

    def duckdb(self, stores: Iterable[str] | None = None) -> DuckDBPyConnection:
        """Return a DuckDB in this process with these stores, or all, as tables of the names and types of the server's
        SQL. All rows are loaded. Raises as `store` and `batches`, `InvalidArgumentError` for a name instead of a list,
        and `ConfigurationError` if DuckDB is not installed."""
        refuse_text("stores", stores)
        from stateline.client.local_tables import LocalTables
        from stateline.sql.tables import tables_of

        wanted = {name: self.store(name) for name in (self.stores if stores is None else stores)}
        described = [
            {"name": each.name, "column_names": list(each.columns), "column_types": list(each.columns.values())}
            for each in tables_of(store.definition for store in wanted.values())
        ]
        tables = LocalTables(described, wanted)
        for name, store in wanted.items():
            tables.create(name)
            for batch in store.batches():
                tables.add(name, batch)
        return tables.connection


class BackupStore:
    """A store of a backup. Thread-safe: it never changes. Each read has a temporary directory of its own (`TMPDIR`). It
    has the files of one partition at a time.

    Every read raises `DamagedDataError` for a file that is not what was written, `DoesNotExistError` if the backup was
    deleted meanwhile, and `RetryLaterError` when the location or the disk refuses."""

    def __init__(
        self, location: BackupLocation, cut: BackupCut, name: str, declared: StoreDefinition | None = None
    ) -> None:
        self._location, self._parts, self._backup_id = location, cut.parts(name), cut.id
        self.name, self.position, self.partitions = name, cut.position(name), tuple(self._parts)
        self.definition = cut.definition(name, declared)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows, as a snapshot over HTTP has them. The metadata has the store's kind and types,
        `stateline.backup` (the id) and `stateline.position` (JSON)."""
        schema = arrow_schema(self.definition)
        told = {b"stateline.backup": self._backup_id, b"stateline.position": orjson.dumps(self.position.to_json())}
        return schema.with_metadata({**schema.metadata, **told})

    def batches(
        self,
        partitions: Sequence[int] | None = None,
        *,
        lower: Key | None = None,
        upper: Key | None = None,
        prefix: Key | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these partitions, or all, one partition after the other, each in the order of a snapshot:
        key-value stores by stored key. Memory stays bounded. Raises `DoesNotExistError` for an unknown partition.

        Yields only the rows of keys from `lower` to `upper`, both included, or with a `prefix`. For a key-value store,
        it fetches only the tables that may have such keys."""
        given, serde = (lower, upper, prefix), self.definition.key
        ends = (None if each is None else key_of_text(serde, key_text(each)) for each in given)
        wanted = RowSelection(keys=keys_between(*ends))
        for partition in self.partitions if partitions is None else partitions:
            if partition not in self._parts:
                raise DoesNotExistError(f"{self.name!r} has no partition {partition}: it has {self.partitions}.")
            yield from self._read(partition, wanted)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a DataFrame of pandas. Raises `ConfigurationError` if pandas is not installed."""
        installed("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a DataFrame of Polars. Raises `ConfigurationError` if Polars is not installed."""
        frame: pl.DataFrame = installed("polars").from_arrow(self.to_arrow())
        return frame

    def _read(self, partition: int, wanted: RowSelection) -> Iterator[pa.RecordBatch]:
        with (
            tempfile.TemporaryDirectory(prefix="stateline-backup-") as folder,
            self._opened(self._parts[partition], Path(folder), possible_ranges(self.definition, wanted)) as checkpoint,
            closing(batches(checkpoint, self.definition, wanted)) as found,
        ):
            for batch in found:
                if batch.num_rows:
                    yield batch.replace_schema_metadata(self.schema.metadata)

    @contextmanager
    def _opened(self, backup: Backup, folder: Path, ranges: Sequence[KeyRange]) -> Iterator[Checkpoint]:
        if ranges == [EVERY_KEY]:
            (part,) = backup.copy.parts
            fetch_part(self._location, backup, folder)
            with Checkpoint(folder, part) as checkpoint:
                yield checkpoint
        else:
            with cached_part(self._location, backup, folder) as found, found.open_once(ranges) as checkpoint:
                yield checkpoint
