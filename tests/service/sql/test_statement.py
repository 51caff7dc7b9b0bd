"""The text of a statement is bounded before DuckDB sees it."""

from __future__ import annotations

import pytest

from stateline.sql.statement import MAX_DEPTH, MAX_ITEMS, MAX_LENGTH, check_text, explained, split_statements
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
