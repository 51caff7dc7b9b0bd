"""Bound a statement's text before DuckDB sees it. Pure.

DuckDB plans an IN list of 100,000 items for 27 s, and its parser recurses.
"""

from __future__ import annotations

import re

from stateline_store import SqlInvalidError

MAX_LENGTH = 20_000
MAX_DEPTH = 50
MAX_ITEMS = 1_000
EMPTY = "The statement is empty: write one SELECT."

# A string with or without escapes, a quoted name, a comment, a dollar-quoted string; a bracket; a comma. What does not
# end goes to the end of the text, and nothing is tried again: otherwise a text takes time that grows with its square.
_PART = re.compile(
    r"(?P<quoted>[eE]'(?:[^'\\]++|\\.|'')*+(?:'|(?P<open_1>\Z))|'(?:[^']++|'')*+(?:'|(?P<open_2>\Z))"
    r"|\"(?:[^\"]++|\"\")*+(?:\"|(?P<open_3>\Z))|--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|(?P<open_4>\Z))"
    r"|\$(?P<tag>[A-Za-z_]\w*+|)\$.*?(?:\$(?P=tag)\$|(?P<open_5>\Z)))"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<comma>,)|\w++|.",
    re.DOTALL,
)
_COMMENTS = r"(?:\s++|--[^\n]*+(?:\n|\Z)|/\*(?:[^*]++|\*(?!/))*+\*/)*+"
_BLANK = re.compile(_COMMENTS)
_EXPLAIN = re.compile(rf"{_COMMENTS}explain\b{_COMMENTS}(?P<more>analyze\b|analyse\b|\()?", re.IGNORECASE | re.DOTALL)

# Functions whose result differs from call to call, or from transaction to transaction, and statements about queries.
_MOMENTARY = re.compile(
    r"\b(?:now|today|ago|age|(?:get_)?current_\w+|localtime|localtimestamp|transaction_timestamp|txid_current"
    r"|pg_postmaster_start_time|pg_conf_load_time|\w*random\w*|setseed|uuid(?:v\d)?|nextval|currval|setval|getvariable"
    r"|sample|tablesample|reservoir_quantile|query|query_table|stats|vector_type|write_log|\w*sleep\w*)\b",
    re.IGNORECASE,
)


def check_text(sql: str) -> None:
    """Raise `SqlInvalidError` for an empty, too long or too deeply nested statement, and for a list of too many
    items."""
    if not sql.strip():
        raise SqlInvalidError(EMPTY)
    if len(sql) > MAX_LENGTH:
        raise SqlInvalidError(
            f"The statement has {len(sql)} characters, and at most {MAX_LENGTH} are accepted. Give long values as "
            "parameters."
        )
    if "\0" in sql:
        raise SqlInvalidError("The statement has a NUL character. Give it as a parameter.")
    commas = [0]
    for part in _PART.finditer(sql):
        if part["open"]:
            commas.append(0)
        elif part["close"] and len(commas) > 1:
            commas.pop()
        elif part["comma"]:
            commas[-1] += 1
        if len(commas) > MAX_DEPTH:
            raise SqlInvalidError(f"The statement nests brackets deeper than {MAX_DEPTH}. Use WITH to flatten it.")
        if commas[-1] >= MAX_ITEMS:
            raise SqlInvalidError(
                f"The statement has a list of more than {MAX_ITEMS} items. Give them as one parameter: key IN $1."
            )


def is_momentary(sql: str) -> bool:
    """Whether equal statements over equal rows may have different results."""
    return _MOMENTARY.search(sql) is not None


def unquoted(sql: str) -> str:
    """Return the statement without its quoted names and texts, and without comments."""
    return "".join(" " if part["quoted"] else part[0] for part in _PART.finditer(sql))


def explained(sql: str) -> str | None:
    """Return the statement that EXPLAIN is asked for, None for a statement without EXPLAIN. Raises
    `SqlInvalidError` for EXPLAIN with options."""
    if (found := _EXPLAIN.match(sql)) is None:
        return None
    if found["more"]:
        raise SqlInvalidError("EXPLAIN has no options here: it never runs the statement. Write EXPLAIN SELECT ….")
    return sql[found.end() :]


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements that end with a semicolon, without it, and the unfinished rest. Statements of comments
    alone are left out. The rest is empty if it has comments alone."""
    statements, begin = [], 0
    for part in _PART.finditer(text):
        if part[0] == ";":
            statements.append(text[begin : part.start()])
            begin = part.end()
        elif any(part[f"open_{number}"] is not None for number in range(1, 6)):
            break  # a quote or comment that does not end
    rest = text[begin:]
    return [each.strip() for each in statements if not _BLANK.fullmatch(each)], "" if _BLANK.fullmatch(rest) else rest
