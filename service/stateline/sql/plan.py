"""Read DuckDB's plan of a statement as the part of each table that it needs. Pure.

The plan comes from EXPLAIN (FORMAT JSON) over empty tables. Its scans name their filters. Bounds only widen the part:
DuckDB runs the whole statement again over the rows. A filter that is not understood bounds nothing, and a plan that is
not understood reads its tables in full.

A table has one read for all its scans: the smallest part that has the part of each. So any plan of the same statement
has the same result over these rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stateline.sql.filters import ALL, Part, conjunction, either, parse
from stateline.sql.struct_types import quoted
from stateline.sql.tables import SqlTable
from stateline_store import SqlNotAllowedError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_WRITES = re.compile(r"INSERT|UPDATE|DELETE|MERGE_INTO|COPY|CREATE|DROP|ALTER|ATTACH|EXPORT|\bSET\b|LOAD")
_PLAIN = frozenset({
    "SEQ_SCAN", "PROJECTION", "FILTER", "ORDER_BY", "TOP_N", "LIMIT", "STREAMING_LIMIT", "UNGROUPED_AGGREGATE",
    "HASH_GROUP_BY", "PERFECT_HASH_GROUP_BY",
})  # fmt: skip
_READ = re.compile(r"\br(\d+)_")


@dataclass(frozen=True, slots=True)
class TableRead:
    """The part of a table that a query needs. None bounds nothing, and bounds are inclusive.

    `keys` are its only keys, in ascending order. `lower` and `upper` bound the key in SQL's order: bytes of UTF-8 for
    text, numbers for integers. A UUID stands for its text in lower and in upper case. `start_from` and the others
    bound the window, in milliseconds. `may_stop`: a LIMIT may end the query before it has read all of the part.
    """

    number: int
    table: str
    columns: tuple[str, ...]
    keys: tuple[Any, ...] | None = None
    lower: Any = None
    upper: Any = None
    start_from: int | None = None
    start_to: int | None = None
    end_from: int | None = None
    end_to: int | None = None
    may_stop: bool = False

    @property
    def is_bounded(self) -> bool:
        return any(bound is not None for bound in (self.keys, *self._bounds()))

    def described(self) -> str:
        """Return the part as text: `2 keys`, `range of key from 'a'`, `full scan`."""
        if self.keys is not None:
            keys = f"{len(self.keys)} key{'' if len(self.keys) == 1 else 's'}"
            return (
                f"{keys}: {', '.join(map(str, self.keys[:5]))}{', …' if len(self.keys) > 5 else ''}" + self._windows()
            )
        if not self.is_bounded:
            return "full scan"
        return ("range of key" + _span(self.lower, self.upper) if self._has_range() else "all keys") + self._windows()

    def _bounds(self) -> tuple[Any, ...]:
        return self.lower, self.upper, self.start_from, self.start_to, self.end_from, self.end_to

    def _has_range(self) -> bool:
        return self.lower is not None or self.upper is not None

    def _windows(self) -> str:
        pairs = (("start", self.start_from, self.start_to), ("end", self.end_from, self.end_to))
        shown = ((name, _moment(low), _moment(high, up=True)) for name, low, high in pairs)
        return "".join(f", {name}{_span(low, high)}" for name, low, high in shown if not low is high is None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned statement. If `is_explain`, the plan is all that is wanted. `is_lookup`: it reads the rows of named
    keys, and has no more rows than these."""

    reads: tuple[TableRead, ...]
    is_explain: bool = False
    is_lookup: bool = False


def table_reads(plan: str, tables: Sequence[SqlTable]) -> list[TableRead]:
    """Return the reads of DuckDB's plan, given as JSON. A plan with a scan that is not understood reads every table in
    full. Raises `SqlNotAllowedError` for a plan that writes."""
    known = {f"memory.main.{quoted(table.name)}": table for table in tables}
    found: dict[str, tuple[SqlTable, list[tuple[frozenset[str], dict[str, Part]]]]] = {}
    nodes = list(_nodes(json.loads(plan)))
    may_stop = any("LIMIT" in name for name, _ in nodes)
    for name, info in nodes:
        if _WRITES.search(name):
            raise SqlNotAllowedError("The statement writes. Only a SELECT that reads is accepted.")
        if (place := _text(info.get("Table", ""))) == "" and name != "SEQ_SCAN":
            continue
        if name != "SEQ_SCAN" or (table := _table(known, place)) is None:
            return [
                TableRead(number, each.name, tuple(each.columns), may_stop=may_stop)
                for number, each in enumerate(tables)
            ]
        tokens = parse(_text(info.get("Filters", "")))
        scans = found.setdefault(table.name, (table, []))[1]
        scans.append((_columns(table, info, tokens), conjunction(table, tokens)))
    reads = [_read(number, table, scans) for number, (table, scans) in enumerate(found.values())]
    return [replace(each, may_stop=may_stop) for each in reads]


