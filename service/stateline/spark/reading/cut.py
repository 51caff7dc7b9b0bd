"""`cut`: several stores as of one moment, as DataFrames, for the duration of a block.

    with stateline.spark.cut(spark, "http://localhost:8000", ["flights", "weather"]) as cut:
        delayed = cut.frame("flights", columns=["key", "value"]).join(cut.frame("weather"), "key")
        delayed.write.parquet("delayed")

The snapshot's lease is renewed until the block ends. Then the snapshot is released, and lazy DataFrames of it fail.
This module imports nothing slow, since `stateline.spark` exports it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateline_store import Position


class Cut:
    """A leased snapshot, made by `cut`. Thread-safe."""

    def __init__(self, spark: SparkSession, given: Mapping[str, str], snapshot: Mapping[str, Any]) -> None:
        self._spark, self._given = spark, dict(given)
        self._details = snapshot

    @property
    def id(self) -> str:
        """Return the value for the option `snapshot`."""
        return str(self._details["id"])

    @property
    def position(self) -> Position:
        """Return the position of the input that the stores reflect."""
        from stateline_store import Position

        return Position.from_json(self._details["position"])

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the names of its stores."""
        return tuple(self._details["stores"])

    def frame(
        self,
        store: str,
        *,
        columns: Sequence[str] | None = None,
        schema: str | StructType | None = None,
        keys: Sequence[object] | str | None = None,
        **options: str,
    ) -> DataFrame:
        """Return one store, with all columns, those of `columns`, or those of `schema` with its types. `keys` restricts
        it to these keys, as a list or JSON. `options` are those of the format (`lower`, `upper`, `prefix`, `from`,
        `to`, `as_of`)."""
        _refuse_text("columns", columns)
        if keys is not None:
            options["keys"] = keys if isinstance(keys, str) else json.dumps(list(keys))
        reader = self._spark.read.format("stateline").options(**self._given, **options)
        reader = reader.option("snapshot", self.id).option("store", store)
        if columns is not None:
            reader = reader.option("columns", ",".join(columns))
        return (reader if schema is None else reader.schema(schema)).load()


@contextlib.contextmanager
def cut(spark: SparkSession, url: str, stores: Sequence[str], *, ttl_s: int = 300, **options: str) -> Iterator[Cut]:
    """Keep a snapshot of these stores until the block ends, or for `ttl_s` seconds if this process dies. `options`
    configure the connection: `token` or `token_file`, `ca_file`, `timeout_s`, `retry_s`. Raises `InvalidArgumentError`
    for others, the server's refusals, and `NotReadyError` if it does not answer."""
    from stateline.spark.reading.lease import pinned
    from stateline.spark.reading.source_options import CONNECTION, read_options, spelled
    from stateline_store import InvalidArgumentError

    _refuse_text("stores", stores)
    for name in spelled(options, CONNECTION):
        if name not in CONNECTION:
            raise InvalidArgumentError(
                f"cut takes {', '.join(CONNECTION[1:])} and ttl_s, and no {name!r}: what is wanted of a store goes to "
                "`frame`."
            )
    given = {"url": url, **options}
    asked = {**given, "stores": ",".join(stores), "store": stores[0] if stores else "", "ttl_s": str(ttl_s)}
    read = read_options(asked, os.environ)
    with pinned(read.server, read.stores, read.ttl_s) as snapshot:
        yield Cut(spark, given, snapshot)


def _refuse_text(name: str, given: object) -> None:
    from stateline_store import InvalidArgumentError

    if isinstance(given, str):
        raise InvalidArgumentError(f"{name}={given[:60]!r} is a text: give a list, as in [{given[:60]!r}].")
