"""Write a store as a Delta table: whole at first, then what has changed.

The table is the store at the Position in the metadata of its last commit (`stateline.position`). A log of changes has a
row for each change instead, with `_deleted` and the number of its export, `_export`. The number is in the table as the
version of an application's transaction, too. It shows whose table it is, and of two exports at once one fails.

A commit is one object, so a process that is killed leaves the table as it was. Files without a commit go with VACUUM.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    QueryBuilder,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from stateline.backup.refusals import refusal
from stateline.cli.export.changes import DELETED, NUMBER, TableChanges, has_twins
from stateline.cli.export.parquet import ROW_GROUP_ROWS, refusals, row_groups, write
from stateline.cli.export.rows import Exported, StoreRows
from stateline.sql.struct_types import quoted
from stateline_store.clock import now_ms
from stateline_store.errors import InvalidArgumentError, RetryLaterError
from stateline_store.steps import reached

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_GROUPS_PER_FILE = 4
# A merge has the changes in memory, and rewrites each file with one. More are no quicker than the whole table.
_MOST_MERGED = 1_000_000
_LONGEST = 64  # characters of a key in a file's statistics
_APPEND_ONLY = "delta.appendOnly"
_CONSTRAINT = "failed validation check"  # in deltalake's text
_MOST_SHOWN = 3  # columns
_WRITER = WriterProperties(compression="ZSTD", max_row_group_size=ROW_GROUP_ROWS)


def export(rows: StoreRows, url: str, place: ObjectStore, *, is_log: bool, is_whole: bool) -> Exported:
    """Write a store to the table at `url`, which is also `place`. `is_whole` writes all of it again.

    Raises `InvalidArgumentError` for a table of somebody else, with other columns, or that refuses the rows. Raises
    `RetryLaterError` if the location refuses, or another export has changed the table meanwhile."""
    with refusals(url, DeltaError):
        try:
            return _DeltaExport(rows, url, place, is_log).run(is_whole)
        except CommitFailedError as error:
            raise RetryLaterError(f"{url} was changed by another program meanwhile. Run the export again.") from error
        except DeltaError as error:
            if _CONSTRAINT not in str(error):
                raise
            raise InvalidArgumentError(
                f"A constraint of {url} refuses rows of {rows.store!r}: {refusal(url, error).rstrip('.')}. Drop the "
                "constraint, or choose another location."
            ) from error


class _DeltaExport:
    def __init__(self, rows: StoreRows, url: str, place: ObjectStore, is_log: bool) -> None:
        self._rows, self._url, self._place, self._is_log = rows, url, place, is_log
        self._id = f"stateline-{'changes' if is_log else 'export'}/{rows.application_id}/{rows.store}"
        self._schema = rows.schema
        if is_log:
            self._schema = self._schema.append(pa.field(DELETED, pa.bool_())).append(pa.field(NUMBER, pa.int64()))
        self._table = _opened(url)
        self._number = 1 if self._table is None else self._checked(self._table) + 1

    def run(self, is_whole: bool) -> Exported:
        if self._table is None or is_whole:
            return self._write_whole()
        if differ := _differences(self._table.schema(), Schema.from_arrow(self._schema)):
            raise InvalidArgumentError(
                f"{self._url} has other columns than {self._rows.store!r} has now ({'; '.join(differ[:_MOST_SHOWN])}). "
                f"{'Choose another location' if self._is_log else 'Write all of it again with --full'}."
            )
        before = QueryBuilder().register("t", self._table).execute("SELECT * FROM t")
        with TableChanges(self._rows, before, is_log=self._is_log) as found:
            reached("export:compared")
            if not found.changed + found.deleted:
                return self._mark()
            if self._is_log:
                self._refuse_twins(found.has_twins)
                write_deltalake(
                    *(self._table, found.read(self._number)),
                    mode="append",
                    writer_properties=_WRITER,
                    commit_properties=self._commit(),
                )
            elif found.changed + found.deleted > _MOST_MERGED or found.has_twins:
                return self._write_whole()
            else:
                self._merge(self._table, found)
            reached("export:committed")
            return Exported("changed", found.changed, found.deleted)

    def _checked(self, table: DeltaTable) -> int:
        number = table.transaction_version(self._id)
        if number is None:
            what = "log of changes" if self._is_log else "table"
            raise InvalidArgumentError(
                f"{self._url} is not a {what} of {self._rows.store!r} of {self._rows.application_id} by stateline "
                "export. Choose another location."
            )
        if not self._is_log and table.metadata().configuration.get(_APPEND_ONLY) == "true":
            raise InvalidArgumentError(
                f"{self._url} is append-only ({_APPEND_ONLY}), so no export can change its rows. Unset this property, "
                "or export with --changes to another location."
            )
        return number

    def _merge(self, table: DeltaTable, found: TableChanges) -> None:
        columns = {quoted(name): f"s.{quoted(name)}" for name in self._schema.names}
        merging = table.merge(
            found.read(),
            " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in self._rows.keys),
            source_alias="s",
            target_alias="t",
            writer_properties=_WRITER,
            commit_properties=self._commit(),
        )
        merging = merging.when_matched_delete(f"s.{DELETED}").when_matched_update(columns)
        merging.when_not_matched_insert(columns, f"NOT s.{DELETED}").execute()

    def _mark(self) -> Exported:
        """Commit the Position alone, if it is another one than before."""
        assert self._table is not None
        told = next((each for each in self._table.history(100) if "stateline.position" in each), {})
        if told.get("stateline.position") != self._rows.about["stateline.position"]:
            self._table.create_write_transaction([], "append", self._schema, commit_properties=self._commit())
            reached("export:committed")
        return Exported("nothing new")

    def _refuse_twins(self, has_twins: bool) -> None:
        if has_twins:
            raise InvalidArgumentError(
                f"{self._rows.store!r} has several rows of one key and window, or keys that SQL takes for one, as 0.0 "
                "and -0.0. A log of changes cannot tell them apart. Leave out --changes."
            )

    def _write_whole(self) -> Exported:
        if self._is_log:
            self._refuse_twins(has_twins(self._rows))
        files = list(self._files())
        reached("export:files-written")
        if self._table is None:
            create_table_with_add_actions(
                self._url, Schema.from_arrow(self._schema), files, commit_properties=self._commit()
            )
        else:
            self._table.create_write_transaction([*files], "overwrite", self._schema, commit_properties=self._commit())
        reached("export:committed")
        return Exported("written", sum(json.loads(each.stats)["numRecords"] for each in files))

    def _files(self) -> Iterator[AddAction]:
        """Write the rows, and yield each file. A file has rows of one partition, in the order of the store."""
        for part in self._rows.read():
            groups = map(self._as_log, row_groups(part)) if self._is_log else row_groups(part)
            for first in groups:
                some = itertools.chain([first], itertools.islice(groups, _GROUPS_PER_FILE - 1))
                path = f"part-{uuid4()}.parquet"
                size, metadata = write(self._place, path, self._schema.with_metadata(self._rows.about), some)
                yield AddAction(path, size, {}, now_ms(), True, _statistics(metadata))

    def _as_log(self, table: pa.Table) -> pa.Table:
        for name, value in ((DELETED, False), (NUMBER, self._number)):
            table = table.append_column(self._schema.field(name), pa.repeat(pa.scalar(value), table.num_rows))
        return table

    def _commit(self) -> CommitProperties:
        return CommitProperties(
            custom_metadata=self._rows.about, app_transactions=[Transaction(self._id, self._number)]
        )


def _opened(url: str) -> DeltaTable | None:
    try:
        return DeltaTable(url)
    except TableNotFoundError:
        return None
    except DeltaError as error:  # a location that refuses is an OSError
        raise InvalidArgumentError(
            f"{url} is no Delta table that this version of deltalake reads: {refusal(url, error).rstrip('.')}. Choose "
            "another location."
        ) from error


def _differences(there: Schema, now: Schema) -> list[str]:
    """Return the columns whose types differ, for people."""
    before, after = ({each.name: _type_of(each) for each in schema.fields} for schema in (there, now))
    names = dict.fromkeys([*before, *after])
    differ = [f"{n}: {before.get(n, 'none')} there, {after.get(n, 'none')} now" for n in names
              if before.get(n) != after.get(n)]  # fmt: skip
    return differ or ([] if there == now else ["their order, or types within them"])


def _type_of(field: Field) -> str:
    kind = json.loads(field.to_json())["type"]
    return kind if isinstance(kind, str) else str(kind["type"])


def _statistics(metadata: pq.FileMetaData) -> str:
    """Return the rows, and the least and greatest keys and times, as Delta's log has them: readers skip files by it."""
    least, most = dict[str, Any](), dict[str, Any]()
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if "." in name or not all(each is not None and each.has_min_max for each in found):
            continue  # a nested column, or one without values
        try:
            low, high = min(each.min for each in found), max(each.max for each in found)
        except OverflowError:
            continue  # a time that Python does not have
        if isinstance(low, datetime):
            least[name], most[name] = map(_iso, (low, high))
        elif isinstance(low, int) or (isinstance(low, str) and len(high) <= _LONGEST):
            least[name], most[name] = low, high
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": most})


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
