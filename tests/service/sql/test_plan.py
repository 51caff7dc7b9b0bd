"""A query reads the part of each table that its plan needs, and its result is the same as over whole tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sql.rows import EPOCH, TABLES, Row, answer, in_plain_duckdb
from stateline.sql.engine import SqlEngine
from stateline.sql.plan import TableRead, table_reads
from stateline_store import InvalidArgumentError
from support.run.length import long_or_short


@pytest.fixture(scope="module")
def engine() -> SqlEngine:
    made = SqlEngine(1 << 28)
    made.use_tables(TABLES)
    return made


def read_of(engine: SqlEngine, sql: str, params: Any = None) -> TableRead:
    try:
        (read,) = engine.prepare(sql, params).reads
        return read
    finally:
        engine.end()


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("texts WHERE key = 'a'", ("a",)),
        ("texts WHERE key = 'a'') AND (key = ''z'", ("a') AND (key = 'z",)),
        ("texts WHERE key IN ('b', 'a', 'b')", ("a", "b")),
        ("texts WHERE key = 'a' OR key = 'c'", ("a", "c")),
        ("texts WHERE key = lower('A') AND value->>'x' = '1'", ("a",)),
        ("numbers WHERE key = -5", (-5,)),
        ("numbers WHERE key + 1 = 5", (4,)),
        ("numbers WHERE key = 5 OR key = 700", (5, 700)),
        (r"blobs WHERE key = '\x00a\x27'::BLOB", (b"\x00a'",)),
        ("ids WHERE key = '0198C0DE-0000-7000-8000-0000000000AB'", (UUID("0198c0de-0000-7000-8000-0000000000ab"),)),
        ("moments WHERE key = '2026-01-01 02:00:00+02'", (datetime(2026, 1, 1, tzinfo=UTC),)),
        ("doubles WHERE key = 1.5", (1.5,)),
        ('"odd ""name"".x" WHERE key = \'a\'', ("a",)),
        ("memory.main.texts WHERE key = 'a'", ("a",)),
        ("texts a JOIN texts b USING (key) WHERE a.key = 'a'", ("a",)),
        ("texts WHERE key = 'a' UNION ALL FROM texts WHERE key = 'b'", ("a", "b")),
        ("texts WHERE key IN ('a', 'b') AND key IN ('b', 'c')", ("b",)),
    ],
)
def test_equality_of_keys_reads_these_keys(engine: SqlEngine, where: str, keys: tuple[Any, ...]) -> None:
    assert read_of(engine, f"FROM {where}").keys == keys


def test_parameters_are_read_as_keys(engine: SqlEngine) -> None:
    assert read_of(engine, "FROM texts WHERE key = $k", {"k": "a' \tb"}).keys == ("a' \tb",)
    assert read_of(engine, "FROM numbers WHERE key = ?", [7]).keys == (7,)


def test_a_text_with_line_breaks_reads_all_that_begin_with_its_first_line(engine: SqlEngine) -> None:
    """DuckDB's plan leaves out empty lines."""
    for text in ("it''s\n(key = ''z'')", "it''s\n\n", "it''s\n"):
        read = read_of(engine, f"FROM texts WHERE key = '{text}'")
        assert (read.keys, read.lower, read.upper) == (None, "it's\n", "it's\v")


def test_ranges_and_prefixes_read_a_range(engine: SqlEngine) -> None:
    read = read_of(engine, "FROM texts WHERE key LIKE 'ab%'")
    assert (read.keys, read.lower, read.upper) == (None, "ab", "ac")
    read = read_of(engine, "FROM numbers WHERE key > 3 AND key <= 9")
    assert (read.lower, read.upper) == (3, 9)
    read = read_of(engine, "FROM texts WHERE key > 'b' UNION ALL FROM texts WHERE key = 'a'")
    assert (read.lower, read.upper) == ("a", None)


def test_times_of_windows_are_milliseconds_and_only_widen(engine: SqlEngine) -> None:
    sql = "FROM windows WHERE start > '1970-01-01 00:00:00.0015Z' AND \"end\" < '1970-01-01 00:00:00.0015Z'"
    read = read_of(engine, sql)
    assert (read.start_from, read.start_to, read.end_from, read.end_to) == (1, None, None, 2)
    assert read.described() == "all keys, start from 1970-01-01T00:00:00Z, end to 1970-01-01T00:00:01Z"
    far = read_of(engine, "FROM windows WHERE start <= '9999-12-31 23:59:59.5Z'")
    assert far.described() == "all keys, start to infinity"


@pytest.mark.parametrize(
    "where",
    [
        "key <> 'a'",
        "key = 'a' OR value->>'x' = '1'",
        "NOT (key = 'a' AND value->>'x' = '1')",
        "key ILIKE '%a'",
        "key || 'a' = 'ba'",
        "key = random()::VARCHAR",
        "value->>'key' = 'a'",
    ],
)
def test_other_filters_read_the_whole_table(engine: SqlEngine, where: str) -> None:
    assert read_of(engine, f"FROM texts WHERE {where}").is_bounded is False