def is_plain(plan: str) -> bool:
    """Return whether a plan has no more rows than the tables that it scans: it joins nothing, and makes no rows."""
    return all(name in _PLAIN for name, _ in _nodes(json.loads(plan)))


def scanned_once(plan: str, numbers: Collection[int]) -> set[int]:
    """Return the reads that a plan over rows scans exactly once, so that the rows may stream. `numbers` are all reads.

    The columns of read 3 are `r3_key` and so on in the plan. A scan that only counts names no column.
    """
    nodes = list(_nodes(json.loads(plan)))
    if any("REC" in name for name, _ in nodes):
        return set()
    scans = [info for name, info in nodes if "ARROW_SCAN" in f"{name} {info.get('Function', '')}".upper()]
    seen = Counter(int(found[1]) for info in scans if (found := _READ.search(_text(info.get("Projections", "")))))
    missing = set(numbers) - set(seen)
    if (unnamed := len(scans) - seen.total()) and (unnamed, len(missing)) != (1, 1):
        return set()
    return {number for number in numbers if seen[number] == 1} | (missing if unnamed else set())


def _read(number: int, table: SqlTable, scans: Sequence[tuple[frozenset[str], dict[str, Part]]]) -> TableRead:
    columns = frozenset[str]().union(*(columns for columns, _ in scans))
    key, start, end = (either([parts.get(name, ALL) for _, parts in scans]) for name in ("key", "start", "end"))
    start_from, start_to = _milliseconds(start)
    end_from, end_to = _milliseconds(end)
    return TableRead(
        number,
        table.name,
        tuple(name for name in table.columns if name in columns) or ("key",),
        None if key.values is None else tuple(sorted(key.values)),
        key.lower,
        key.upper,
        start_from,
        start_to,
        end_from,
        end_to,
    )


def _milliseconds(part: Part) -> tuple[int | None, int | None]:
    """Return the range of times, widened to whole milliseconds. Without values it is empty."""
    if part.values == frozenset():
        return 1, 0
    low, high = part.span()
    return None if low is None else (low - _EPOCH) // _MS, None if high is None else -((_EPOCH - high) // _MS)


def _nodes(plan: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the details of every operator."""
    stack = list(plan)
    while stack:
        node = stack.pop()
        yield node["name"].strip(), node["extra_info"]
        stack.extend(node["children"])


def _text(detail: Any) -> str:
    return "\n".join(detail) if isinstance(detail, list) else str(detail)


def _table(known: Mapping[str, SqlTable], place: str) -> SqlTable | None:
    return known.get(re.sub(r'^(memory\.main\.)(?!")(.*)$', r'\1"\2"', place, flags=re.DOTALL))


def _columns(table: SqlTable, info: Mapping[str, Any], tokens: Sequence[re.Match[str]]) -> frozenset[str]:
    """Return the columns of a scan's projection and filters, or all columns if one of them is not known.

    DuckDB leaves out the projection or the filters of some scans with filters on members of a STRUCT: a scan that has
    filters and no projection, or filters without a text, reads all columns.
    """
    projected = {line.split(".")[0] for line in _text(info.get("Projections", "rowid")).split("\n") if line}
    filtered = {name for token in tokens if (name := (token["word"] or "").split(".")[0]) in table.columns}
    is_told = "Filters" not in info or (projected and tokens)
    if not is_told or not projected <= table.columns.keys():
        return frozenset(table.columns)
    return frozenset(projected | filtered)


def _moment(ms: int | None, *, up: bool = False) -> str | None:
    """Return a time in ISO 8601, to the second before it or `up` to the next one."""
    if ms is None:
        return None
    try:
        return (_EPOCH + timedelta(seconds=-(-ms // 1000) if up else ms // 1000)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return "infinity"


def _span(low: Any, high: Any) -> str:
    return ("" if low is None else f" from {low}") + ("" if high is None else f" to {high}")
