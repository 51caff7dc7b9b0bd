"""A lookup of the next key needs no plan, and has the same rows as with one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from service.sql import rows
from service.sql.rows import BY_NAME, TABLES, admits, batch, in_plain_duckdb
from service.sql.test_query_processes import DEADLINE_S, MOST_BYTES, run
from stateline.sql.engine import SqlEngine
from stateline.sql.known_lookups import KnownLookups
from stateline.sql.pool import QueryProcesses
from stateline.sql.session import ServedProcess
from stateline.sql.tables import SqlTable
from stateline_store import SqlInvalidError

ODD = ("a", "b", "", "it's", "a\nb", "a\n\nb", "Grün", "%", "a\0b", "key")
ROWS: dict[str, list[dict[str, Any]]] = {
    "texts": [{"key": key, "value": f'{{"n": {n}}}', "timestamp": n} for n, key in enumerate(ODD)],
    "numbers": [{"key": n, "value": f'{{"n": {n}}}', "timestamp": None} for n in (-1, 0, 7)],
}
KNOWN = (
    "SELECT value FROM texts WHERE key = $1",
    "select * from texts where key = ?;",
    "SELECT key, value->>'n' AS n, timestamp FROM texts t WHERE t.key = $1",
    "SELECT count(*) AS n, max(timestamp) FROM texts AS t WHERE key = $1",
    "SELECT CASE WHEN key = 'a' THEN 'first' ELSE value->>'n' END AS v FROM texts WHERE key = $1",
    "SELECT t FROM texts t WHERE key = $1",
    'SELECT value FROM "texts" WHERE KEY=$1',
)
OTHERS = (
    "SELECT value FROM texts WHERE key = $1 OR timestamp = 3",
    "SELECT value FROM texts WHERE NOT key = $1",
    "SELECT value, $1 AS k FROM texts WHERE key = $1",
    "SELECT value, (SELECT count(*) FROM texts) AS n FROM texts WHERE key = $1",
    "SELECT value, (TABLE texts LIMIT 1) AS n FROM texts WHERE key = $1",
    "SELECT now(), value FROM texts WHERE key = $1",
    "SELECT value FROM texts WHERE key = lower($1)",
    "SELECT value FROM texts WHERE key >= $1 AND key <= $1",
    "SELECT key FROM texts WHERE key = $1 UNION ALL SELECT key FROM texts",
    "SELECT unnest([1, 2]) FROM texts WHERE key = $1",
    "EXPLAIN SELECT key FROM texts WHERE key = $1",
    "SELECT 1 -- FROM texts WHERE key = $1",
)


@pytest.fixture(scope="module")
def engine() -> SqlEngine:
    made = SqlEngine(1 << 28)
    made.use_tables(TABLES)
    return made


def noted(engine: SqlEngine, sql: str, params: Any) -> KnownLookups:
    """What is known after a statement."""
    known = KnownLookups()
    try:
        prepared = engine.prepare(sql, params)
    except SqlInvalidError:
        return known
    finally:
        engine.end()
    known.note(sql, params, TABLES, prepared)
    return known


@pytest.mark.parametrize("sql", KNOWN)
def test_the_read_of_the_next_key_is_that_of_its_plan(engine: SqlEngine, sql: str) -> None:
    known = noted(engine, sql, ["a"])
    for key in ODD:
        prepared = known.prepared(sql, [key], TABLES)
        assert prepared is not None
        (read,) = prepared.reads
        (planned,) = engine.prepare(sql, [key]).reads
        engine.end()
        assert (read.keys, set(planned.columns) <= set(read.columns)) == ((key,), True)
        assert planned.keys == (key,) or "\n" in key


def test_whole_numbers_are_known_too(engine: SqlEngine) -> None:
    sql = "SELECT value FROM numbers WHERE key = $1"
    known = noted(engine, sql, [7])
    assert known.prepared(sql, [0], TABLES) is not None
    for params in ([True], ["7"], [7.0], [None], [], [7, 7], {"k": 7}, None):
        assert known.prepared(sql, params, TABLES) is None, params
        assert noted(engine, sql, params).prepared(sql, [0], TABLES) is None, params


@pytest.mark.parametrize("sql", OTHERS)
def test_other_statements_are_planned_each_time(engine: SqlEngine, sql: str) -> None:
    assert noted(engine, sql, ["a"]).prepared(sql, ["b"], TABLES) is None


@pytest.mark.parametrize("table", ["ids", "moments", "blobs", "doubles"])
def test_keys_that_a_parameter_does_not_equal_are_planned_each_time(engine: SqlEngine, table: str) -> None:
    sql = f"SELECT value FROM {table} WHERE key = $1"
    for params in (["0198c0de-0000-7000-8000-0000000000ab"], ["2026-01-01T00:00:00Z"], ["a"], [1]):
        assert noted(engine, sql, params).prepared(sql, params, TABLES) is None


def test_a_plan_is_known_for_its_own_tables_alone(engine: SqlEngine) -> None:
    known = noted(engine, KNOWN[0], ["a"])
    others: list[SqlTable] = [*TABLES]
    assert known.prepared(KNOWN[0], ["b"], others) is None


@pytest.mark.parametrize("gap", [8, 9, 10, 11])
def test_a_long_text_takes_no_longer_than_its_length(engine: SqlEngine, gap: int) -> None:
    """A pattern that tries spaces again takes seconds."""
    words = ["SELECT", "value", "FROM", "texts", "AS", "t", "WHERE", "t.key", "=", "$1", "LIMIT", "1"]
    sql = " ".join(words[:gap]) + " " * 15_000 + " ".join(words[gap:])
    prepared = engine.prepare(sql, ["a"])
    engine.end()
    began_s = time.thread_time()
    KnownLookups().note(sql, ["a"], TABLES, prepared)
    assert time.thread_time() - began_s < 0.5


def test_few_texts_are_kept(engine: SqlEngine) -> None:
    known = noted(engine, KNOWN[0], ["a"])
    prepared = engine.prepare(KNOWN[0], ["a"])
    engine.end()
    for number in range(1_000):
        known.note(f"SELECT value, {number} FROM texts WHERE key = $1", ["a"], TABLES, prepared)
    assert known.prepared(KNOWN[0], ["b"], TABLES) is None
    assert len(known) < 1_000


def test_a_known_lookup_has_the_rows_of_its_key_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []
    receive = ServedProcess.receive

    async def noting(self: ServedProcess, result_bytes: int = 0) -> tuple[int, int, bytes]:
        found = await receive(self, result_bytes)
        received.append(found[0])
        return found

    async def answer(pool: QueryProcesses, sql: str, key: Any) -> list[dict[str, Any]]:
        async with pool.session(DEADLINE_S) as session:
            (read,) = (await session.prepare(sql, [key], TABLES)).reads
            table = BY_NAME[read.table]
            found = batch(table, [row for row in ROWS[read.table] if admits(read, table, row)], read.columns)
            source = found.schema.serialize().to_pybytes() + found.serialize().to_pybytes()
            parts = [part async for part in session.run({0: source}, MOST_BYTES)]
        return rows.table_of(parts)

    async def scene(pool: QueryProcesses) -> None:
        for sql in KNOWN:
            await answer(pool, sql, "b")
            for key in (*ODD, "none"):
                received.clear()
                found = await answer(pool, sql, key)
                assert set(received) == {19, 20}, "RESULT and DONE"
                literal = "'" + key.replace("'", "''") + "'"
                if "\0" not in key:
                    plain = sql.replace("$1", literal).replace("?", literal)
                    assert found == in_plain_duckdb(plain, ROWS), (sql, key)
        fails = "SELECT (value->>'n')::INT + key::INT AS n FROM texts WHERE key = $1"
        for key in ("b", "a"):
            with pytest.raises(SqlInvalidError, match=f"Could not convert string '{key}'"):
                await answer(pool, fails, key)
        assert await answer(pool, KNOWN[0], "b") == [{"value": '{"n": 1}'}]

    monkeypatch.setattr(ServedProcess, "receive", noting)
    run(scene)
