"""Carries the OPTIONS of a table from ``CREATE TABLE … USING stateline OPTIONS (…)`` to the queries of this table.

Spark gives the OPTIONS to a Python source when it creates the table. A query gets only the table's schema and the
query's own options (``WITH (…)``). So the schema has the OPTIONS in the metadata of its first column, and Spark keeps
them in its catalog. If the user lists the columns of the table, Spark asks for no schema, and the OPTIONS are lost.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from stateline.spark.reading.source_options import BACKUP_OPTIONS, SNAPSHOT_OPTIONS, spelled
from stateline_store import InvalidArgumentError

_OPTIONS = (*SNAPSHOT_OPTIONS, *BACKUP_OPTIONS)
_METADATA = "stateline"
_OF_EACH_TABLE = {"provider", "owner"}  # Spark adds them when it creates a table, and to no DataFrame
_PREFIX = "option."  # names without it are of Spark (comment, location, path, …) and of TBLPROPERTIES


def created_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the OPTIONS of a table that Spark creates, without those of Spark. None if it creates none. Raises
    `InvalidArgumentError` for a token: every user of the catalog could read it."""
    if not options.keys() >= _OF_EACH_TABLE:
        return None
    if f"{_PREFIX}token" in options:
        raise InvalidArgumentError(
            "Spark's catalog would show the option token of this table: use token_file, or set STATELINE_TOKEN."
        )
    return {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}


def with_options(schema: StructType, created: Mapping[str, str]) -> StructType:
    """Return the schema with the OPTIONS of its table."""
    first, *others = schema.fields
    kept = {_METADATA: spelled(created, _OPTIONS)}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *others])


def query_options(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a query, and those of its table if it reads one. The query's own win. Raises
    `InvalidArgumentError` if the table has lost its OPTIONS."""
    own = spelled(options, _OPTIONS)
    of_table = next((each.metadata[_METADATA] for each in schema.fields if _METADATA in each.metadata), None)
    if of_table is not None and "store" not in own:  # or else a DataFrame with the schema of a table
        return {**of_table, **own}
    if not own.keys() & {"store", "url", "backup"}:
        raise InvalidArgumentError(
            "This query has no options url and store. Spark loses the OPTIONS of a table whose columns are listed: "
            "create the table without columns, and name some of them in the option columns."
        )
    return dict(options)
