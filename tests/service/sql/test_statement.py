"""The text of a statement is bounded before DuckDB sees it."""

from __future__ import annotations

import re

import duckdb
import pytest

from stateline.sql.statement import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LENGTH,
    check_text,
    explained,
    is_momentary,
    split_statements,
)
from stateline_store import InvalidArgumentError


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (" \n", "is empty"),
        ("SELECT 1 " + "-" * MAX_LENGTH, "characters"),
        ("SELECT '\0'", "NUL"),
        ("SELECT " + "(" * (MAX_DEPTH + 1), "deeper"),
        ("SELECT 1 IN (" + "1," * MAX_ITEMS + "1)", "more than 1000 items"),
        ("SELECT [" + "1," * MAX_ITEMS + "1]", "more than 1000 items"),
    ],
)
def test_a_statement_beyond_a_bound_is_refused(sql: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        check_text(sql)


@pytest.mark.parametrize(
    "text",
    [
        "'" + "(," * 2000 + "'",
        '"' + "(," * 2000 + '"',
        "/*" + "(," * 2000 + "*/ 1",
        "$$" + "(," * 2000 + "$$",
        "$a$" + "(," * 2000 + "$a$",
        "e'\\'" + "(," * 2000 + "'",
        "1 --" + "(," * 2000,
    ],
)
def test_brackets_and_commas_in_texts_and_comments_do_not_count(text: str) -> None:
    check_text(f"SELECT {text}")


def test_explain_is_taken_off_behind_comments() -> None:
    assert explained("-- a\n/* b */ EXPLAIN SELECT 1") == "SELECT 1"
    assert explained("SELECT 1 AS explain") is None
    for options in ("ANALYZE SELECT 1", "(FORMAT JSON) SELECT 1"):
        with pytest.raises(InvalidArgumentError, match="no options"):
            explained(f"EXPLAIN {options}")


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("select 1; select 2 ;", ["select 1", "select 2"], ""),
        ("select 1; select\n", ["select 1"], " select\n"),
        ("select ';', \"a;b\", e'\\';', $$;$$, $t$;$$;$t$ -- ;\n/* ; */;", None, ""),
        ("select 'open; ", [], "select 'open; "),
        ("select \"open; ", [], "select \"open; "),
        ("select $t$ open; ", [], "select $t$ open; "),
        ("select /* open; ", [], "select /* open; "),
        ("select $1; select $2;", ["select $1", "select $2"], ""),
        (" ; -- nothing;\n;/* more */; -- the end", [], ""),
        ("", [], ""),
    ],
)  # fmt: skip
def test_statements_end_with_semicolons_that_are_not_in_texts_and_comments(
    text: str, statements: list[str] | None, rest: str
) -> None:
    assert split_statements(text) == ([text.strip().removesuffix(";")] if statements is None else statements, rest)


@pytest.mark.parametrize("unit", ["/* ", "/*", "$a", "'", "e'\\", '"', "$t$ ", "-- ", "/* a */\n", "$$ "])
def test_a_text_of_many_open_quotes_and_comments_is_looked_at_at_once(unit: str) -> None:
    text = unit * (MAX_LENGTH // len(unit))
    check_text(text)
    explained(text)
    split_statements(text)
    distinct = "".join(f"$a{number}$ " for number in range(MAX_LENGTH // 8))
    check_text(distinct[:MAX_LENGTH])


# Functions that differ by a setting of the transaction, all of which are the same in every query process.
_BY_SETTING = re.compile(
    r"[+-]|century|\w*date\w*|\w*day\w*|decade|era|hour|iso\w+|julian|mi\w+|month\w*|quarter|second|strftime|time_bucket"
    r"|timezone\w*|week\w*|year\w*|make_timestamptz|generate_\w+|range|in_search_path|json_\w+|\w*histogram\w*|error"
    r"|assert_true"
)


def test_every_function_that_differs_from_call_to_call_makes_a_statement_momentary() -> None:
    with duckdb.connect() as connection:
        asked_of = "SELECT function_name, stability, macro_definition FROM duckdb_functions()"
        functions = connection.execute(asked_of).fetchall()
    found = {name for name, stability, _ in functions if stability not in (None, "CONSISTENT")}
    found |= {"current_date", "current_timestamp", "localtime", "localtimestamp"}
    while more := {n for n, _, text in functions if n not in found and found & set(re.findall(r"\w+", text or ""))}:
        found |= more
    asked = {name for name in found if not _BY_SETTING.fullmatch(name)} | {"current_date", "today"}
    assert {"now", "ago", "random", "pg_postmaster_start_time"} <= asked
    assert [name for name in sorted(asked) if not is_momentary(f"SELECT {name}()")] == []


@pytest.mark.parametrize("text", ["USING SAMPLE 10%", "TABLESAMPLE 10%", ", reservoir_quantile(key, 0.5)", ", AGO(x)"])
def test_samples_are_momentary(text: str) -> None:
    assert is_momentary(f"SELECT * FROM texts {text}")


def test_names_that_only_contain_such_a_word_are_not_momentary() -> None:
    assert not is_momentary("SELECT locale, value->>'unknown' FROM transactions WHERE value->>'snow' = 'known'")
