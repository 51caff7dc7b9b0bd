"""`cut`: several stores as they were at one moment, as DataFrames, for as long as a block lasts.

    with stateline.spark.cut(spark, "http://localhost:8000", ["flights", "weather"]) as cut:
        delayed = cut.frame("flights", columns=["key", "value"]).join(cut.frame("weather"), "key")
        delayed.write.parquet("delayed")

The snapshot's lease is renewed meanwhile, and it is released with the block: what is still lazy then cannot be run any
more. Nothing is imported here that takes long: `stateline.spark` offers this by name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateline_store import Position


class Cut:
    """A snapshot that is kept. Thread-safe; made by `cut`."""

    def __init__(self, spark: SparkSession, given: Mapping[str, str], snapshot: Mapping[str, Any]) -> None:
        self._spark, self._given = spark, dict(given)
        self._details = snapshot

    @property
    def id(self) -> str:
        """What the option `snapshot` takes."""
        return str(self._details["id"])

    @property
    def position(self) -> Position:
        """The input that the stores reflect."""
        from stateline_store import Position

        return Position.from_json(self._details["position"])

    @property
    def stores(self) -> tuple[str, ...]:
        """What is in it."""
        return tuple(self._details["stores"])

    def frame(
        self,
        store: str,
        *,
        columns: Sequence[str] | None = None,
        schema: str | StructType | None = None,
        **options: str,
    ) -> DataFrame:
        """One store. All columns unless named, or unless `schema` says which and of what types; `options` are those of
        the format (`lower`, `upper`, `prefix`, `from`, `to`, `as_of`, `keys`: the rows).
        """
        reader = self._spark.read.format("stateline").options(**self._given, **options)
        reader = reader.option("snapshot", self.id).option("store", store)
        if columns is not None:
            reader = reader.option("columns", ",".join(columns))
        return (reader if schema is None else reader.schema(schema)).load()


@contextlib.contextmanager
def cut(spark: SparkSession, url: str, stores: Sequence[str], *, ttl_s: int = 300, **options: str) -> Iterator[Cut]:
    """A snapshot of these stores, kept until the block ends, or, should this process die, for `ttl_s` seconds.

    `options` are those that say how to ask: `token` or `token_file`, `ca_file`, `timeout_s`, `retry_s`. Raises
    `InvalidArgumentError` for others, what the server refuses, and `NotReadyError` when it does not answer.
    """
    from stateline.spark.reading.pinned import pinned
    from stateline.spark.reading.source_options import read_options

    given = {"url": url, **options}
    asked = {**given, "stores": ",".join(stores), "store": stores[0] if stores else "", "ttl_s": str(ttl_s)}
    read = read_options(asked, os.environ)
    with pinned(read.server, read.stores, read.ttl_s) as snapshot:
        yield Cut(spark, given, snapshot)
