"""SELECTs over the stores of `sql_app`, by Hypothesis: filters on keys, times and members, joins, groups, subqueries,
order and limits. Rows that are limited are ordered by all columns, so a statement has one result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from stateline import serdes
from support.apps.kinds_app import SIZE_MS
from support.apps.sql_app import (
    COLUMNS,
    COPIED,
    DOUBLES,
    IN_MEMORY,
    KEYS,
    SESSIONS,
    STAMPED,
    VERSIONED,
    WINDOWS,
    blob_of,
    document_of,
    moment_of,
    number_of,
    uuid_of,
)

Draw = Callable[..., str]

PLAIN_OF = {name: name for name in COLUMNS} | {f"{name}{IN_MEMORY}": name for name in COPIED}
TABLES = [*PLAIN_OF, *(f"{name}_versions" for name in VERSIONED)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Statement:
    """A SELECT, the tables that it names, and how it is asked."""

    sql: str
    tables: tuple[str, ...]
    uncommitted: bool = False
    is_bounded: bool = False
    max_age_ms: int = 0
    as_of: int | None = None


def kind_of(table: str) -> str:
    """Return `key_value`, `window`, `session`, `versioned` or `versions`."""
    if table.endswith("_versions"):
        return "versions"
    name = PLAIN_OF[table]
    kinds = {"window": WINDOWS, "session": SESSIONS, "versioned": VERSIONED}
    return next((kind for kind, names in kinds.items() if name in names), "key_value")


def columns_of(table: str) -> dict[str, str]:
    """Return the SQL type of each column."""
    name = PLAIN_OF[table.removesuffix("_versions")]
    key, value = COLUMNS[name]
    columns = {"key": key}
    if kind_of(table) in ("window", "session"):
        columns |= {"start": "TIMESTAMPTZ", "end": "TIMESTAMPTZ"}
    columns["value"] = value
    if name in STAMPED:
        columns["timestamp"] = "TIMESTAMPTZ"
    if name == "headed":
        columns["headers"] = 'STRUCT("name" VARCHAR, "value" BLOB)[]'
    if kind_of(table) == "versions":
        columns["valid_to"] = "TIMESTAMPTZ"
    return columns


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _blob(value: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"


def _double(value: float) -> str:
    return f"{text(repr(value))}::DOUBLE"


_TEXTS = [text(key) for key in (*KEYS, "absent", "k", "", "k1é", "é")]
_UUIDS = [text(spelling) for key in KEYS for spelling in (str(uuid_of(key)), str(uuid_of(key)).upper())]
_KEYS: dict[str, list[str]] = {
    "VARCHAR": _TEXTS,
    "JSON": [f"{text(serdes.json.serialize(document_of(key)).decode())}::JSON" for key in KEYS],
    "BIGINT": [*(str(number_of(key)) for key in KEYS), "-1", "1", "9000000000", "-9223372036854775808"],
    "INTEGER": [*(str(n - 6) for n in range(13)), "99", "-99", "3000000000"],
    "UUID": [*(f"{each}::UUID" for each in _UUIDS), "'00000000-0000-0000-0000-000000000000'::UUID"],
    "BLOB": [*(_blob(blob_of(key)) for key in KEYS), _blob(b"")],
    "TIMESTAMPTZ": [text(moment_of(key).isoformat()) for key in KEYS] + ["'1970-01-01 02:00:00.0085Z'"],
    "DOUBLE": [*map(_double, DOUBLES), "0", "1.5", "2", "'nan'::DOUBLE"],
}
_SIGNS = ("=", "=", "<", "<=", ">", ">=", "<>")


class _Maker:
    """Draws one statement. Times of the input are from `base_ms` to `last_ms`."""

    def __init__(self, draw: Draw, base_ms: int, last_ms: int) -> None:
        self._draw, self._base_ms, self._last_ms = draw, base_ms, last_ms
        self.tables: list[str] = []

    def one_of(self, *choices: str) -> str:
        return self._draw(st.sampled_from(choices))

    def chance(self, of: int) -> bool:
        return self.one_of(*map(str, range(of))) == "0"

    def number(self, least: int, most: int) -> int:
        return int(self._draw(st.integers(least, most)))

    def table(self, *, of: tuple[str, ...] = tuple(TABLES)) -> str:
        self.tables.append(self.one_of(*of))
        return self.tables[-1]

    def time(self) -> str:
        if self.chance(8):
            return self.one_of("'1969-12-31 23:59:59Z'", "'2200-01-01 00:00:00Z'", "'0001-01-01 00:00:00Z'", "now()")
        at_ms = self.number(self._base_ms, self._last_ms)
        at = _EPOCH + timedelta(milliseconds=at_ms - (at_ms % SIZE_MS if self.chance(2) else 0))
        return text(at.isoformat()) + "::TIMESTAMPTZ"

    def predicate(self, table: str, alias: str) -> str:
        """A filter of one or several comparisons."""
        made = [self._comparison(table, alias) for _ in range(self.number(1, 3))]
        joined = made[0]
        for each in made[1:]:
            joined = f"({joined} {self.one_of('AND', 'AND', 'OR')} {each})"
        return f"NOT {joined}" if self.chance(8) else joined

    def _comparison(self, table: str, alias: str) -> str:
        kinds = ["key"] * 3 + ["value", "null"] + ["time"] * 3 * (len(columns_of(table)) > 2)
        match self.one_of(*kinds):
            case "key":
                return self._of_key(columns_of(table)["key"], f"{alias}.key")
            case "time":
                times = [name for name, kind in columns_of(table).items() if kind == "TIMESTAMPTZ" and name != "key"]
                return self._of_time(f'{alias}."{self.one_of(*times)}"') if times else "true"
            case "null":
                column = self.one_of(*columns_of(table))
                return f'{alias}."{column}" IS {self.one_of("", "NOT ")}NULL'
        return f"{self.member(table, alias)} {self.one_of(*_SIGNS)} {self.number(-1, 400)}"

    def _of_key(self, kind: str, key: str) -> str:
        def value() -> str:
            return self.one_of(*_KEYS[kind])

        match self.one_of("sign", "sign", "in", "between", "like", "computed"):
            case "in":
                return f"{key} {self.one_of('', '', 'NOT ')}IN ({', '.join(value() for _ in range(self.number(1, 4)))})"
            case "between":
                return f"{key} BETWEEN {value()} AND {value()}"
            case "like" if kind == "VARCHAR":
                return f"{key} LIKE {self.one_of(*map(text, ('k1%', 'k%', '%1', 'k_', 'k1', 'é%', '', 'K1%')))}"
            case "computed":
                return f"({key}::VARCHAR || '') = CAST({value()} AS VARCHAR)"
        return f"{key} {self.one_of(*_SIGNS)} {value()}"

    def _of_time(self, column: str) -> str:
        if self.chance(3):
            return f"{column} BETWEEN {self.time()} AND {self.time()}"
        return f"{column} {self.one_of(*_SIGNS)} {self.time()}"

    def member(self, table: str, alias: str) -> str:
        """A number out of the value."""
        name = PLAIN_OF[table.removesuffix("_versions")]
        value = f"{alias}.value"
        if name in ("numbers", "headed"):
            return f"({value}->>'n')::BIGINT"
        return {
            "models": f"{value}.n",
            "history": f"({value}->>0)::BIGINT",
            "ids": f"length({value})",
            "blobs": f"octet_length({value})",
        }.get(name, f"{value}::BIGINT")

    def columns(self, table: str, alias: str) -> str:
        """Some columns of a table."""
        if self.chance(4):
            return f"{alias}.*"
        names = list(columns_of(table))
        return ", ".join(f'{alias}."{self.one_of(*names)}"' for _ in range(self.number(1, 3)))

    def tail(self) -> str:
        """An order by all columns, and a limit perhaps."""
        order = f" ORDER BY ALL{self.one_of('', ' DESC', ' NULLS FIRST')}"
        match self.one_of("none", "limit", "offset", "no order"):
            case "limit":
                return f"{order} LIMIT {self.number(0, 20)}"
            case "offset":
                return f"{order} LIMIT {self.number(1, 20)} OFFSET {self.number(0, 20)}"
            case "no order":
                return ""
        return order

    def where(self, table: str, alias: str) -> str:
        return f" WHERE {self.predicate(table, alias)}" if not self.chance(4) else ""

    def rows(self) -> str:
        table = self.table()
        distinct = self.one_of("", "", "DISTINCT ")
        return f'SELECT {distinct}{self.columns(table, "t")} FROM "{table}" t{self.where(table, "t")}{self.tail()}'

    def groups(self) -> str:
        table = self.table()
        member = self.member(table, "t")
        by = 't."start"' if kind_of(table) in ("window", "session") and self.chance(2) else f"{member} % 3"
        having = f" HAVING count(*) > {self.number(0, 3)}" if self.chance(3) else ""
        return (
            f"SELECT {by} AS g, count(*) AS n, sum({member}) AS s, min(t.key) AS k, max({member}) AS m, "
            f'count(DISTINCT t.key) AS d FROM "{table}" t{self.where(table, "t")} GROUP BY g{having}{self.tail()}'
        )

    def totals(self) -> str:
        table = self.table()
        return f'SELECT count(*), min(t.key), max(t.key) FROM "{table}" t{self.where(table, "t")}'

    def joined(self) -> str:
        one, other = self.table(), self.table()
        same = columns_of(one)["key"] == columns_of(other)["key"]
        on = "a.key = b.key" if same else f"{self.member(one, 'a')} = {self.member(other, 'b')}"
        join = self.one_of("JOIN", "LEFT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
        columns = self.columns(one, "a")
        if join not in ("SEMI JOIN", "ANTI JOIN"):
            columns += f", {self.columns(other, 'b')}"
        return (
            f'SELECT {columns} FROM "{one}" a {join} "{other}" b ON {on}{self.where(one, "a")} ORDER BY ALL '
            f"LIMIT {self.number(1, 200)}"
        )

    def nested(self) -> str:
        one, other = self.table(), self.table()
        inner = f'SELECT {self.member(other, "b")} FROM "{other}" b{self.where(other, "b")}'
        test = self.one_of(
            f"{self.member(one, 'a')} IN ({inner})",
            f"{self.member(one, 'a')} > (SELECT avg(x) FROM ({inner}) s(x))",
            f"EXISTS ({inner} LIMIT 1)",
        )
        return f'SELECT {self.columns(one, "a")} FROM "{one}" a WHERE {test} AND {self.predicate(one, "a")}'

    def both(self) -> str:
        one, other = self.table(), self.table()
        parts = (f'SELECT {self.member(t, "t")} AS m FROM "{t}" t{self.where(t, "t")}' for t in (one, other))
        return f"{self.one_of(' UNION ', ' UNION ALL ', ' INTERSECT ', ' EXCEPT ').join(parts)} ORDER BY ALL"

    def of_itself(self) -> str:
        table = self.table()
        return (
            f'WITH x AS (SELECT * FROM "{table}" t{self.where(table, "t")}) SELECT count(*) AS n, '
            f'(SELECT count(*) FROM "{table}" u{self.where(table, "u")}) AS m FROM x'
        )


@st.composite
def statements(draw: Draw, base_ms: int, last_ms: int) -> Statement:
    """Statements of any shape, and how they are asked."""
    maker = _Maker(draw, base_ms, last_ms)
    shapes = (maker.rows, maker.groups, maker.totals, maker.joined, maker.nested, maker.both, maker.of_itself)
    shape = draw(st.sampled_from((maker.rows, maker.rows, *shapes)))
    sql = shape()  # type: ignore[operator]
    tables = tuple(dict.fromkeys(maker.tables))
    is_single = len(tables) == 1 and kind_of(tables[0]) != "versions"
    has_as_of = any(kind_of(table) == "versioned" for table in tables) and maker.chance(3)
    return Statement(
        sql,
        tables,
        uncommitted=is_single and maker.chance(3),
        is_bounded=maker.chance(4),
        max_age_ms=int(maker.one_of("0", "0", "1000")),
        as_of=maker.number(base_ms, last_ms) if has_as_of else None,
    )
