"""The format ``stateline``: in batch a snapshot of a store, as a stream its committed changes.

    spark.read.format("stateline").option("url", "http://localhost:8000").option("store", "orders").load()

Spark finds it through the package `pyspark_stateline`. `source_options` has the options, `row_types` the columns.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from stateline.spark.one_line import in_one_line
from stateline.spark.reading.lease import shared_pin
from stateline.spark.reading.row_types import default_schema
from stateline.spark.reading.snapshot_reader import SnapshotReader, described
from stateline.spark.reading.source_options import is_of_backup, is_of_changes, read_options, spelled
from stateline.spark.reading.table_options import created_options, query_options, with_options
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from stateline.backup.cut import BackupCut

FORMAT = "stateline"


class StatelineSource(DataSource):
    """The format ``stateline``. Spark pickles it for each scan of a DataFrame, so scans share the pin, which depends on
    `loaded_at_s` or is `own_pin`, and the snapshot. A stream makes no snapshot. Rows of a backup are those of the
    backup that `cut` has found."""

    @in_one_line()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.own_pin, self.loaded_at_s = secrets.token_hex(12), time.time()
        is_read = created_options(self.options) is None and is_of_backup(self.options)
        self.cut = _cut(self.options) if is_read else None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @in_one_line()
    def schema(self) -> StructType:
        """Return the columns of the store, or those of the option `columns`. For a table that Spark creates, they carry
        its OPTIONS. Not called if the user gives a schema."""
        created = created_options(self.options)
        if created is None and is_of_changes(self.options):
            from stateline.spark.reading.change_reader import change_schema

            return change_schema(self._of_changes())
        given = self.options if created is None else created
        if is_of_backup(given):
            from stateline.spark.reading.backup_reader import columns_of

            schema = columns_of(self.cut or _cut(given), given)
        else:
            options = read_options(given, os.environ)
            schema = default_schema(described(options), options.columns)
        return schema if created is None else with_options(schema, created)

    @in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        given = query_options(schema, self.options)
        if is_of_backup(given):
            from stateline.spark.reading.backup_reader import BackupReader

            return BackupReader(given, self.cut or _cut(given), schema)
        options = read_options(given, os.environ)
        pin = shared_pin(options, self.loaded_at_s) or self.own_pin
        return SnapshotReader(options, pin, schema, described(options))

    @in_one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from stateline.spark.reading.change_reader import ChangeReader

        return ChangeReader(self._of_changes(), schema)

    @in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse: only the worker writes to a store."""
        raise InvalidArgumentError(
            "Stores are read here, and not written: write to the topic that the store is made of, or let a pipeline do "
            "it."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's name
        self.writer(schema, overwrite)

    def _of_changes(self) -> dict[str, str]:
        from stateline.spark.reading.change_requests import OPTIONS

        return spelled(self.options, OPTIONS)


def _cut(given: Mapping[str, str]) -> BackupCut:
    from stateline.spark.reading.backup_reader import cut_of  # slow to load

    return cut_of(given)
