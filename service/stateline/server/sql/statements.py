"""`Statements`: runs a statement over the tables of this application, and shares its result for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from stateline.config.settings import Config
from stateline.query.values import Terms, answers_of, merged_position
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.sql.answers import RenderedAnswer, SqlResult, answer_of
from stateline.server.sql.cuts import Cuts, SharedCut
from stateline.server.sql.full_scans import FullScans
from stateline.server.sql.reading import OpenTable, RowAccount, TableReading, WantedTable, refuse_failures
from stateline.server.sql.request import SqlRequest
from stateline.server.sql.selection import selection_of
from stateline.server.sql.shared_results import Run, SharedResults
from stateline.server.sql.shown_commits import ReadCommits, ShownCommits
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.sql.plan import TableRead
from stateline.sql.pool import QueryProcesses
from stateline.sql.session import Sources
from stateline.sql.statement import is_momentary
from stateline.sql.tables import VERSIONS, SqlTable, tables_of
from stateline_store import (
    IsolationLevel,
    NotReadyError,
    Position,
    PositionBound,
    PositionQuery,
    SqlInvalidError,
    SqlTooLargeError,
)
from stateline_store.clock import now_ms

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The rows of each read, the Position of each table, why they are of no cut if they are not, when they were read,
    and of which commits they are."""

    sources: Sources
    positions: Mapping[str, Position]
    no_cut: str
    read_at_ms: int
    shown: ReadCommits | None = None


