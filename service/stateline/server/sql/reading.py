"""`TableReading`: the rows that a statement reads, as Arrow streams: of stores as they are, or of one cut.

A cut is a snapshot of several stores at one moment. Rows of a cut come from its checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from stateline.query.values import Failure, Outcome, QueryRows, ScanQuery, Terms, answers_of, failures_of
from stateline.rows.arrow_rows import arrow_schema, record_batch, stream_batch, stream_start
from stateline.rows.columns import STREAM_END
from stateline.rows.selection import RowSelection
from stateline.server.queries.requests import keys_query
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.snapshots.asked_nodes import PART_ROWS, AskedNodes
from stateline.server.snapshots.cluster import KeptSnapshot
from stateline.server.snapshots.open_checkpoints import OpenCheckpoints
from stateline.server.snapshots.part_rows import batches_of, rows_of_parts
from stateline.server.sql.selection import Selection, scans_of
from stateline.server.state.cursors import pinned
from stateline.server.state.epochs import close_rests
from stateline.server.state.merged_scan import READ_AT_ONCE
from stateline.server.state.served_stores import ServedStore
from stateline.server.wire.turns import let_others_in
from stateline.sql.plan import TableRead
from stateline_store import CursorExpiredError, NotReadyError, PositionQuery, Query, SqlTooLargeError

# Rows of a partition that are read at a time: about three milliseconds in a process without small reads.
_STEP_ROWS = 4096
_MOST_TRIES = 5
"""How often several keys of windows or versions are read until all are of one state."""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """One read of a statement, and the store that it is of."""

    read: TableRead
    store: ServedStore
    selection: Selection
    all_versions: bool

    @property
    def has_one_row_of_a_key(self) -> bool:
        """Whether a partition has at most one row of a key."""
        return not self.all_versions and self.store.definition.plain_kind not in ("window", "session")

    @property
    def is_as_of(self) -> bool:
        """Whether its rows depend on `as_of`."""
        return self.store.definition.plain_kind == "versioned" and not self.all_versions

    def described(self) -> str:
        """Return the part that is read, as text."""
        return "full scan" if self.selection.is_everything else self.read.described()

    @property
    def is_stored_as_read(self) -> bool:
        """Whether each stored row is a row of the table: none is hidden, and none is a version of another."""
        return self.store.definition.plain_kind == "key_value"

    @property
    def needs_cut(self) -> bool:
        """Whether only a snapshot has the rows: all versions of many keys."""
        return self.all_versions and self.selection.keys is None


@dataclass(slots=True)
class RowAccount:
    """The rows that a statement has read of each table. Raises `SqlTooLargeError` if they are more than `most`."""

    most: int
    by_table: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.by_table.total()

    def add(self, table: WantedTable, rows: int) -> None:
        self.by_table[table.read.table] += rows
        if self.rows > self.most:
            shown = ", ".join(f"{count:,} of {name!r}" for name, count in self.by_table.most_common())
            raise SqlTooLargeError(
                f"The statement reads more than {self.most:,} rows (sql.max.rows.scanned), so far {shown}. Narrow it "
                "by key or time."
            )


@dataclass(slots=True)
class OpenTable:
    """A table that is open at one state: what the partitions answered, and its rows."""

    outcomes: Mapping[int, Outcome]
    rows: AsyncGenerator[bytes, None] | bytes
    """An Arrow IPC stream, in parts or whole."""


@dataclass(eq=False, repr=False)
class TableReading:
    """One per scan process, for the event loop's thread."""

    _routing: QueryRouting
    _checkpoints: OpenCheckpoints
    _nodes: AskedNodes

    async def open_live(
        self, table: WantedTable, terms: Terms, as_of: int | None, deadline_s: float, resources: AsyncExitStack,
        account: RowAccount,
    ) -> OpenTable:  # fmt: skip
        """Open a table as its store is now. `resources` close it. Raises the first failure of a partition."""
        store, selection = table.store, table.selection
        as_of = as_of if table.is_as_of else None
        if selection.is_nothing or (selection.keys is not None and table.has_one_row_of_a_key):
            keys: Query[Any] = keys_query(store, selection.keys, as_of) if selection.keys else PositionQuery()
            # Several partitions may have a key. Other filters of the statement see all of them, too.
            at = await self._routing.ask(store, terms, dict.fromkeys(store.partitions, keys), deadline_s)
            refuse_failures(at)
            found = [entry for answer in answers_of(at).values() for entry in answer.rows.entries]
            return OpenTable(at, _whole(table, found, account))
        scans: list[QueryRows] = []
        resources.callback(_close, scans)
        for tries in range(_MOST_TRIES):
            queries = scans_of(selection, store, all_versions=table.all_versions, as_of=as_of)
            outcomes = [await self._scan(store, terms, query, deadline_s) for query in queries]
            scans += [answer.rows for each in outcomes for answer in answers_of(each).values()]
            if _are_of_one_state(outcomes):
                return OpenTable(pinned(outcomes[0]), _stream(table, _entries(scans), account))
            _close(scans)
            scans.clear()
            if tries and not table.all_versions:
                selection = replace(selection, keys=None)
        raise NotReadyError(
            f"{table.read.table!r} changes faster than its {len(queries)} keys can be read at one state. Ask for "
            "fewer keys, or for read_committed."
        )

    def open_cut(
        self, table: WantedTable, cut: KeptSnapshot, as_of: int | None, account: RowAccount
    ) -> AsyncGenerator[bytes, None]:
        """Return the rows of a table in a cut. Parts are opened, and other nodes asked, when their rows are due. Close
        the rows if they are not read to their end.

        They raise `NotReadyError` if the cut is lost, and what its parts raise.
        """
        definition, selection = table.store.definition, table.selection
        as_of = (2**63 - 2 if as_of is None else as_of) if table.is_as_of else None  # by default the latest
        wanted = RowSelection(
            table.read.columns, selection.range, selection.from_ms, selection.to_ms, as_of, selection.keys
        )
        schema, snapshot_id = arrow_schema(definition, table.read.columns), cut.snapshot.id
        parts = {each.node: [part for part in each.parts if part.store == definition.name] for each in cut.nodes}
        own = parts.pop(self._nodes.own, ())

        async def found() -> AsyncGenerator[pa.RecordBatch, None]:
            # Which parts have a key is not known: any of them may have it.
            async with aclosing(rows_of_parts(self._checkpoints, snapshot_id, own, definition, wanted)) as here:
                async for batch in here:
                    yield batch
            for node in (node for node, some in parts.items() if some):
                async with AsyncExitStack() as asking:
                    members = {"store": definition.name, "wanted": wanted.to_json()}
                    pieces = await self._nodes.stream(node, PART_ROWS.format(id=snapshot_id), members, asking)
                    async for batch in batches_of(pieces, schema):
                        yield batch

        return _batches_as_stream(table, schema, found(), account)

    async def _scan(
        self, store: ServedStore, terms: Terms, query: ScanQuery, deadline_s: float
    ) -> Mapping[int, Outcome]:
        terms = replace(terms, limit=READ_AT_ONCE)
        while True:
            outcomes = await self._routing.scan_all(store, terms, query, store.partitions)
            if not failures_of(outcomes) or not self._routing.may_wait(store, terms, outcomes, deadline_s):
                refuse_failures(outcomes)
                return outcomes
            close_rests(outcomes)
            await self._routing.wait_for_scan(store, terms, outcomes, deadline_s)


