"""The engine answers one SELECT over rows that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pytest
from pydantic import BaseModel, Field

from service.sql import rows
from service.sql.rows import BY_NAME, TABLES, answer, key_value
from stateline import serdes
from stateline.serde.plain import Serde
from stateline.sql.engine import SqlEngine
from stateline.sql.struct_types import quoted
from stateline.sql.tables import tables_of
from stateline_store import DamagedDataError, InvalidArgumentError, SqlTooLargeError

TEXTS = {"texts": [{"key": key, "value": f'{{"n": {n}}}', "timestamp": n} for n, key in enumerate("abcde")]}

MILLIS, YEAR = '{"type": "long", "logicalType": "timestamp-millis"}', '"2026-01-01T00:00:00Z"'
MOMENT = datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


@pytest.fixture(scope="module")
def engine() -> SqlEngine:
    made = SqlEngine(1 << 28)
    made.use_tables(TABLES)
    return made


def test_select_values_with_and_from_are_answered(engine: SqlEngine) -> None:
    for sql in ("SELECT 1 AS a", "VALUES (1)", "WITH x AS (SELECT 1 AS a) FROM x", "(SELECT 1)", "TABLE texts LIMIT 1"):
        assert len(answer(engine, sql, TEXTS)) == 1


def test_json_numbers_are_exact_and_times_have_a_zone(engine: SqlEngine) -> None:
    given = {"texts": [{"key": "a", "value": '{"n": 123456789012345678901234567890}', "timestamp": 1}]}
    (row,) = answer(
        engine, "SELECT value->>'n' n, (value->>'n')::HUGEINT h, timestamp, typeof(value) t FROM texts", given
    )
    assert row == {
        "n": "123456789012345678901234567890",
        "h": Decimal("123456789012345678901234567890"),
        "timestamp": datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        "t": "JSON",
    }


def test_uuids_are_uuids_in_either_case(engine: SqlEngine) -> None:
    text = "0198C0DE-0000-7000-8000-0000000000AB"
    given = {"ids": [{"key": text, "value": "{}", "timestamp": 1}]}
    sql = "SELECT typeof(key) t FROM ids WHERE key = $1"
    assert answer(engine, sql, given, [str(UUID(text))]) == [{"t": "UUID"}]


def test_members_of_a_struct_are_typed_and_absent_ones_are_null(engine: SqlEngine) -> None:
    @dataclass
    class Reading:
        celsius: float
        count: int
        note: str | None = None

    table = tables_of([key_value("readings", serdes.string, serdes.model(Reading))])
    BY_NAME["readings"] = table[0]
    own = SqlEngine(1 << 28)
    own.use_tables(table)
    given = {"readings": [{"key": "a", "value": '{"celsius": 1.5, "count": 18446744073709551616}', "timestamp": None}]}
    (row,) = answer(own, "SELECT value.celsius, value.count + 1 AS c, value.note FROM readings", given)
    assert row == {"celsius": 1.5, "c": Decimal(18446744073709551617), "note": None}


@pytest.mark.parametrize("sql", ["SHOW TABLES", "DESCRIBE texts", "FROM information_schema.columns"])
def test_the_catalog_is_answered_and_reads_nothing(engine: SqlEngine, sql: str) -> None:
    assert answer(engine, sql, {})
    assert engine.prepare(sql, None).reads == ()
    engine.end()


def test_a_table_is_scanned_several_times_by_one_read(engine: SqlEngine) -> None:
    sql = "SELECT count(*) n FROM texts a, texts b WHERE a.key < b.key"
    assert answer(engine, sql, TEXTS) == [{"n": 10}]
    sql = (
        "WITH RECURSIVE r AS (SELECT 'a' k UNION SELECT t.key FROM r, texts t WHERE t.key > k) SELECT count(*) n FROM r"
    )
    assert answer(engine, sql, TEXTS) == [{"n": 5}]


def test_a_limit_ends_the_read(engine: SqlEngine) -> None:
    given = 0

    def endless(number: int) -> Any:
        nonlocal given
        while True:
            given += 1
            yield rows.batch(BY_NAME["texts"], TEXTS["texts"] * 1000, ["key", "value", "timestamp"])

    engine.prepare("FROM texts LIMIT 3", None)
    assert sum(batch.num_rows for batch in list(engine.run(endless))[1:]) == 3
    assert given < 10
    engine.end()


def test_explain_plans_the_statement(engine: SqlEngine) -> None:
    for where, reads in ((" WHERE key IN ('b', 'a')", "2 keys: a, b"), ("", "full scan")):
        prepared = engine.prepare(f"EXPLAIN SELECT key FROM texts{where}", None)
        engine.end()
        assert prepared.is_explain
        assert [(each.described(), each.columns) for each in prepared.reads] == [(reads, ("key",))]


def test_now_is_the_same_in_the_plan_and_the_result(engine: SqlEngine) -> None:
    (read,) = engine.prepare("SELECT now() AS at FROM windows WHERE start <= now()", None).reads
    batch = rows.batch(
        BY_NAME["windows"], [{"key": 1, "start": 0, "end": 1, "value": "{}", "timestamp": 0}], read.columns
    )
    (row,) = list(engine.run(lambda number: [batch]))[1].to_pylist()
    assert read.start_to is not None
    assert 0 <= read.start_to - row["at"].timestamp() * 1000 <= 1
    engine.end()


def test_an_error_of_a_reader_is_raised_as_it_is(engine: SqlEngine) -> None:
    def damaged(number: int) -> Any:
        raise DamagedDataError("row 7")
        yield

    engine.prepare("FROM texts", None)
    with pytest.raises(DamagedDataError, match="row 7"):
        list(engine.run(damaged))
    engine.end()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT kez\nFROM texts", 'Referenced column "kez" not found in FROM clause!\nCandidate bindings: "key"'),
        ("SELECT kez\nFROM texts", "\n\nLINE 1: SELECT kez\n               ^^^"),
        ("FROM text", 'Did you mean "texts"?'),
        ("SELEC", 'syntax error at or near "SELEC"'),
        ("SELECT 'x'::INT", "Could not convert string 'x' to INTEGER"),
        ("FROM texts WHERE key = $1", "The statement has $1, for which params has no value"),
    ],
)  # fmt: skip
def test_errors_have_duckdbs_message_place_and_candidates(engine: SqlEngine, sql: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        answer(engine, sql, TEXTS)
    assert message in str(raised.value)
    assert "EXPLAIN (" not in str(raised.value), "what the engine puts before the text is not shown"
    assert sql.splitlines()[0] in str(raised.value) or "LINE" not in str(raised.value)
    assert "Error:" not in str(raised.value)


def test_its_databases_share_the_memory_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, connect = [], duckdb.connect

    def noted(database: str, config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
        limits.append(int(config["memory_limit"].removesuffix("B")))
        return connect(database, config=config)

    monkeypatch.setattr(duckdb, "connect", noted)
    SqlEngine(1 << 28)
    assert sum(limits) == 1 << 28


def test_a_lookup_that_needs_too_much_memory_is_refused(engine: SqlEngine) -> None:
    with pytest.raises(SqlTooLargeError, match="more memory"):
        answer(engine, "SELECT repeat('x', 60000000) AS n FROM texts WHERE key = 'a' ORDER BY n", TEXTS)
    assert answer(engine, "SELECT key FROM texts WHERE key = 'b'", TEXTS) == [{"key": "b"}]


def test_a_statement_that_needs_too_much_memory_is_refused(engine: SqlEngine) -> None:
    with pytest.raises(SqlTooLargeError, match="more memory"):
        answer(engine, "SELECT list(range) FROM range(100000000)", {})
    assert answer(engine, "SELECT 1 AS a", {}) == [{"a": 1}]


def test_a_python_variable_is_no_table(engine: SqlEngine) -> None:
    secret = rows.batch(BY_NAME["texts"], TEXTS["texts"], ["key"])
    assert secret.num_rows
    for name in ("secret", "name", "rows", "engine"):
        with pytest.raises(InvalidArgumentError, match="does not exist"):
            answer(engine, f"FROM {name}", {})


def test_the_settings_of_a_statements_connection_are_locked(engine: SqlEngine) -> None:
    names = ("python_enable_replacements", "enable_external_access", "lock_configuration", "temp_directory", "TimeZone")
    columns = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    values = dict(zip(names, (False, False, True, "", "UTC"), strict=True))
    assert answer(engine, f"SELECT {columns}", {}) == [values]


class Odd(BaseModel):
    number: int = Field(alias="select")


def test_names_of_stores_and_members_need_quotes_at_most(engine: SqlEngine) -> None:
    names = ["select", "a b", 'a"b', "a'b", "a.b", "a\nb", "Grün", "memory.main.x", "1", ";", "--"]
    tables = tables_of([key_value(name, serdes.string, serdes.model(Odd)) for name in names])
    own = SqlEngine(1 << 28)
    own.use_tables(tables)
    assert [row["name"] for row in answer(own, "SHOW TABLES", {})] == sorted(names)
    for table in tables:
        BY_NAME[table.name] = table
        given = {table.name: [{"key": key, "value": '{"select": 3}', "timestamp": 1} for key in "ab"]}
        sql = f"SELECT value.\"select\" AS n FROM {quoted(table.name)} WHERE key = 'a'"
        assert answer(own, sql, given) == [{"n": 3}]


def test_a_table_that_duckdb_refuses_leaves_the_others_alone() -> None:
    own = SqlEngine(1 << 28)
    (good,) = tables_of([key_value("good", serdes.string)])
    (bad,) = tables_of([key_value("", serdes.string)])
    own.use_tables([bad, good])
    assert answer(own, "SHOW TABLES", {}) == [{"name": "good"}]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM texts WHERE key = 'b'", {"key": "b", "value": '{"n": 1}', "timestamp": MOMENT}),
        ("SELECT t.key, typeof(value) AS t FROM TEXTS t WHERE key = 'b'", {"key": "b", "t": "JSON"}),
        ("SELECT main.texts.key FROM main.texts WHERE key = 'b'", {"key": "b"}),
        ("SELECT key FROM memory.main.texts WHERE key = 'b'", {"key": "b"}),
        ('SELECT key FROM "main"."texts" WHERE key = \'b\'', {"key": "b"}),
        ("SELECT key FROM memory.texts WHERE key = 'b'", {"key": "b"}),
        ("SELECT key FROM query_table('memory.texts') WHERE key = 'b'", {"key": "b"}),
        ("SELECT count(*) AS n FROM texts a JOIN texts b USING (key) WHERE key = 'b'", {"n": 1}),
        ("SELECT a.key FROM texts a, numbers b WHERE a.key = 'b' AND b.key = 7", {"key": "b"}),
        ("WITH texts AS (SELECT key FROM main.texts WHERE key = 'b') SELECT key FROM texts", {"key": "b"}),
        (
            "SELECT count(*) AS n FROM information_schema.tables, texts WHERE table_catalog = 'memory' AND key = 'b'",
            {"n": len(TABLES)},
        ),
        ("SELECT * FROM query_table('texts') WHERE key = 'b'", {"key": "b", "value": '{"n": 1}', "timestamp": MOMENT}),
    ],
)
def test_a_lookup_finds_its_rows_by_any_name_of_the_table(engine: SqlEngine, sql: str, expected: Any) -> None:
    given: dict[str, Any] = {**TEXTS, "numbers": [{"key": 7, "value": "{}", "timestamp": None}]}
    assert answer(engine, sql, given) == [expected]


def test_lookups_leave_their_rows_to_no_other_statement(engine: SqlEngine) -> None:
    by_key = "SELECT key FROM texts WHERE key = 'a'"
    assert answer(engine, by_key, TEXTS) == [{"key": "a"}]
    assert answer(engine, by_key, {}) == []
    assert answer(engine, "SELECT (SELECT count(*) FROM texts) n FROM numbers WHERE key = 1", {}) == []


@pytest.mark.parametrize(
    ("sql", "is_lookup"),
    [
        ("SELECT value->>'n' AS n FROM texts WHERE key = 'a'", True),
        ("SELECT count(*) FROM texts WHERE key IN ('a', 'b')", True),
        ("SELECT value->>'n' AS n, count(*) FROM texts WHERE key IN ('a', 'b') GROUP BY n ORDER BY n LIMIT 1", True),
        ("SELECT key FROM texts", False),
        # What leaves a seed, or asks the time.
        ("SELECT setseed(0.5) FROM texts WHERE key = 'a'", False),
        ("SELECT random() FROM texts WHERE key = 'a'", False),
        ("SELECT now() FROM texts WHERE key = 'a'", False),
        ("SELECT \"age\"(timestamp) FROM texts WHERE key = 'a'", False),
        ("SELECT * FROM texts, query('SELECT sets' || 'eed(0.5)') WHERE key = 'a'", False),
        # What may have many rows, which would be held in memory.
        ("SELECT key FROM texts, range(3) WHERE key = 'a'", False),
        ("SELECT unnest([1, 2]) FROM texts WHERE key = 'a'", False),
        ("SELECT 1 FROM texts a, texts b WHERE a.key = 'a' AND b.key = 'b'", False),
        # What shows names of tables.
        ("SELECT (SELECT count(*) FROM duckdb_tables()) FROM texts WHERE key = 'a'", False),
    ],
)
def test_a_lookup_reads_keys_and_joins_or_makes_no_rows(engine: SqlEngine, sql: str, is_lookup: bool) -> None:
    assert engine.prepare(sql, None).is_lookup == is_lookup
    engine.end()


def test_any_name_of_a_store_can_be_looked_up() -> None:
    names = ("a", "rows_of_0", "stateline_rows_0", "r_key")
    own = SqlEngine(1 << 28)
    tables = tables_of([key_value(name, serdes.string) for name in names])
    own.use_tables(tables)
    for table in tables:
        BY_NAME[table.name] = table
        given = {table.name: [{"key": "a", "value": "{}", "timestamp": 0}]}
        assert answer(own, f"SELECT key FROM {table.name} WHERE key = 'a'", given) == [{"key": "a"}]


def test_a_lookup_of_the_time_finds_the_key_of_its_plan(engine: SqlEngine) -> None:
    (read,) = engine.prepare("SELECT key FROM texts WHERE key = now()::VARCHAR", None).reads
    assert read.keys is not None
    row = {"key": read.keys[0], "value": "{}", "timestamp": 0}
    found = list(engine.run(lambda number: [rows.batch(BY_NAME["texts"], [row], read.columns)]))[1:]
    engine.end()
    assert [each.to_pylist() for each in found] == [[{"key": read.keys[0]}]]


@pytest.mark.parametrize(
    ("serde", "stored", "shown"),
    [
        (serdes.avro('"string"'), '"alice"', "alice"),
        (serdes.avro(MILLIS), YEAR, YEAR[1:-1]),
        (serdes.avro('["null", "long"]'), "null", None),
        (serdes.json_schema({"type": "string", "format": "date"}), '"2026-01-01"', "2026-01-01"),
        (serdes.json_schema({"type": "integer"}), "5", "5"),
    ],
)  # fmt: skip
def test_a_single_value_with_a_schema_is_json(
    monkeypatch: pytest.MonkeyPatch, serde: Serde, stored: str, shown: str | None
) -> None:
    (table,) = tables_of([key_value("roots", serdes.string, serde)])
    monkeypatch.setitem(BY_NAME, "roots", table)
    engine = SqlEngine(1 << 28)
    engine.use_tables([table])
    given = {"roots": [{"key": "a", "value": stored, "timestamp": None}]}
    for where in ("", " WHERE key = 'a'"):
        assert answer(engine, f"SELECT value->>'$' AS text FROM roots{where}", given) == [{"text": shown}]
        assert answer(engine, f"SELECT value FROM roots{where}", given) == [{"value": stored}]


def test_lookups_see_the_tables_of_their_caller() -> None:
    own = SqlEngine(1 << 28)
    sql = "SELECT key FROM texts WHERE key = 'a'"
    for _ in range(2):
        own.use_tables(TABLES)
        assert answer(own, sql, TEXTS) == [{"key": "a"}]
        own.use_tables([BY_NAME["numbers"]])
        with pytest.raises(InvalidArgumentError, match="texts"):
            answer(own, sql, TEXTS)
