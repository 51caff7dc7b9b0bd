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
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateline.spark.source_options import SourceOptions
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
        the format (`lower`, `upper`, `prefix`, `from`, `to`, `as_of`: the rows).
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
    from stateline.spark.lease import release
    from stateline.spark.snapshot_server import PLANNING_S, Asked
    from stateline.spark.source_options import read_options

    given = {"url": url, **options}
    asked = {**given, "stores": ",".join(stores), "store": stores[0] if stores else "", "ttl_s": str(ttl_s)}
    read = read_options(asked, os.environ)
    pin = os.urandom(12).hex()  # so that an answer that is lost is asked for again
    members = {"stores": list(read.stores), "ttl_s": read.ttl_s, "pin": pin}
    snapshot = read.server.ask(Asked("POST", "/v1/snapshots", members), patience_s=PLANNING_S)
    with _renewed(read, snapshot["id"]):
        try:
            yield Cut(spark, given, snapshot)
        finally:
            release(read.server, snapshot["id"])


@contextlib.contextmanager
def _renewed(options: SourceOptions, snapshot: str) -> Iterator[None]:
    """Renew the lease every third of it while the block runs."""
    ended = threading.Event()
    thread = threading.Thread(target=_keep_on, args=(options, snapshot, ended), name="stateline-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _keep_on(options: SourceOptions, snapshot: str, ended: threading.Event) -> None:
    import logging

    from stateline.spark.lease import renew
    from stateline_store.errors import StatelineError

    while not ended.wait(options.ttl_s / 3):
        try:
            renew(options.server, snapshot, options.ttl_s)
        except StatelineError as error:
            logging.getLogger(__name__).warning("The lease of the snapshot %s is not renewed: %s", snapshot, error)
            return
