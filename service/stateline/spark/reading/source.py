"""`StatelineSource`: the format ``stateline``. In batch a snapshot of a store, as a stream its committed changes.

    spark.read.format("stateline").option("url", "http://localhost:8000").option("store", "orders").load()

Spark finds it by itself, by the package `pyspark_stateline`, wherever this one is installed. The options stand in
`source_options`, the columns in `row_types`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from stateline.spark.one_line import in_one_line
from stateline.spark.reading.row_types import default_schema
from stateline.spark.reading.snapshot_reader import SnapshotReader, described
from stateline.spark.reading.source_options import is_of_changes, read_options, spelled
from stateline_store import InvalidArgumentError

FORMAT = "stateline"


class StatelineSource(DataSource):
    """The format ``stateline``. Made once for a DataFrame, and pickled for each of its scans: they share the pin, and
    so the snapshot. Nothing is asked of the server before it is known what is wanted: a stream makes no snapshot.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.pin = secrets.token_hex(12)

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return FORMAT

    @in_one_line()
    def schema(self) -> StructType:
        """The columns of the store, or those of the option `columns`. Not asked for where the user gives a schema."""
        if is_of_changes(self.options):
            from stateline.spark.reading.change_reader import change_schema

            return change_schema(self._of_changes())
        options = read_options(self.options, os.environ)
        return default_schema(described(options), options.columns)

    @in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a snapshot."""
        options = read_options(self.options, os.environ)
        return SnapshotReader(options, self.pin, schema, described(options))

    @in_one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Of the committed changes."""
        from stateline.spark.reading.change_reader import ChangeReader

        return ChangeReader(self._of_changes(), schema)

    @in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Nobody writes to a store but its worker."""
        raise InvalidArgumentError(
            "Stores are read here, and not written: write to the topic that the store is made of, or let a pipeline do "
            "it."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's name
        """As `writer`."""
        self.writer(schema, overwrite)

    def _of_changes(self) -> dict[str, str]:
        from stateline.spark.reading.change_requests import OPTIONS

        return spelled(self.options, OPTIONS)
