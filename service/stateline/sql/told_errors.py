"""DuckDB's messages as users are told them: what is wrong, and what to write instead. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from stateline.sql.statement import unquoted
from stateline.sql.struct_types import quoted
from stateline.sql.tables import SqlTable

# Advice that follows DuckDB's message: on settings, extensions and its own code.
_ADVICE = re.compile(r"\n\s*\n(?!LINE \d).*?(?=\n\s*\nLINE \d|\Z)", re.DOTALL)
_KIND = re.compile(r"^(?:INTERNAL|[A-Z][A-Za-z-]*(?: [A-Za-z-]+){0,2}) Error: ")
_SETTING = re.compile(r" Use TRY\(\.\.\.\).*by zero\.")
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_CANDIDATES = re.compile(r"(\n\tCandidate functions:(?:\n\t[^\n]*){5})(?:\n\t[^\n]*)+")
_NEAR = re.compile(r'^syntax error at or near "([^"]*)"')
_SUGGESTED = re.compile(r'\n(Did you mean|Candidate bindings:) ((?:"[^"\n]*"(?:, | or )?)+)(\??)')
_UNKNOWN = re.compile(r'with name (\S+) |"([^"\n]*)"')
_NAME = re.compile(r'"([^"\n]*)"')
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"\b(U?)INT(8|16|32|64|128)\b")
_INTEGERS = {"8": "TINYINT", "16": "SMALLINT", "32": "INTEGER", "64": "BIGINT", "128": "HUGEINT"}
_MALFORMED = re.compile(r'Malformed JSON .*Input: "([^"\n]*)"')
_COMPARED = r"(?<![\w.])((?:\w+\.)*(?:key|value))\.(\w+)\s*(=|<>|!=|<=|>=|<|>)\s*('{}'|\$\w+|\?)"
_NO_MEMBER = re.compile(r'^Could not find key "([^"]*)" in struct')
_MEMBER_NAME = re.compile(r'"((?:[^"]|"")*)" ')
_NO_COLUMN = re.compile(r'Referenced column "(\w+)" not found|Table "(\w+)" does not have a column named "(\w+)"')
_WRITTEN = re.compile(r"(?<![\w$])\$\w+|\?")
_MOST_MESSAGE, _MOST_NAMES, _MOST_MEMBERS, _NEAR_ENOUGH = 1_500, 5, 20, 0.65

Params = Sequence[Any] | Mapping[str, Any] | None
"""Values for $1, $2 …, or for $name."""

# What a message begins with, or has, and what follows it.
_INSTEAD = (
    (
        r"Could not convert string .* to (\w+) when casting from source column (\w+)",
        r"\2 is text: compare it with text in single quotes, or write TRY_CAST(\2 AS \1).",
    ),
    (r"Could not convert string .* to (\w+)", r"TRY_CAST(… AS \1) gives NULL for such a value."),
    (r"can't be cast because the value is out of range", "TRY_CAST gives NULL for such a value."),
    (r"Failed to cast value to numerical", "Take a member of the JSON value and cast it: (value->>'member')::DOUBLE."),
    (
        r"No function matches .*json_extract\w*\(JSON, BOOLEAN\)",
        "= binds before -> and ->>: write (value->>'member') = 'text'.",
    ),
    (
        r"Cannot compare values of type VARCHAR and type",
        "Cast the text, (value->>'member')::DOUBLE, or compare it with text in single quotes.",
    ),
    (r"No function matches .*\((?:JSON|VARCHAR)\b", "->> gives text. Cast it first: (value->>'member')::DOUBLE."),
    (
        r"Cannot compare values of type TIMESTAMP WITH TIME ZONE and type (?:INTEGER|BIGINT)",
        "Write a time as '2026-01-31T12:00:00Z', and milliseconds as make_timestamptz($1 * 1000). A comparison of "
        "epoch_ms(…) reads the whole table.",
    ),
    (r"^Division by zero", "x // nullif(y, 0) gives NULL then, and so does x / y."),
    (
        r"Unimplemented type for cast .*\[\]\) when|can't be cast to the destination type \w+\[\] when"
        r"|^Cannot compare values of type \w+(?: WITH TIME ZONE)? and type \w+\[\]",
        "A value here is a list. Write key IN $1, or list_contains($1, key).",
    ),
    (r"^Overflow in ", "Cast to HUGEINT or DOUBLE first: key::HUGEINT + 1."),
    (
        r'(?i)^Referenced column "rowid" not found|does not have a column named "rowid"',
        "Rows have no number here: key names a row.",
    ),
    (r'^syntax error at or near ":"', "Parameters are $1, $2 …, or $name: write $name instead of :name."),
    (r"^Table with name \S+ does not exist!(?!\nDid you mean)", "SHOW TABLES lists the tables."),
    (r"^Malformed JSON", "Text is read as JSON here. To compare a member with text, write value->>'member' = 'text'."),
    (r"invalid timestamp field format", "Write a time as '2026-01-31T12:00:00Z'."),
)
_PARAMETERS = (
    (r"Values were not provided for the following parameters: (.+)", "The statement has {}, for which params has no "
     "value. Give an array for $1, $2 …, or an object for $name."),
    (r".*identifiers of the excess parameters: (.+)", "params has a value for {}, which the statement does not have. "
     "Leave it out, or write it in the statement."),
    (r".*Expected 0, got (\d+)", "The statement has no parameters, and params is not empty. Leave params out, or write "
     "$1 or $name in the statement."),
    (r"Mixing named and positional parameters", "The statement has both $1 and $name. Use one of the two."),
)  # fmt: skip


def told(
    message: str, sql: str, params: Params, tables: Sequence[SqlTable], names: Iterable[str], *, planned: bool = False
) -> str:
    """Return DuckDB's message with its place and candidates and what to write instead, without advice on settings,
    extensions and its code. `params` are those of the statement, and `tables` those that it may read. `names` are the
    tables and columns that need quotes. A statement that is `planned` is behind a line of EXPLAIN."""
    if message.startswith("INTERNAL") or "Stack Trace" in message:
        return "DuckDB failed to run the statement. Write it in another way."
    if is_forbidden(message):
        return "The statement reads a file, the network or a setting. It can read the tables of stores only."
    text = _SETTING.sub("", _ADVICE.sub("", _KIND.sub("", message)).strip())
    for pattern, instead in _PARAMETERS:
        if found := re.match(pattern, text):
            named = ", ".join(f"${each.strip()}" for each in "".join(found.groups()).split(","))
            return _of_the_other_kind(sql, params) or instead.format(named)
    said, line, quoted_sql = _CANDIDATES.sub(r"\1\n\t…", text).partition("\n\nLINE ")  # then the statement's own text
    text = _INTEGER.sub(lambda found: found[1] + _INTEGERS[found[2]], _with_near_names(said)) + line + quoted_sql
    if planned:
        text = _LINE.sub(lambda found: f"LINE {int(found[1]) - 1}:", text)
    text = text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}…"
    if instead := _instead(text, sql, names) or _member(text, sql, tables) or _members(text, sql, tables):
        first, newline, rest = text.partition("\n")
        text = f"{first.rstrip('.!')}. {instead}{newline}{rest}"
    return text


def is_forbidden(message: str) -> bool:
    """Whether the statement was refused for what it may not read."""
    said = message.partition("\n\nLINE ")[0]
    return "disabled by configuration" in said or "Permission Error" in said


def _with_near_names(said: str) -> str:
    """Return the message without the suggested names that are unlike the unknown one."""
    unknown, found = _UNKNOWN.search(said), _SUGGESTED.search(said)
    if unknown is None or found is None:
        return said
    near = [each for each in _NAME.findall(found[2]) if _is_near(unknown[1] or unknown[2], each)]
    shown = (" or " if " or " in found[2] else ", ").join(f'"{each}"' for each in near)
    return said.replace(found[0], f"\n{found[1]} {shown}{found[3]}" if near else "")


def _is_near(unknown: str, name: str) -> bool:
    """Whether a name is like the unknown one, or begins with it. Tables and schemas before the names do not count."""
    written, known = (each.lower().rpartition(".")[2] for each in (unknown, name))
    is_begun = len(written) > 2 and known.startswith(written)
    return is_begun or bool(get_close_matches(written, [known], cutoff=_NEAR_ENOUGH))


def _of_the_other_kind(sql: str, params: Params) -> str:
    """Return what to write if an array is given for $name, or an object for $1. Empty if the kind is right."""
    written = list(dict.fromkeys(_WRITTEN.findall(unquoted(sql))))[:_MOST_NAMES]
    has_names = [not each[1:].isdigit() and each != "?" for each in written]
    if not params or not written or len(set(has_names)) > 1 or has_names[0] is isinstance(params, Mapping):
        return ""
    shown = ", ".join(written)
    if not isinstance(params, Mapping):
        members = ", ".join(f'"{each[1:]}": …' for each in written)
        return (
            f"The statement has {shown}, and params is an array, for $1, $2 …. Give an object, {{{members}}}, or write "
            f"{', '.join(f'${number + 1}' for number in range(len(written)))} in the statement."
        )
    names = ", ".join(f"${each}" for each in list(params)[:_MOST_NAMES])
    return (
        f"The statement has {shown}, and params is an object, for {names}. Give an array, "
        f"[{', '.join('…' for _ in written)}], or write {names} in the statement."
    )


def _instead(text: str, sql: str, names: Iterable[str]) -> str:
    """Return what to write instead, as far as it is known. Empty if it is not."""
    found = _NEAR.match(text)
    near, plain = None if found is None else found[1].lower(), unquoted(sql)
    if near is not None and (said := _of_syntax(near, plain)):
        return said
    for name in names:
        shown = quoted(name)
        if near == name.lower() or (near == "." and re.search(rf"\b{re.escape(name)}\.", plain, re.IGNORECASE)):
            return f"{name} is a word of SQL. Quote it as a name: {shown}."
        is_odd = _PLAIN_NAME.fullmatch(name) is None
        if is_odd and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", plain, re.IGNORECASE):
            return f"Quote the name: {shown}."
    if (found := _MALFORMED.match(text)) and (compared := re.search(_COMPARED.format(re.escape(found[1])), sql)):
        column, member, sign, value = compared.groups()
        return f"{column} is JSON: write {column}->>'{member}' {sign} {value}."
    for pattern, instead in _INSTEAD:
        if found := re.search(pattern, text):
            return found.expand(instead)
    if (found := re.match(r'Referenced column ("[^"]*") not found', text)) and found[1] in sql:
        if _SUGGESTED.search(text):
            return ""  # a name that is misspelled, and DuckDB says how it is spelled
        return f"Double quotes are for names. Write text in single quotes: '{found[1][1:-1]}'."
    return ""


def _of_syntax(near: str, plain: str) -> str:
    if near == "end" and re.search(r"\b(else|then|when|case)\s+end\b", plain, re.IGNORECASE):
        return "A value is missing before END."
    if near.isidentifier() and plain.lstrip("( \n\t").lower().startswith(near):
        return "A statement begins with SELECT, WITH, FROM, VALUES, SHOW, DESCRIBE or EXPLAIN."
    return ""


def _member(text: str, sql: str, tables: Iterable[SqlTable]) -> str:
    """Return how to write an unknown column as a member of JSON. Empty if the statement does not read one table, with
    one JSON column, or DuckDB suggests a name."""
    if (found := _NO_COLUMN.match(text)) is None or _SUGGESTED.search(text):
        return ""
    plain, named = unquoted(sql), _tables_in(sql, tables)
    columns = [name for table in named for name, kind in table.columns.items() if kind == "JSON"]
    if len(named) != 1 or len(columns) != 1:
        return ""
    table, member = ("", found[1]) if found[1] else (f"{found[2]}.", found[3])
    text = f", or the text '{member}'" if re.search(rf"[=<>]\s*{member}\b", plain) else ""
    return "" if member in named[0].columns else f"Did you mean {table}{columns[0]}->>'{member}'{text}?"


def _members(text: str, sql: str, tables: Iterable[SqlTable]) -> str:
    """Return the members that a struct has, of columns of the statement's tables. Empty for other messages."""
    if _NO_MEMBER.match(text) is None:
        return ""
    structs = [
        f"{name} has {', '.join(_MEMBER_NAME.findall(kind)[:_MOST_MEMBERS])}"
        for table in _tables_in(sql, tables)
        for name, kind in table.columns.items()
        if kind.startswith("STRUCT")
    ]
    return f"{'; '.join(structs)}." if structs else ""


def _tables_in(sql: str, tables: Iterable[SqlTable]) -> list[SqlTable]:
    plain = unquoted(sql)
    return [
        table
        for table in tables
        if quoted(table.name) in sql or re.search(rf"\b{re.escape(table.name)}\b", plain, re.IGNORECASE)
    ]