def test_zero_as_a_double_has_two_encodings_and_is_no_key(engine: SqlEngine) -> None:
    assert read_of(engine, "FROM doubles WHERE key = 0").is_bounded is False


def test_only_the_columns_of_the_query_and_its_filters_are_read(engine: SqlEngine) -> None:
    assert read_of(engine, "SELECT count(*) FROM texts").columns == ("key",)
    assert read_of(engine, "SELECT key FROM texts WHERE value->>'x' = '1'").columns == ("key", "value")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT key FROM models WHERE value.city IN ('Rome', 'Oslo')",
        "SELECT key FROM models WHERE value.city = 'Rome' OR value.n = 1",
        "SELECT count(*) FROM models WHERE value.n IN (1, 2)",
    ],
)
def test_a_scan_whose_plan_does_not_tell_its_columns_reads_all_of_them(engine: SqlEngine, sql: str) -> None:
    assert read_of(engine, sql).columns == ("key", "value", "timestamp")


def test_a_plan_that_is_not_understood_reads_every_table_in_full() -> None:
    scan = '[{"name": "%s", "children": [], "extra_info": {"Table": "%s", "Filters": "(key = \'a\')"}}]'
    for plan in (scan % ("INDEX_SCAN", "memory.main.texts"), scan % ("SEQ_SCAN", "memory.other.texts")):
        reads = table_reads(plan, TABLES)
        assert [read.table for read in reads] == [table.name for table in TABLES]
        assert not any(read.is_bounded for read in reads)


def test_a_plan_that_writes_is_refused(engine: SqlEngine) -> None:
    sql = "WITH x AS (INSERT INTO texts (key) VALUES ('a') RETURNING *) FROM x"
    with pytest.raises(InvalidArgumentError, match="writes"):
        read_of(engine, sql)


TEXTS = st.sampled_from(
    ["", "a", "ab", "a'b", "b", "é", "\n", "B", "a\n\nb", "a\nb", "a \n", "\r\n\n", "a\r", " a", "a\t"]
)
CITIES = st.sampled_from(["Rome", "Oslo", "", "R\n\no"])
NUMBERS = st.integers(-3, 3)
TIMES = st.integers(-2, 5)
IDS = st.sampled_from([f"0198c0de-0000-7000-8000-0000000000{n:02x}" for n in range(0xA, 0xE)])
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "texts": TEXTS,
    "blobs": TEXTS.map(str.encode),
    "numbers": NUMBERS,
    "moments": TIMES,
    "ids": IDS,
    "doubles": st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf")]),
    "windows": NUMBERS,
    "models": TEXTS,
}


def literal(table: str, value: Any) -> str:
    match table:
        case "blobs":
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        case "moments":
            return f"make_timestamptz({value} * 1000)"
        case "doubles":
            return f"'{value}'::DOUBLE"
        case "numbers" | "windows":
            return str(value)
    text = str(value).replace("'", "''")
    return f"'{text}'"


@st.composite
def rows_of(draw: st.DrawFn, table: str) -> list[Row]:
    keys = draw(st.lists(KEYS[table], max_size=8, unique=table not in ("windows", "doubles")))
    rows: list[Row] = []
    for key in keys:
        value = json.dumps({"n": draw(NUMBERS), "city": draw(CITIES)})
        row = {"key": key, "value": value, "timestamp": draw(TIMES)}
        if table == "windows":
            row |= {"start": (start := draw(TIMES)), "end": start + draw(st.integers(0, 3))}
        rows.append(row)
    if table == "moments":
        return [{**row, "key": EPOCH + timedelta(milliseconds=row["key"])} for row in rows]
    return rows


