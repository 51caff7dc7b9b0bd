"""`FullScans`: refuses full scans of more rows than may be read before they begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateline.query.values import Terms, answers_of
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.sql.reading import WantedTable
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline_store import CountQuery, IsolationLevel, SqlTooLargeError

# RocksDB counts overwritten and deleted rows too, until they are compacted: in files up to 28 times as many rows as
# there are, and in memory any number of writes of one row.
_ESTIMATED_TOO_LARGE, _WRITES_IN_MEMORY = 30, 10_000_000


@dataclass(frozen=True, slots=True)
class FullScans:
    """One per scan process, for the event loop's thread. `most` rows may be read."""

    most: int
    _routing: QueryRouting
    _partitions: Partitions

    async def check(self, wanted: Sequence[WantedTable], as_of: int | None) -> None:
        """Raise `SqlTooLargeError` if a table that is read in full has more rows than may be read. `RowAccount` ends
        other scans, and those of statements with LIMIT, which may need few rows."""
        for each in wanted:
            if not each.selection.is_everything or each.read.may_stop or (each.is_as_of and as_of is not None):
                continue
            if not await self._is_too_large(each):
                continue
            start = "" if each.store.definition.key_value else ", or a range of start"
            raise SqlTooLargeError(
                f"The statement reads all of {each.read.table!r}, which has more than {self.most:,} rows, the most "
                f"that are read (sql.max.rows.scanned). Narrow it: key = …, key IN (…), a range of keys{start}."
            )

    async def _is_too_large(self, table: WantedTable) -> bool:
        estimate = await self.estimate(table.store)
        if estimate <= self.most:
            return False
        if table.is_stored_as_read and self._partitions.rows_at_least(table.store) > self.most:
            return True
        return not table.is_as_of and estimate > self.most * _ESTIMATED_TOO_LARGE + _WRITES_IN_MEMORY

    async def estimate(self, store: ServedStore) -> int:
        """Return RocksDB's estimate of the rows, of partitions that answer."""
        terms = Terms(store.name, IsolationLevel.READ_COMMITTED)
        outcomes = await self._routing.ask(store, terms, dict.fromkeys(store.partitions, CountQuery()), None)
        return sum(answer.rows.count for answer in answers_of(outcomes).values())
