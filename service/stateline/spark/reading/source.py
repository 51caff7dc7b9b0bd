"""The format ``stateline``: in batch a snapshot of a store, as a stream its committed changes.

    spark.read.format("stateline").option("url", "http://localhost:8000").option("store", "orders").load()

Spark finds it through the package `pyspark_stateline`. `source_options` has the options, `row_types` the columns.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from stateline.spark.one_line import in_one_line
from stateline.spark.reading.lease import shared_pin
from stateline.spark.reading.row_types import default_schema
from stateline.spark.reading.snapshot_reader import SnapshotReader, described
from stateline.spark.reading.source_options import is_of_changes, read_options, spelled
from stateline.spark.reading.table_options import created_options, query_options, with_options
from stateline_store import InvalidArgumentError

FORMAT = "stateline"


class StatelineSource(DataSource):
    """The format ``stateline``. Spark pickles it for each scan of a DataFrame, so scans share the pin, which depends on
    `loaded_at_s` or is `own_pin`, and the snapshot. A stream makes no snapshot."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.own_pin, self.loaded_at_s = secrets.token_hex(12), time.time()

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
        options = read_options(self.options if created is None else created, os.environ)
        schema = default_schema(described(options), options.columns)
        return schema if created is None else with_options(schema, created)

    @in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(query_options(schema, self.options), os.environ)
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
