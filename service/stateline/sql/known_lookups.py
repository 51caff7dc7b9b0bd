"""`KnownLookups`: statements that look up the key of their parameter, as DuckDB has planned them once. Pure.

Such a statement is `SELECT … FROM t WHERE key = $1`. No other row passes its WHERE. So its read follows from the
parameter, and neither a plan nor a round trip to the query process is needed for the next key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stateline.sql.plan import Prepared, TableRead
from stateline.sql.tables import SqlTable

# The words keep a nested SELECT out, `$` and `?` a second parameter. Nothing is tried again, as in `statement`.
_FORM = re.compile(
    r"\s*+SELECT\b(?P<shown>(?:(?!\b(?:SELECT|FROM|TABLE|VALUES)\b)[^$?;])++)\bFROM\s++(?:\w++|\"[^\"]++\")"
    r"(?:\s++(?:AS\s++)?(?!WHERE\b)\w++)?+\s++WHERE\s++(?:\w++\.)?+key\s*+=\s*+(?:\$1|\?)\s*+;?+\s*+",
    re.IGNORECASE,
)
_KINDS = {"VARCHAR": str, "INTEGER": int, "BIGINT": int}  # whose values and parameters are equal in Python, too
_MOST = 256


class KnownLookups:
    """The lookups of a pool of query processes, by their text. The oldest ones are forgotten."""

    def __init__(self) -> None:
        self._reads: dict[str, tuple[Sequence[SqlTable], type, TableRead]] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def prepared(
        self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None, tables: Sequence[SqlTable]
    ) -> Prepared | None:
        """Return the plan of this statement, None if it is not known over these tables."""
        if (known := self._reads.get(sql)) is None or known[0] is not tables:
            return None
        _, kind, read = known
        if not isinstance(params, list) or len(params) != 1 or type(params[0]) is not kind:
            return None
        return Prepared((replace(read, keys=(params[0],)),), is_lookup=True)

    def note(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        tables: Sequence[SqlTable],
        prepared: Prepared,
    ) -> None:
        """Remember the plan of a statement if it is that of any key."""
        if not prepared.is_lookup or len(prepared.reads) != 1 or not isinstance(params, list) or len(params) != 1:
            return
        (read,), (value,) = prepared.reads, params
        table = next(each for each in tables if each.name == read.table)
        kind = _KINDS.get(table.columns["key"])
        if type(value) is not kind or read.keys != (value,) or (found := _FORM.fullmatch(sql)) is None:
            return
        # A plan may leave out what this key alone does not need.
        shown = found["shown"].lower()
        columns = tuple(name for name in table.columns if name in read.columns or name.lower() in shown)
        if len(self._reads) >= _MOST:
            del self._reads[next(iter(self._reads))]
        self._reads[sql] = tables, kind, replace(read, columns=columns)