@st.composite
def conditions(draw: st.DrawFn, table: str, alias: str, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        left, right = draw(conditions(table, alias, depth - 1)), draw(conditions(table, alias, depth - 1))
        both: str = draw(st.sampled_from([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"]))
        return both
    one, other = (literal(table, draw(KEYS[table])) for _ in range(2))
    key = f"{alias}.key"
    choices = [f"{key} {draw(st.sampled_from(['=', '<', '<=', '>', '>=', '<>', 'IS DISTINCT FROM']))} {one}"]
    choices += [f"{key} IN ({one}, {other})", f"{key} BETWEEN {one} AND {other}", f"{key} IS NOT NULL"]
    n, city = (member(table, alias, name) for name in ("n", "city"))
    cities = [literal(table, draw(CITIES)) for _ in range(2)] if table in ("texts", "models") else ["'Rome'", "'Oslo'"]
    choices += [f"{n}::INT > {draw(NUMBERS)}", f"{n} IN ('1', '2')", f"{city} = {cities[0]}"]
    choices += [f"{city} IN ({', '.join(cities)})", f"{city} = {cities[0]} OR {n} = '1'", f"{city} LIKE 'R%'"]
    if table in ("texts", "models"):
        choices += [f"{key} LIKE 'a%'", f"starts_with({key}, {one})", f"lower({key}) = {one}"]
    if table == "windows":
        at = f"make_timestamptz({draw(TIMES)} * 1000 + 500)"
        choices += [f"{alias}.{column} {sign} {at}" for column in ("start", '"end"') for sign in (">", "<=", "=")]
        choices += [f"{alias}.start = make_timestamptz({draw(TIMES)} * 1000)"] * 2
    chosen: str = draw(st.sampled_from(choices))
    return chosen


def member(table: str, alias: str, name: str) -> str:
    """Return the member of a row's value, as text."""
    of_models = f"{alias}.value.{name}" if name == "city" else f"{alias}.value.{name}::VARCHAR"
    return of_models if table == "models" else f"({alias}.value->>'{name}')"


SHAPES = (
    "SELECT * FROM {a} x WHERE {wa}",
    "SELECT count(*) n, min(x.key) k FROM {a} x WHERE {wa}",
    "SELECT x.key, y.key AS other FROM {a} x, {a} y WHERE {wa} AND {wb}",
    "SELECT x.key, y.value FROM {a} x JOIN {a} y ON x.key = y.key WHERE {wa}",
    "SELECT x.key, y.key AS other FROM {a} x LEFT JOIN {a} y ON x.key = y.key AND {wb} WHERE {wa}",
    "SELECT x.key, y.key AS other FROM {a} x LEFT JOIN {a} y ON x.key = y.key AND {wa}",
    "SELECT x.key, y.key AS other FROM {a} x FULL JOIN {a} y ON x.key = y.key WHERE {wa} OR {wb}",
    "SELECT key FROM {a} x WHERE {wa} UNION ALL SELECT key FROM {a} y WHERE {wb}",
    "SELECT key FROM {a} x WHERE {wa} EXCEPT SELECT key FROM {a} y WHERE {wb}",
    "SELECT key FROM {a} x WHERE EXISTS (FROM {a} y WHERE y.key = x.key AND {wb})",
    "SELECT key FROM {a} x WHERE x.key NOT IN (SELECT y.key FROM {a} y WHERE {wb}) AND {wa}",
    "WITH c AS (SELECT * FROM {a} x WHERE {wa}) SELECT p.key FROM c p JOIN c q ON p.timestamp = q.timestamp",
    "SELECT x.key, (SELECT count(*) FROM {a} y WHERE y.timestamp = x.timestamp AND {wb}) n FROM {a} x WHERE {wa}",
    "SELECT * FROM (SELECT key, row_number() OVER (ORDER BY key, timestamp) r FROM {a} x) x WHERE x.key >= {one}",
    "SELECT {g} g, count(*) n FROM {a} x WHERE {wa} GROUP BY ALL HAVING count(*) > 1",
    "SELECT count(*) n FROM {a} x WHERE {wa}",
    "SELECT {g} g, x.timestamp FROM {a} x WHERE {wa} ORDER BY ALL LIMIT 3",
    "SELECT x.key, y.key AS other FROM {a} x LEFT JOIN {b} y ON x.timestamp = y.timestamp AND {wy} WHERE {wa}",
    "SELECT x.key, y.key AS other FROM {a} x JOIN {b} y ON x.key::VARCHAR = y.key::VARCHAR WHERE {wy}",
    "SELECT x.key FROM {a} x WHERE {wa} AND x.timestamp NOT IN (SELECT y.timestamp FROM {b} y WHERE {wy})",
    "SELECT x.key FROM {a} x SEMI JOIN {b} y ON x.timestamp = y.timestamp AND {wy}",
    "SELECT x.key, y.key AS b FROM windows x FULL JOIN numbers y ON x.key = y.key WHERE y.key IN (1, 2) OR x.key = 3",
    "SELECT y.value FROM windows x JOIN numbers y ON x.key = y.key AND y.key IN (1, 2) AND x.start < x.timestamp",
    "WITH RECURSIVE r AS (SELECT key, 0 d FROM {a} x WHERE {wa} UNION SELECT y.key, d + 1 FROM r, {a} y "
    "WHERE {wb} AND d < 2) FROM r",
)  # fmt: skip


@settings(max_examples=long_or_short(500, 30), deadline=None)
@given(data=st.data())
def test_the_result_over_the_parts_equals_that_over_whole_tables(engine: SqlEngine, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(sorted(KEYS)))
    other = data.draw(st.sampled_from(sorted(KEYS)))
    rows = {name: data.draw(rows_of(name)) for name in sorted({table, other, "windows", "numbers"})}
    sql = data.draw(st.sampled_from(SHAPES)).format(
        a=table,
        b=other,
        g=member(table, "x", "city"),
        wa=data.draw(conditions(table, "x")),
        wb=data.draw(conditions(table, "y")),
        wy=data.draw(conditions(other, "y")),
        one=literal(table, data.draw(KEYS[table])),
    )
    try:
        expected = sorted(map(repr, in_plain_duckdb(sql, rows)))
    except duckdb.Error:
        with pytest.raises(InvalidArgumentError):
            answer(engine, sql, rows)
        return
    assert sorted(map(repr, answer(engine, sql, rows))) == expected, sql