@dataclass(eq=False, repr=False)
class Statements:
    """One per scan process, for the event loop's thread."""

    _config: Config
    _stores: ServedStores
    _routing: QueryRouting
    _bounds: PositionBounds
    _scans: FullScans
    _reading: TableReading
    _cuts: Cuts
    _processes: QueryProcesses
    _shown: ShownCommits
    _tables: dict[tuple[str, ...], list[SqlTable]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shared = SharedResults[SqlResult](lambda result: result.size, self._renews)

    async def answer(
        self,
        asked: SqlRequest,
        visible: Sequence[str],
        caller: str,
        place: Callable[[], AbstractAsyncContextManager[None]],
    ) -> RenderedAnswer:
        """Return the answer over these stores, the ones that the caller may read. An equal statement over the same
        stores that has read its rows within the last `max_age_ms` is not run again. One that runs takes `place`.

        Raises `SqlInvalidError` for the statement, `TooManyRequestsError` if too many run, and what the stores
        raise.
        """

        async def placed(run: Run[SqlResult]) -> SqlResult:
            async with place():
                return await self._result(asked, tuple(visible), caller, run)

        key = asked.key(visible)
        result = await self._shared.get(key, asked.max_age_ms, placed)
        answer = await answer_of(result, asked)
        self._shared.count_anew(key)  # the result keeps its answers
        return answer

    def _renews(self, result: SqlResult) -> bool:
        if result.shown is None or not self._shown.are_newest(result.shown):
            return False
        result.renew()
        return True

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

    async def _result(self, asked: SqlRequest, visible: tuple[str, ...], caller: str, run: Run[SqlResult]) -> SqlResult:
        tables = self._tables_of(visible)
        if asked.wait_ms and asked.has_bound:
            await self._await_bounds(asked, tables, caller)
        async with self._processes.session(asked.timeout_ms / 1000, caller) as session, AsyncExitStack() as resources:
            prepared = await session.prepare(asked.sql, asked.params, tables)
            wanted = [self._wanted(read, tables) for read in prepared.reads]
            account = RowAccount(self._config.sql_max_rows_scanned)
            try:
                async with asyncio.timeout_at(session.end_s) as limit:
                    if prepared.is_explain:
                        return await self._explained(asked, wanted)
                    await self._scans.check(wanted, asked.as_of)
                    _check_terms(asked, wanted)
                    opened = await self._open(asked, wanted, resources, account, run)
            except TimeoutError as error:
                raise session.timeout() if limit.expired() else error from error
            table = await self._collected(session.run(opened.sources, self._config.sql_max_bytes))
            reads = tuple(f"{each.read.table}: {each.described()}" for each in wanted)
            position = Position.of(chain.from_iterable(opened.positions.values()))
            by_store: dict[str, Position] = {}
            for each in wanted:
                seen = by_store.get(each.store.name, Position())
                by_store[each.store.name] = seen.merge(opened.positions[each.read.table])
            return SqlResult(
                table, position, asked.level, opened.no_cut, opened.read_at_ms, account.rows, reads, opened.positions,
                None if asked.store_bounds is None else by_store, shown=opened.shown,
            )  # fmt: skip

    async def _open(
        self, asked: SqlRequest, wanted: Sequence[WantedTable], resources: AsyncExitStack, account: RowAccount,
        run: Run[SqlResult],
    ) -> _Opened:  # fmt: skip
        """Open all tables before one is read, so that the answer has their Position."""
        stores = list({each.store.name: each.store for each in wanted}.values())
        deadline_s = asyncio.get_running_loop().time() + asked.wait_ms / 1000
        bounds = self._bounds.of_each(stores, asked.bound, asked.store_bounds or {})
        no_cut = _parts_apart(stores)
        if len(wanted) > 1 or any(each.needs_cut for each in wanted):
            has_bound = any(bounds[store.name].position for store in stores)
            if has_bound:
                await self._await_bound(stores, asked, bounds, deadline_s)
            without = next((each for each in wanted if each.needs_cut), None)
            max_age_ms = 0 if has_bound else asked.cut_age_ms
            cut = await resources.enter_async_context(self._cuts.cut(stores, max_age_ms, is_needed=without is not None))
            if isinstance(cut, SharedCut):
                run.note_read(cut.age_ms)
                return self._open_cut(asked, wanted, cut, account)
            if without is not None:
                raise SqlInvalidError(
                    f"{without.read.table} needs a snapshot unless its keys are named, and there can be none of a "
                    "global table or a store in memory: name keys (WHERE key = …), or read it alone."
                )
            no_cut = cut
        shown = self._shown.of(stores) if _may_hold(asked, wanted) else None
        read_at_ms = now_ms()
        run.note_read(0)
        opened: dict[int, OpenTable] = {}
        for each in wanted:
            terms = Terms(
                each.store.name,
                asked.level,
                bounds[each.store.name],
                asked.require_active,
                max_staleness_ms=asked.max_staleness_ms,
            )
            opened[each.read.number] = await self._reading.open_live(
                each, terms, asked.as_of, deadline_s, resources, account
            )
        positions = {
            each.read.table: merged_position(answers_of(opened[each.read.number].outcomes).values()) for each in wanted
        }
        sources = {number: table.rows for number, table in opened.items()}
        if shown is not None and not self._shown.are_newest(shown):  # a commit meanwhile: which one was read?
            shown = None
        return _Opened(sources, positions, no_cut, read_at_ms, shown)

    def _open_cut(
        self, asked: SqlRequest, wanted: Sequence[WantedTable], cut: SharedCut, account: RowAccount
    ) -> _Opened:
        sources: dict[int, AsyncIterator[bytes]] = {}
        positions = {}
        for each in wanted:
            sources[each.read.number] = self._reading.open_cut(each, cut.kept, asked.as_of, account)
            parts = (part.position for part in cut.parts if part.store == each.store.name)
            positions[each.read.table] = Position.of(chain.from_iterable(parts))
        return _Opened(sources, positions, "", now_ms() - cut.age_ms)

    async def _await_bounds(self, asked: SqlRequest, tables: list[SqlTable], caller: str) -> None:
        """Wait until the tables of the statement are up to its bound, without a query process, which others need."""
        deadline_s = asyncio.get_running_loop().time() + asked.wait_ms / 1000
        async with self._processes.session(asked.timeout_ms / 1000, caller) as session:
            prepared = await session.prepare(asked.sql, asked.params, tables)
        if not prepared.is_explain:
            wanted = [self._wanted(read, tables) for read in prepared.reads]
            stores = list({each.store.name: each.store for each in wanted}.values())
            await self._await_bound(
                stores, asked, self._bounds.of_each(stores, asked.bound, asked.store_bounds or {}), deadline_s
            )

    async def _await_bound(
        self, stores: Sequence[ServedStore], asked: SqlRequest, bounds: Mapping[str, PositionBound], deadline_s: float
    ) -> None:
        for store in stores:
            terms = Terms(store.name, asked.level, bounds[store.name], asked.require_active)
            parts = dict.fromkeys(store.partitions, PositionQuery())
            refuse_failures(await self._routing.ask(store, terms, parts, deadline_s))

    async def _explained(self, asked: SqlRequest, wanted: Sequence[WantedTable]) -> SqlResult:
        rows = [
            {
                "table": each.read.table,
                "reads": each.described(),
                "columns": ", ".join(each.read.columns),
                "estimated_rows": await self._scans.estimate(each.store)
                if each.read.keys is None or each.selection.keys is None
                else len(each.read.keys),
            }
            for each in wanted
        ]
        schema = pa.schema(
            [("table", pa.utf8()), ("reads", pa.utf8()), ("columns", pa.utf8()), ("estimated_rows", pa.int64())]
        )
        table = pa.Table.from_pylist(rows, schema)
        return SqlResult(table, Position(), asked.level, "", now_ms(), 0, ())

    async def _collected(self, parts: AsyncIterator[bytes]) -> pa.Table:
        table = pa.ipc.open_stream(b"".join([part async for part in parts])).read_all()
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


def _may_hold(asked: SqlRequest, wanted: Sequence[WantedTable]) -> bool:
    """Whether the result may hold until the next commit. Lookups of keys are as quick as a look at all partitions."""
    is_usual = asked.level is IsolationLevel.READ_COMMITTED and not asked.require_active
    has_scan = any(each.selection.keys is None for each in wanted)
    return is_usual and has_scan and asked.max_staleness_ms is None and not is_momentary(asked.sql)


def _parts_apart(stores: Sequence[ServedStore]) -> str:
    """Return why these stores are of no cut if they are read as they are now. Empty for one partition, or none."""
    if sum(len(store.partitions) for store in stores) <= 1:
        return ""
    return "Each partition was read as it is now. Only a statement over several tables reads a cut."


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
            f"as_of is {asked.as_of} in milliseconds, and the statement reads no versioned store at a time. Leave it "
            f"out, or read such a store by its own name: <store>{VERSIONS} has every version."
        )
