"""`Statements`: runs a statement over the tables of this application, and shares its result for a while."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import pyarrow as pa

from stateline.config.settings import Config
from stateline.query.values import Terms, answers_of, merged_position
from stateline.server.contract.observation import observed
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.sql.cuts import Cuts
from stateline.server.sql.reading import OpenTable, RowAccount, TableReading, WantedTable, refuse_failures
from stateline.server.sql.request import SqlRequest
from stateline.server.sql.selection import selection_of
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.sql.plan import TableRead
from stateline.sql.pool import QueryProcesses
from stateline.sql.tables import VERSIONS, SqlTable, tables_of
from stateline_store import (
    CountQuery,
    IsolationLevel,
    NotReadyError,
    Position,
    PositionQuery,
    SqlInvalidError,
    SqlTooLargeError,
)
from stateline_store.clock import now_ms
from stateline_store.snapshots.snapshot import Snapshot

# RocksDB counts overwritten and deleted rows too, until they are compacted. Its estimate was up to 28 times too large.
_ESTIMATED_TOO_LARGE = 30
# The longest time for which a result is shared.
_SHARED_MS = 60_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows of a statement, and the state that they are of. Times are milliseconds."""

    table: pa.Table
    position: Position
    level: IsolationLevel
    is_cut: bool
    made_at_ms: int
    rows_read: int
    reads: tuple[str, ...]
    """What was read of each table, as text."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """The Position of each table."""


@dataclass(slots=True)
class _Shared:
    """A result that equal statements share: the task that makes it, and when the rows were read that it has."""

    task: asyncio.Task[SqlResult] | None = None
    read_s: float | None = None
    """None until the first table is opened."""

    def is_fresh(self, max_age_ms: int) -> bool:
        return self.read_s is None or time.monotonic() - self.read_s < max_age_ms / 1000


@dataclass(frozen=True, slots=True)
class _Opened:
    """The rows of each read, the Position of each table, whether they are of one moment, and when that was."""

    sources: Mapping[int, AsyncIterator[bytes]]
    positions: Mapping[str, Position]
    is_cut: bool
    made_at_ms: int


@dataclass(eq=False, repr=False)
class Statements:
    """One per scan process, for the event loop's thread."""

    _config: Config
    _stores: ServedStores
    _routing: QueryRouting
    _reading: TableReading
    _cuts: Cuts
    _processes: QueryProcesses
    _shared: dict[str, _Shared] = field(default_factory=dict)
    _tables: dict[tuple[str, ...], list[SqlTable]] = field(default_factory=dict)

    async def run(self, asked: SqlRequest, visible: Sequence[str]) -> SqlResult:
        """Return the result over these stores, the ones that the caller may read. An equal statement over the same
        stores that has read its rows within the last `max_age_ms` is not run again.

        Raises `SqlInvalidError` for the statement, `TooManyRequestsError` if too many run, and what the stores
        raise.
        """
        self._forget()
        key = json.dumps([asked.sql, asked.params, str(asked.level), asked.bound.position.to_json(), asked.as_of,
                          asked.max_staleness_ms, asked.require_active, asked.wait_ms, asked.timeout_ms,
                          visible])  # fmt: skip
        shared = self._shared.get(key)
        if shared is None or shared.task is None or not shared.is_fresh(asked.max_age_ms):
            self._shared[key] = shared = _Shared()
            shared.task = asyncio.create_task(self._result(asked, tuple(visible), shared))
            shared.task.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(shared.task)

    async def keep(self) -> None:
        """Have a query process ready and release old cuts, until cancelled. Then end all of them."""
        try:
            await self._processes.start()
        except NotReadyError as error:  # a statement will start one, or say why not
            _log.warning("%s", error)
        try:
            await self._cuts.sweep()
        finally:
            await self._processes.stop()

    def _ended(self, key: str, task: asyncio.Task[SqlResult]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and key in self._shared and self._shared[key].task is task:
            del self._shared[key]

    def _forget(self) -> None:
        for key in [k for k, each in self._shared.items() if not each.is_fresh(_SHARED_MS)]:
            del self._shared[key]

    async def _result(self, asked: SqlRequest, visible: tuple[str, ...], shared: _Shared) -> SqlResult:
        tables = self._tables_of(visible)
        async with self._processes.session(asked.timeout_ms / 1000) as session, AsyncExitStack() as resources:
            prepared = await session.prepare(asked.sql, asked.params, tables)
            wanted = [self._wanted(read, tables) for read in prepared.reads]
            account = RowAccount(self._config.sql_max_rows_scanned)
            if prepared.is_explain:
                return await self._explained(asked, wanted)
            await self._refuse_large(wanted)
            _check_terms(asked, wanted)
            opened = await self._open(asked, wanted, resources, account, shared)
            table = await self._collected(session.run(opened.sources))
            reads = tuple(f"{each.read.table}: {each.described()}" for each in wanted)
            position = Position.of(chain.from_iterable(opened.positions.values()))
            observed().rows += table.num_rows
            return SqlResult(
                table, position, asked.level, opened.is_cut, opened.made_at_ms, account.rows, reads, opened.positions
            )

    async def _open(
        self, asked: SqlRequest, wanted: Sequence[WantedTable], resources: AsyncExitStack, account: RowAccount,
        shared: _Shared,
    ) -> _Opened:  # fmt: skip
        """Open all tables before one is read, so that the answer has their Position."""
        stores = list({each.store.name: each.store for each in wanted}.values())
        deadline_s = asyncio.get_running_loop().time() + asked.wait_ms / 1000
        if len(wanted) > 1 or any(each.needs_cut for each in wanted):
            has_bound = bool(asked.bound.position.offsets)
            for store in stores if has_bound else ():
                await self._await_bound(store, asked, deadline_s)
            cut = await resources.enter_async_context(self._cuts.cut(stores, 0 if has_bound else asked.max_age_ms))
            if cut is not None:
                made_at_ms = cut.snapshot.created_at_ms
                shared.read_s = time.monotonic() - max(0, now_ms() - made_at_ms) / 1000
                return await self._open_cut(asked, wanted, cut.snapshot, resources, account)
            if without := next((each for each in wanted if each.needs_cut), None):
                raise SqlInvalidError(
                    f"{without.read.table} needs a snapshot unless its keys are named, and there can be none: name "
                    "keys (WHERE key = …), or ask with one node."
                )
        made_at_ms, shared.read_s = now_ms(), time.monotonic()
        opened: dict[int, OpenTable] = {}
        for each in wanted:
            terms = Terms(
                each.store.name, asked.level, asked.bound, asked.require_active, max_staleness_ms=asked.max_staleness_ms
            )
            opened[each.read.number] = await self._reading.open_live(
                each, terms, asked.as_of, deadline_s, resources, account
            )
        positions = {
            each.read.table: merged_position(answers_of(opened[each.read.number].outcomes).values()) for each in wanted
        }
        sources = {number: table.rows for number, table in opened.items()}
        return _Opened(sources, positions, len(wanted) <= 1, made_at_ms)

    async def _open_cut(
        self, asked: SqlRequest, wanted: Sequence[WantedTable], cut: Snapshot, resources: AsyncExitStack,
        account: RowAccount,
    ) -> _Opened:  # fmt: skip
        sources, positions = {}, {}
        for each in wanted:
            sources[each.read.number] = await self._reading.open_cut(each, cut, asked.as_of, resources, account)
            parts = (part.position for part in cut.parts if part.store == each.store.name)
            positions[each.read.table] = Position.of(chain.from_iterable(parts))
        return _Opened(sources, positions, True, cut.created_at_ms)

    async def _await_bound(self, store: ServedStore, asked: SqlRequest, deadline_s: float) -> None:
        terms = Terms(store.name, asked.level, asked.bound, asked.require_active)
        outcomes = await self._routing.ask(store, terms, dict.fromkeys(store.partitions, PositionQuery()), deadline_s)
        refuse_failures(outcomes)

    async def _refuse_large(self, wanted: Sequence[WantedTable]) -> None:
        most = self._config.sql_max_rows_scanned
        for each in wanted:
            if not each.selection.is_everything:
                continue  # `RowAccount` ends it
            if (estimate := await self._estimate(each.store)) > most * _ESTIMATED_TOO_LARGE:
                raise SqlTooLargeError(
                    f"The statement reads all of {each.read.table!r}, about {estimate:,} rows, and at most {most:,} "
                    "(sql.max.rows.scanned) are read. Narrow it: key = …, key IN (…), a range of keys, or a range of "
                    "start in a window store."
                )

    async def _estimate(self, store: ServedStore) -> int:
        terms = Terms(store.name, IsolationLevel.READ_COMMITTED)
        outcomes = await self._routing.ask(store, terms, dict.fromkeys(store.partitions, CountQuery()), None)
        return sum(answer.rows.count for answer in answers_of(outcomes).values())

    async def _explained(self, asked: SqlRequest, wanted: Sequence[WantedTable]) -> SqlResult:
        rows = [
            {
                "table": each.read.table,
                "reads": each.described(),
                "columns": ", ".join(each.read.columns),
                "estimated_rows": await self._estimate(each.store)
                if each.read.keys is None or each.selection.keys is None
                else len(each.read.keys),
            }
            for each in wanted
        ]
        schema = pa.schema(
            [("table", pa.utf8()), ("reads", pa.utf8()), ("columns", pa.utf8()), ("estimated_rows", pa.int64())]
        )
        table = pa.Table.from_pylist(rows, schema)
        return SqlResult(table, Position(), asked.level, False, now_ms(), 0, ())

    async def _collected(self, parts: AsyncGenerator[bytes, None] | AsyncIterator[bytes]) -> pa.Table:
        data = bytearray()
        async for part in parts:
            data += part
            if len(data) > self._config.sql_max_bytes:
                raise SqlTooLargeError(
                    f"The result has more than {self._config.sql_max_bytes:,} bytes (sql.max.bytes): select fewer "
                    "columns, or add LIMIT."
                )
        table = pa.ipc.open_stream(bytes(data)).read_all()
        if table.num_rows > self._config.sql_max_rows:
            raise SqlTooLargeError(
                f"The result has more than {self._config.sql_max_rows:,} rows (sql.max.rows): add LIMIT, or group."
            )
        return table

    def _wanted(self, read: TableRead, tables: Sequence[SqlTable]) -> WantedTable:
        kind = next(table.kind for table in tables if table.name == read.table)
        name = read.table.removesuffix(VERSIONS) if kind == "versions" else read.table
        store = self._stores.get(name)
        return WantedTable(read, store, selection_of(read, store.definition), all_versions=kind == "versions")

    def _tables_of(self, visible: tuple[str, ...]) -> list[SqlTable]:
        """Return one object for the same stores, so that a query process keeps its tables."""
        known = self._tables.get(visible)
        if known is None:
            everywhere = {store.name: store.definition for store in self._stores.global_tables}
            definitions = [self._stores.declared(name) or everywhere.get(name) for name in visible]
            known = self._tables[visible] = tables_of(each for each in definitions if each is not None)
        return known


def _check_terms(asked: SqlRequest, wanted: Sequence[WantedTable]) -> None:
    """Raise `SqlInvalidError` if the tables cannot be read at this isolation level, or as of this time."""
    tables = ", ".join(each.read.table for each in wanted)
    if asked.level is IsolationLevel.READ_UNCOMMITTED and len(wanted) > 1:
        raise SqlInvalidError(
            f"isolation_level=read_uncommitted with {len(wanted)} tables ({tables}): staged rows of several tables "
            "have no common moment. Leave it out, or read one table."
        )
    if asked.level is IsolationLevel.READ_UNCOMMITTED and any(each.needs_cut for each in wanted):
        raise SqlInvalidError(
            f"isolation_level=read_uncommitted: {tables} is read from a snapshot, which has committed rows alone. "
            "Leave it out, or name keys (WHERE key = …)."
        )
    if asked.as_of is not None and wanted and not any(each.is_as_of for each in wanted):
        raise SqlInvalidError(
            f"as_of={asked.as_of}: the statement reads no versioned store. Leave it out, or read one as its own name."
        )
