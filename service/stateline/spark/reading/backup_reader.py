"""Reads a backup with Spark: executors fetch the files of their partitions, and no server is asked.

The driver finds the backup, and gives each task the manifest of its partition. A large partition is read by several
tasks. Each task reads some of the ranges of keys at whose starts RocksDB's tables begin. It fetches the tables that may
have keys in its ranges, unless another task of this executor has fetched them. Executors need this package with its
extra `backup`, pyarrow and pyspark.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stateline.backup.cut import BackupCut, find_cut
from stateline.model.store_definition import StoreDefinition
from stateline.rows.columns import row_columns
from stateline.rows.selection import RowSelection, check_times, keys_between
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.key_text import key_of_text, other_spellings
from stateline.spark.one_line import in_one_line
from stateline.spark.reading.executor import spare_loaded_code
from stateline.spark.reading.row_types import RowShape, check_columns, default_schema
from stateline.spark.reading.source_options import (
    BACKUP_OPTIONS,
    CONNECTION,
    distinct_keys,
    named,
    refuse_both_signs,
    row_options,
    spelled,
    store_of,
)
from stateline_store import InvalidArgumentError
from stateline_store.reads.splits import TableFile, splits
from stateline_store.scan import KeyRange
from stateline_store.snapshots.backup import Backup

if TYPE_CHECKING:
    import pyarrow as pa

_LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"  # Spark gives it to its Python processes, and deletes them with the executor


@dataclass(frozen=True)
class BackupPartition(InputPartition):
    """One Spark task: a partition of the store, or one of `count` parts of it."""

    backup: Backup
    number: int
    count: int

    def keys(self, tables: Sequence[TableFile], size: int) -> KeyRange:
        """Return the stored keys of this task. Each task of the partition finds the same ranges, and takes its own."""
        every = [each.keys for each in splits(tables, size)]
        first, behind = (len(every) * number // self.count for number in (self.number, self.number + 1))
        return KeyRange(every[first].start, every[behind - 1].end) if first < behind else KeyRange(b"", b"")


def cut_of(given: Mapping[str, str]) -> BackupCut:
    """Return the backup of these options, with the files of the wanted store alone. Raises as `find_cut`, and
    `InvalidArgumentError` for other options."""
    options = _read(given)
    found = find_cut(options["backup"], options.get("backup_as_of"), options.get("application_id"))
    return found.of_store(store_of(options))


def columns_of(cut: BackupCut, given: Mapping[str, str]) -> StructType:
    """Return the schema of the DataFrame. Raises as `default_schema`."""
    options = _read(given)
    return default_schema(_described(cut.definition(store_of(options))), row_options(options)["columns"])


class BackupReader(DataSourceReader):
    """Plans and reads one scan. Spark pickles it before it calls `partitions`."""

    def __init__(self, given: Mapping[str, str], cut: BackupCut, schema: StructType) -> None:
        """Raises as `RowShape`, and `InvalidArgumentError` or `UnknownQueryTypeError` for options, keys and times that
        the store cannot have."""
        options = _read(given)
        rows = row_options(options)
        check_columns(rows["columns"], schema)
        self._cut, self._definition = cut, cut.definition(store_of(options))
        self._shape = RowShape(schema, _described(self._definition))
        self._wanted = _selection(self._definition, self._shape.names, rows["bounds"], rows["keys"])
        self._split_bytes: int = rows["split_bytes"]

    def partitions(self) -> list[BackupPartition]:
        """Return one task per split of each partition. Tasks of one partition follow each other, because they share
        files."""
        tasks = []
        for backup in self._cut.parts(self._definition.name).values():
            tables = sum(size for path, size in backup.copy.files.items() if path.endswith(".sst"))
            count = max(1, round(tables / self._split_bytes))
            tasks += [BackupPartition(backup, number, count) for number in range(count)]
        return tasks

    def read(self, partition: BackupPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # as partitions
        from stateline.backup.cached_files import cached_part
        from stateline.backup.location import BackupLocation
        from stateline.rows.ranges import possible_ranges
        from stateline.rows.snapshot_rows import batches

        spare_loaded_code()
        with in_one_line(), ExitStack() as stack:
            location = BackupLocation(self._cut.url, self._cut.application_id)
            local = os.environ.get(_LOCAL_DIRECTORIES, "").partition(",")[0]
            place = Path(local or stack.enter_context(tempfile.TemporaryDirectory(prefix="stateline-")))
            part = stack.enter_context(cached_part(location, partition.backup, place / "stateline-backups"))
            wanted = replace(self._wanted, split=partition.keys(part.tables, self._split_bytes))
            ranges = possible_ranges(self._definition, wanted)
            if not ranges:
                return
            checkpoint = stack.enter_context(part.open(ranges))
            for batch in stack.enter_context(closing(batches(checkpoint, self._definition, wanted))):
                if batch.num_rows:
                    yield self._shape.recast(batch)


def _read(given: Mapping[str, str]) -> dict[str, str]:
    if of_server := [name for name in spelled(given, CONNECTION) if name in CONNECTION]:
        raise InvalidArgumentError(
            f"{of_server[0]} and backup are both given: a backup is read without a server. Leave out one of them."
        )
    return named(given, BACKUP_OPTIONS)


def _described(definition: StoreDefinition) -> dict[str, Any]:
    """Return the store's columns and types, as a server describes them."""
    columns = [asdict(column) for column in row_columns(definition)]
    return {"store": definition.name, "value_type": definition.value.name, "columns": columns}


def _selection(
    definition: StoreDefinition, columns: tuple[str, ...], bounds: Mapping[str, str], keys: tuple[Any, ...] | None
) -> RowSelection:
    key, only = definition.key, None
    from_ms, to_ms, as_of = (_time_ms(bounds.get(name)) for name in ("from", "to", "as_of"))
    check_times(definition, has_times=from_ms is not None or to_ms is not None, as_of=as_of)
    refuse_both_signs(bounds, key.name)
    ends = (key_of_text(key, bounds[name]) if name in bounds else None for name in ("lower", "upper", "prefix"))
    if keys is not None:
        stored = {key.from_json(each) for each in distinct_keys(keys, definition.name, key.name)}
        only = tuple(sorted({*stored, *other_spellings(key, stored).values()}))
    return RowSelection(columns, keys_between(*ends), from_ms, to_ms, as_of, only)


def _time_ms(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.removeprefix("-").isdecimal() else epoch_ms(iso_time(text, UTC))
