"""What is wrong with a statement is told with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from service.sql.rows import TABLES, answer, key_value
from stateline import serdes
from stateline.sql.engine import SqlEngine
from stateline.sql.statement import unquoted
from stateline.sql.tables import tables_of
from stateline_store import InvalidArgumentError

ROW = {"texts": [{"key": "a", "value": '{"n": "many"}', "timestamp": 1}]}


@pytest.fixture(scope="module")
def engine() -> SqlEngine:
    made = SqlEngine(1 << 28)
    odd = [key_value(name, serdes.string, serdes.json) for name in ("daily-totals", "order", "a b")]
    made.use_tables([*TABLES, *tables_of([*odd, key_value("docs", serdes.json, serdes.json)])])
    return made


def error_of(engine: SqlEngine, sql: str, params: Any = None) -> str:
    with pytest.raises(InvalidArgumentError) as raised:
        answer(engine, sql, ROW, params)
    return str(raised.value)


@pytest.mark.parametrize(
    ("sql", "params", "says"),
    [
        ("SELECT $1, $2", ["a"], "The statement has $2, for which params has no value."),
        ("SELECT ?", None, "The statement has $1, for which params has no value."),
        ("SELECT $city", {"town": 1}, "params has a value for $town, which the statement does not have."),
        ("SELECT $a", {"a": 1, "b": 2}, "params has a value for $b, which the statement does not have."),
        ("SELECT $1", ["a", "b", "c"], "params has a value for $2, $3, which the statement does not have."),
        ("SELECT 1", ["a"], "The statement has no parameters, and params is not empty."),
        ("SELECT $1, $a", ["a"], "The statement has both $1 and $name."),
    ],
)
def test_a_parameter_that_is_missing_or_too_much_is_named(engine: SqlEngine, sql: str, params: Any, says: str) -> None:
    assert error_of(engine, sql, params).startswith(says)


@pytest.mark.parametrize(
    ("sql", "params", "says"),
    [
        (
            "SELECT key FROM texts WHERE key = $k",
            ["a"],
            'The statement has $k, and params is an array, for $1, $2 …. Give an object, {"k": …}, or write $1 in the '
            "statement.",
        ),
        (
            "SELECT $low, $high, $low",
            [1, 2],
            'The statement has $low, $high, and params is an array, for $1, $2 …. Give an object, {"low": …, "high": …}'
            ", or write $1, $2 in the statement.",
        ),
        (
            "SELECT $1, '$k', $2 -- $k",
            {"k": 1},
            "The statement has $1, $2, and params is an object, for $k. Give an array, […, …], or write $k in the "
            "statement.",
        ),
        (
            "SELECT ?",
            {"k": 1},
            "The statement has ?, and params is an object, for $k. Give an array, […], or write $k in the statement.",
        ),
    ],
)
def test_an_array_for_names_and_an_object_for_numbers_are_told_with_both_sides(
    engine: SqlEngine, sql: str, params: Any, says: str
) -> None:
    assert error_of(engine, sql, params) == says


def test_few_of_many_parameters_are_told(engine: SqlEngine) -> None:
    assert len(error_of(engine, "SELECT $1", {f"name_{number}": number for number in range(1000)})) < 200


@pytest.mark.parametrize(
    ("sql", "instead"),
    [
        ("SELECT key, end FROM windows", '"end"'),
        ("SELECT key FROM windows WHERE end > '2026-01-01'", '"end"'),
        ("SELECT max(END) FROM windows", '"end"'),
        ("SELECT CASE WHEN true THEN 1 END FROM windows ORDER BY end", '"end"'),
        ("SELECT * FROM order", '"order"'),
        ("SELECT * FROM order ORDER BY key", '"order"'),
        ('SELECT order.key FROM "order"', '"order"'),
        ("DESCRIBE order", '"order"'),
        ("SELECT * FROM daily-totals WHERE key = 'a'", '"daily-totals"'),
        ("SELECT t.key FROM texts t JOIN daily-totals d USING (key)", '"daily-totals"'),
        ('SELECT daily-totals.key FROM "daily-totals"', '"daily-totals"'),
        ("SELECT * FROM a b c", '"a b"'),
    ],
)
def test_a_name_that_needs_quotes_is_told_with_them(engine: SqlEngine, sql: str, instead: str) -> None:
    first = error_of(engine, sql).partition("\n")[0]
    assert f"uote {'it as a name' if '-' not in instead and ' ' not in instead else 'the name'}: {instead}." in first


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT (value->>'n')::INT FROM texts", "'many' to INTEGER. TRY_CAST(… AS INTEGER) gives NULL"),
        ("SELECT rowid FROM texts", "Rows have no number here: key names a row."),
        ("SELECT t.ROWID FROM texts t WHERE key = 'a'", "Rows have no number here: key names a row."),
        ("SELECT CASE WHEN true THEN 1 ELSE END FROM windows", "A value is missing before END."),
        ("SELECT 300::TINYINT", "TRY_CAST gives NULL"),
        ("SELECT 'soon'::TIMESTAMPTZ", "Write a time as '2026-01-31T12:00:00Z'."),
        ("SELECT key FROM texts WHERE value > 5", "(value->>'member')::DOUBLE"),
        ("SELECT sum(value->>'n') FROM texts", "->> gives text. Cast it first"),
        ("SELECT key FROM texts WHERE timestamp > 5", "epoch_ms(…)"),
        (
            "SELECT key FROM texts WHERE value->'n' = 'a'",
            "= binds before -> and ->>: write (value->>'member') = 'text'.",
        ),
        ("SELECT key FROM texts WHERE (value->>'n') > 5", "Cast the text, (value->>'member')::DOUBLE"),
        ("SELECT key FROM texts WHERE key = 5", "key is text: compare it with text in single quotes"),
        ('SELECT key FROM texts WHERE key = "a"', "Write text in single quotes: 'a'."),
        ("SELECT key FROM texts WHERE value.n = 'x'", "value is JSON: write value->>'n' = 'x'."),
        ("SELECT 1 FROM texts t WHERE t.key = 'x' OR t.value.n<>'x'", "t.value is JSON: write t.value->>'n' <> 'x'."),
        ("SELECT key FROM texts WHERE value.n IN ('x')", "write value->>'member' = 'text'."),
        ("SELECT key FROM texts WHERE value = 'x'", "write value->>'member' = 'text'."),
        ("SELECT zone FROM texts", "Did you mean value->>'zone'?"),
        ("SELECT sum(Amount) FROM texts WHERE key = 'a' GROUP BY key", "Did you mean value->>'Amount'?"),
        ("SELECT key FROM texts t WHERE t.zone = 'x'", "Did you mean t.value->>'zone'?"),
        ('SELECT zone FROM "daily-totals"', "Did you mean value->>'zone'?"),
        ("SELECT key FROM texts WHERE key = Berlin", "Did you mean value->>'Berlin', or the text 'Berlin'?"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_to_write(engine: SqlEngine, sql: str, says: str) -> None:
    assert says in error_of(engine, sql).partition("\n")[0]


@pytest.mark.parametrize(
    "sql", ["SELECT 1 FROM nope-x", "SELECT * FROM select", "SELECT key FROM texts AND", 'SELECT "vlaue" FROM texts']
)
def test_no_name_is_made_up_where_none_is_meant(engine: SqlEngine, sql: str) -> None:
    assert "uote" not in error_of(engine, sql)


@pytest.mark.parametrize(
    ("sql", "suggested"),
    [
        ("FROM text", 'Did you mean "texts"?'),
        ("SELECT kye FROM texts t JOIN windows n USING (timestamp)", '"t.key"'),
        ("SELECT time FROM texts", 'Candidate bindings: "timestamp"'),
        ("SELECT cout(key) FROM texts", 'Did you mean "count"?'),
        ("SELECT texts.key FROM texts t", 'Candidate tables: "t"'),
    ],
)
def test_a_name_like_the_unknown_one_is_suggested(engine: SqlEngine, sql: str, suggested: str) -> None:
    assert suggested in error_of(engine, sql)


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("FROM nope", "Table with name nope does not exist. SHOW TABLES lists the tables."),
        ("FROM customers", "Table with name customers does not exist. SHOW TABLES lists the tables."),
        ("FROM main.zebra", "Table with name zebra does not exist. SHOW TABLES lists the tables."),
        ("SELECT qqq FROM numbers, texts", 'Referenced column "qqq" not found in FROM clause!'),
        ("SELECT frobnicate(key) FROM texts", "Scalar Function with name frobnicate does not exist!"),
        ("SELECT * EXCLUDE (qqq) FROM texts", 'Column "qqq" in EXCLUDE list not found in FROM clause'),
    ],
)
def test_names_that_are_unlike_the_unknown_one_are_not_suggested(engine: SqlEngine, sql: str, first: str) -> None:
    told = error_of(engine, sql)
    assert told.partition("\n")[0] == first
    assert "Did you mean" not in told
    assert "Candidate" not in told


def test_a_parameter_is_compared_with_a_member_as_text(engine: SqlEngine) -> None:
    told = error_of(engine, "SELECT key FROM texts WHERE value.n = $1", ["x"])
    assert "value is JSON: write value->>'n' = $1." in told


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zone FROM texts JOIN numbers USING (key)",
        "SELECT zone FROM docs",
        "SELECT kye FROM texts",
        "WITH texts AS (SELECT key FROM main.texts) SELECT value FROM texts",
        "SELECT zone FROM numbers_of_nobody",
    ],
)
def test_no_member_is_told_where_it_may_be_another_name(engine: SqlEngine, sql: str) -> None:
    assert "->>" not in error_of(engine, sql)


def test_few_candidates_of_a_function_are_told(engine: SqlEngine) -> None:
    told = error_of(engine, "SELECT timestamp + 5 FROM texts")
    assert told.count(" -> ") == 5
    assert told.endswith("…")


def test_texts_quoted_names_and_comments_are_left_out_of_a_statement() -> None:
    assert unquoted("SELECT 'a' x, \"b\" -- c\nFROM d /* e */") == "SELECT   x,    \nFROM d  "


@pytest.mark.parametrize(
    ("sql", "params", "says"),
    [
        ("SELECT 1 // 0", None, "Division by zero in expression (1 // 0). x // nullif(y, 0) gives NULL then"),
        ("SELECT key FROM windows WHERE start >= $1", [10**12], "milliseconds as make_timestamptz($1 * 1000)."),
        ("selct key FROM texts", None, "A statement begins with SELECT"),
        ("SELECT key FROM texts WHERE key = $1", [["a"]], "A value here is a list. Write key IN $1"),
        ("SELECT key FROM numbers WHERE key > $1", [[1]], "A value here is a list. Write key IN $1"),
        ("SELECT value.nosuch FROM models", None, 'Could not find key "nosuch" in struct. value has n, city.'),
        ("SELECT key FROM texts WHERE key = :code", None, "write $name instead of :name."),
        ("SELECT 9223372036854775807 + 1", None, "Cast to HUGEINT or DOUBLE first"),
    ],
)
def test_what_works_instead_is_told(engine: SqlEngine, sql: str, params: Any, says: str) -> None:
    assert says in error_of(engine, sql, params)
    assert "error_on_division_by_zero" not in error_of(engine, sql, params)
