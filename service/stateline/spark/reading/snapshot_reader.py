"""Reads a snapshot with Spark: planned beside the driver, read split by split on executors.

All scans of a DataFrame read one state because they share the pin of its `DataSource`. `partitions` asks for the
snapshot of that pin, and the first request creates it. Spark 4.2 plans a DataFrame once
(`PythonDataSourceV2.readInfo`). Spark Connect and newer versions plan each scan.

Executors need this package, pyarrow and pyspark, but not the application: the server describes the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stateline.client.lean.client import PLANNING_S, LeanRequest, segment
from stateline.client.lean.snapshot_rows import PartAddress, splits
from stateline.spark.one_line import in_one_line
from stateline.spark.reading.executor import spare_loaded_code
from stateline.spark.reading.lease import keep_while_driver_lives, renew
from stateline.spark.reading.row_types import RowShape, check_columns
from stateline.spark.reading.source_options import SourceOptions, distinct_keys, in_pieces, refuse_both_signs
from stateline_store.errors import CursorExpiredError, DoesNotExistError, InvalidArgumentError, NotReadyError
from stateline_store.layout import plain_kind

if TYPE_CHECKING:
    import pyarrow as pa

    from stateline.client.lean.snapshot_rows import RowsQuery

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsPartition(InputPartition):
    """One Spark task: a partition of the store in the snapshot, or a split of it, read from its node."""

    part: PartAddress
    split: str | None = None


_ASKED_AT_ONCE = 8  # partitions: a server may replay logs for the first question

# The kinds of stores that have these times.
_TIMES_OF = {("as_of",): ("versioned",), ("from", "to"): ("timestamped_key_value", "window", "session", "versioned")}


def described(options: SourceOptions) -> dict[str, Any]:
    """Return the server's description: `kind`, `key_type`, `value_type`, `columns`. Raises `InvalidArgumentError` now,
    before a job runs, for times and keys that the store cannot have."""
    asked = LeanRequest("GET", f"/v1/stores/{segment(options.store)}")
    found: dict[str, Any] = options.server.ask(asked, patience_s=min(PLANNING_S, options.server.retry_s))
    kind = plain_kind(found["kind"])
    for names, kinds in _TIMES_OF.items():
        given = [name for name in names if name in options.bounds]
        if given and not {kind, found["kind"]}.intersection(kinds):
            raise InvalidArgumentError(
                f"{given[0]} is for stores of kind {', '.join(kinds)}, and {options.store!r} is of kind "
                f"{found['kind']}: leave it out."
            )
    distinct_keys(options.keys or (), options.store, found["key_type"])
    refuse_both_signs(options.bounds, found["key_type"])
    return found


class SnapshotReader(DataSourceReader):
    """Plans and reads one scan. Spark pickles it before it calls `partitions`."""

    def __init__(self, options: SourceOptions, pin: str, schema: StructType, store: Mapping[str, Any]) -> None:
        check_columns(options.columns, schema)
        self._options, self._pin = options, pin
        self._shape = RowShape(schema, store)
        given = options.keys
        self._keys = None if given is None else distinct_keys(given, options.store, store["key_type"])

    @in_one_line()
    def partitions(self) -> list[RowsPartition]:
        """Return one task per split of each partition. Creates the snapshot if needed, and has its lease renewed."""
        snapshot = self._snapshot()
        parts = snapshot["stores"].get(self._options.store)
        if not parts:
            there_are = ", ".join(snapshot["stores"])
            raise DoesNotExistError(f"The snapshot {snapshot['id']} has no {self._options.store!r}, but {there_are}.")
        keep_while_driver_lives(self._options, snapshot, is_own=self._options.snapshot is None)
        if self._options.is_shared and self._options.lease == "ttl":  # it may have been made earlier
            renew(self._options.server, snapshot["id"], self._options.ttl_s)
        ordered = [PartAddress.of(parts[number]) for number in sorted(parts, key=int)]
        if self._keys is not None:  # a seek each
            return [RowsPartition(part) for part in ordered]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
            split = list(threads.map(self._splits, ordered))
        # In turns, so that concurrent tasks read from different partitions and nodes.
        return [each for together in zip_longest(*split) for each in together if each is not None]

    def read(self, partition: RowsPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # as partitions
        from stateline.client.lean.snapshot_rows import batches

        spare_loaded_code()
        server = partition.part.at(self._options.server)
        with in_one_line():
            for query in self._queries(partition.split):
                with closing(batches(server, partition.part.path, query)) as found:
                    for batch in found:
                        yield self._shape.recast(batch)

    def _splits(self, part: PartAddress) -> list[RowsPartition]:
        try:
            found = splits(part.at(self._options.server), part.path, self._options.bounds, self._options.split_bytes)
        except NotReadyError as error:  # a node that is away
            _log.warning("%s is read by one task: %s", part.path, error)
            return [RowsPartition(part)]
        return [RowsPartition(part, each) for each in found]

    def _queries(self, split: str | None) -> Iterator[RowsQuery]:
        from stateline.client.lean.snapshot_rows import RowsQuery

        bounds, keys = tuple(self._options.bounds.items()), self._keys
        bounds += () if split is None else (("split", split),)
        if keys is None:
            yield RowsQuery(self._shape.names, bounds)
            return
        for piece in in_pieces(keys):
            yield RowsQuery(self._shape.names, bounds, piece)

    def _snapshot(self) -> dict[str, Any]:
        options = self._options
        if options.snapshot is not None:
            asked = LeanRequest("GET", f"/v1/snapshots/{options.snapshot}")
        else:
            members = {"stores": list(options.stores), "ttl_s": options.ttl_s, "pin": options.pin or self._pin}
            asked = LeanRequest("POST", "/v1/snapshots", members)
        try:
            found: dict[str, Any] = options.server.ask(asked, patience_s=min(PLANNING_S, options.server.retry_s))
        except CursorExpiredError as error:
            raise CursorExpiredError(
                f"The snapshot of this DataFrame is gone: {error} A DataFrame is always of one state: make a new one "
                '(spark.read … .load()), with .option("max_age_s", "0") if it is to be read at once.'
            ) from error
        return found