def _close(scans: Sequence[QueryRows]) -> None:
    for rows in scans:
        if rows.rest is not None:
            rows.rest.close()


def _are_of_one_state(scans: Sequence[Mapping[int, Outcome]]) -> bool:
    """Return whether the answers of each partition have one Position."""
    positions = [{p: answer.position for p, answer in answers_of(outcomes).items()} for outcomes in scans]
    return all(each == positions[0] for each in positions)


def refuse_failures(outcomes: Mapping[int, Outcome]) -> None:
    """Raise the first failure of a partition, if any, and release what the others have left open."""
    failed: Failure | None = next(iter(failures_of(outcomes).values()), None)
    if failed is not None:
        close_rests(outcomes)
        raise failed.error


def _whole(table: WantedTable, found: list[Any], account: RowAccount) -> bytes:
    schema = arrow_schema(table.store.definition, table.read.columns)
    account.add(table, len(found))
    rows = stream_batch(record_batch(table.store.definition, found, schema)) if found else b""
    return b"".join((stream_start(schema), rows, STREAM_END))


async def _entries(scans: list[QueryRows]) -> AsyncGenerator[list[Any], None]:
    """Yield the entries of all partitions, one partition after the other. Rows of SQL have no order."""
    for at in range(len(scans)):
        while True:
            rows = scans[at]
            if rows.entries:
                yield list(rows.entries)
            if rows.rest is None:
                break
            await let_others_in()
            scans[at] = QueryRows()  # `more` closes its rest if it fails
            scans[at] = await rows.rest.more(_STEP_ROWS)


async def _stream(
    table: WantedTable, found: AsyncGenerator[list[Any], None], account: RowAccount
) -> AsyncGenerator[bytes, None]:
    definition = table.store.definition
    schema = arrow_schema(definition, table.read.columns)
    made = (record_batch(definition, entries, schema) async for entries in found)
    async with aclosing(_batches_as_stream(table, schema, made, account)) as pieces:
        async for piece in pieces:
            yield piece


async def _batches_as_stream(
    table: WantedTable, schema: pa.Schema, found: AsyncGenerator[pa.RecordBatch, None], account: RowAccount
) -> AsyncGenerator[bytes, None]:
    yield stream_start(schema)
    try:
        async with aclosing(found) as batches:
            async for batch in batches:
                if batch.num_rows:
                    account.add(table, batch.num_rows)
                    yield stream_batch(batch)
    except CursorExpiredError as error:
        raise NotReadyError(f"{table.read.table!r} could not be read to its end: ask again. {error}") from error
    yield STREAM_END
