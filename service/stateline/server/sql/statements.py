"""`Statements`: runs a statement over the tables of this application, and shares its result for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from stateline.config.settings import Config
from stateline.query.values import Outcome, Terms, answers_of, failures_of, merged_position
from stateline.server.contract.observation import observed
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.sql.cuts import Cuts
from stateline.server.sql.reading import OpenTable, RowAccount, TableReading, WantedTable
from stateline.server.sql.request import SqlRequest
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

# RocksDB counts overwritten and deleted rows too, until they are compacted. Its estimate was up to 28 times too large.
_ESTIMATED_TOO_LARGE = 30
# A result stays this long at most, whatever `max_age_ms` asks.
_SHARED_S = 60.0

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


@dataclass(slots=True)
class _Shared:
    """A result that equal statements share: the task that makes it, and when it ended."""

    task: asyncio.Task[SqlResult]
    ended_s: float | None = None


@dataclass(eq=False, repr=False)
class Statements:
    """One per scan process, for the event loop's thread."""

    _config: Config
    _stores: ServedStores
    _routing: QueryRouting
    _reading: TableReading
    _cuts: Cuts
    _processes: QueryProcesses
    _shared: dict[bytes, _Shared] = field(default_factory=dict)
    _tables: dict[tuple[str, ...], list[SqlTable]] = field(default_factory=dict)

    async def run(self, asked: SqlRequest, visible: Sequence[str]) -> SqlResult:
        """Return the result over these stores, the ones that the caller may read. An equal statement of the last
        `max_age_ms` over the same stores is not run again.

        Raises `SqlInvalidError` for the statement, `TooManyRequestsError` if too many run, and what the stores
        raise.
        """
        self._forget()
        key = orjson.dumps([asked.sql, asked.params, str(asked.level), asked.bound.position.to_json(), asked.as_of,
                            asked.max_staleness_ms, asked.require_active, visible])  # fmt: skip
        shared = self._shared.get(key)
        is_fresh = shared is not None and (
            shared.ended_s is None or time.monotonic() - shared.ended_s <= asked.max_age_ms / 1000
        )
        if shared is None or not is_fresh:
            task = asyncio.create_task(self._result(asked, tuple(visible)))
            self._shared[key] = shared = _Shared(task)
            task.add_done_callback(lambda _: self._ended(key, task))
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

    def _ended(self, key: bytes, task: asyncio.Task[SqlResult]) -> None:
        shared = self._shared.get(key)
        if shared is None or shared.task is not task:
            return
        if task.cancelled() or task.exception() is not None:
            del self._shared[key]
        else:
            shared.ended_s = time.monotonic()

    def _forget(self) -> None:
        now_s = time.monotonic()
        for key in [k for k, each in self._shared.items() if each.ended_s and now_s - each.ended_s > _SHARED_S]:
            del self._shared[key]

    async def _result(self, asked: SqlRequest, visible: tuple[str, ...]) -> SqlResult:
        tables = self._tables_of(visible)
        async with self._processes.session(asked.timeout_ms / 1000) as session, AsyncExitStack() as resources:
            prepared = await session.prepare(asked.sql, asked.params, tables)
            wanted = [self._wanted(read) for read in prepared.reads]
            account = RowAccount(self._config.sql_max_rows_scanned)
            if prepared.is_explain:
                return await self._explained(asked, wanted)
            await self._refuse_large(asked, wanted)
            sources, position, level, is_cut = await self._open(asked, wanted, resources, account)
            made_at_ms = now_ms()
            table = await self._collected(session.run(sources))
            reads = tuple(f"{each.read.table}: {each.read.described()}" for each in wanted)
            observed().rows += table.num_rows
            return SqlResult(table, position, level, is_cut, made_at_ms, account.rows, reads)

    async def _open(
        self, asked: SqlRequest, wanted: Sequence[WantedTable], resources: AsyncExitStack, account: RowAccount
    ) -> tuple[Mapping[int, AsyncIterator[bytes]], Position, IsolationLevel, bool]:
        """Open all tables before one is read, so that the answer has their Position."""
        stores = list({each.store.name: each.store for each in wanted}.values())
        level = asked.level or IsolationLevel.READ_COMMITTED
        if level is IsolationLevel.READ_UNCOMMITTED and len(stores) > 1:
            raise SqlInvalidError(
                f"isolation_level=read_uncommitted with {len(stores)} tables ({', '.join(s.name for s in stores)}): "
                "staged rows of several stores have no common moment. Leave it out, or read one table."
            )
        deadline_s = asyncio.get_running_loop().time() + asked.wait_ms / 1000
        if len(stores) > 1 or any(each.needs_cut for each in wanted):
            for store in stores:
                if asked.bound.position.offsets:
                    await self._await_bound(store, asked, level, deadline_s)
            cut = await resources.enter_async_context(
                self._cuts.cut(stores, 0 if asked.bound.position.offsets else asked.max_age_ms)
            )
            if cut is not None:
                snapshot = cut.snapshot
                position = Position()
                for part in snapshot.parts:
                    position = position.merge(part.position)
                sources = {
                    each.read.number: await self._reading.open_cut(each, snapshot, asked.as_of, resources, account)
                    for each in wanted
                }
                return sources, position, level, True
            if without := next((each for each in wanted if each.needs_cut), None):
                raise SqlInvalidError(
                    f"{without.read.table} needs a snapshot unless its keys are named, and there can be none: name "
                    "keys (WHERE key = …), or ask with one node."
                )
        opened: dict[int, OpenTable] = {}
        for each in wanted:
            terms = Terms(
                each.store.name, level, asked.bound, asked.require_active, max_staleness_ms=asked.max_staleness_ms
            )
            opened[each.read.number] = await self._reading.open_live(
                each, terms, asked.as_of, deadline_s, resources, account
            )
        position = _position(table.outcomes for table in opened.values())
        return {number: table.rows for number, table in opened.items()}, position, level, len(wanted) == 1

    async def _await_bound(
        self, store: ServedStore, asked: SqlRequest, level: IsolationLevel, deadline_s: float
    ) -> None:
        terms = Terms(store.name, level, asked.bound, asked.require_active)
        outcomes = await self._routing.ask(store, terms, dict.fromkeys(store.partitions, PositionQuery()), deadline_s)
        if failed := next(iter(failures_of(outcomes).values()), None):
            raise failed.error

    async def _refuse_large(self, asked: SqlRequest, wanted: Sequence[WantedTable]) -> None:
        most = self._config.sql_max_rows_scanned
        for each in wanted:
            if each.read.is_bounded:
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
                "reads": each.read.described(),
                "columns": ", ".join(each.read.columns),
                "estimated_rows": len(each.read.keys)
                if each.read.keys is not None
                else await self._estimate(each.store),
            }
            for each in wanted
        ]
        schema = pa.schema(
            [("table", pa.utf8()), ("reads", pa.utf8()), ("columns", pa.utf8()), ("estimated_rows", pa.int64())]
        )
        table = pa.Table.from_pylist(rows, schema)
        return SqlResult(table, Position(), asked.level or IsolationLevel.READ_COMMITTED, False, now_ms(), 0, ())

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

    def _wanted(self, read: TableRead) -> WantedTable:
        name, definition = read.table, self._stores.declared(read.table)
        if definition is None:
            return WantedTable(read, self._stores.get(name.removesuffix(VERSIONS)), all_versions=True)
        return WantedTable(read, self._stores.get(name), all_versions=False)

    def _tables_of(self, visible: tuple[str, ...]) -> list[SqlTable]:
        """Return one object for the same stores, so that a query process keeps its tables."""
        known = self._tables.get(visible)
        if known is None:
            definitions = [self._stores.declared(name) for name in visible]
            known = self._tables[visible] = tables_of(each for each in definitions if each is not None)
        return known


def _position(outcomes: Iterable[Mapping[int, Outcome]]) -> Position:
    position = Position()
    for each in outcomes:
        position = position.merge(merged_position(answers_of(each).values()))
    return position
