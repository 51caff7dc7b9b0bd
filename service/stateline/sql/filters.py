"""Read the filters of a scan in DuckDB's plan as values and ranges of columns. Pure.

A filter that is not understood bounds nothing: DuckDB runs the whole statement again over the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from stateline.sql.tables import SqlTable

MAX_KEYS = 1_000
_TOKEN = re.compile(
    r"'(?P<text>(?:[^']|'')*)'(?:::(?P<type>BLOB|UUID|TIMESTAMP WITH TIME ZONE)\b)?"
    r"|(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])"
    r"|(?P<sign><=|>=|!=|<|>|=)|(?P<line>\n)|(?P<space>[ \r\t]+)|(?P<word>[A-Za-z_][\w.]*:?)|(?P<mark>.)",
    re.DOTALL,
)
_BYTE = re.compile(rb"\\x([0-9A-Fa-f]{2})")
_BOUNDED = ("key", "start", "end")
_Token = re.Match[str]


@dataclass(frozen=True, slots=True)
class Part:
    """Values of one column: these only, or a range."""

    values: frozenset[Any] | None = None
    lower: Any = None
    upper: Any = None

    def and_(self, other: Part) -> Part:
        lower = max((low for low in (self.lower, other.lower) if low is not None), default=None)
        upper = min((high for high in (self.upper, other.upper) if high is not None), default=None)
        given = [part.values for part in (self, other) if part.values is not None]
        if not given:
            return Part(None, lower, upper)
        values = frozenset.intersection(*given)
        inside = (v for v in values if (lower is None or v >= lower) and (upper is None or v <= upper))
        return Part(frozenset(inside))

    def or_(self, other: Part) -> Part:
        if self.values is not None and other.values is not None and len(both := self.values | other.values) <= MAX_KEYS:
            return Part(both)
        if self.values == frozenset() or other.values == frozenset():
            return self if other.values == frozenset() else other
        lows, highs = zip(self.span(), other.span(), strict=True)
        return Part(None, None if None in lows else min(lows), None if None in highs else max(highs))

    def span(self) -> tuple[Any, Any]:
        return (min(self.values), max(self.values)) if self.values else (self.lower, self.upper)


ALL = Part()


def parse(text: str) -> list[_Token]:
    """Return the tokens of a scan's filters."""
    return [token for token in _TOKEN.finditer(text) if not token["space"]]


def either(parts: Sequence[Part]) -> Part:
    first, *more = parts
    for part in more:
        first = first.or_(part)
    return first


def conjunction(table: SqlTable, tokens: Sequence[_Token]) -> dict[str, Part]:
    """Return the parts of a scan's filters, one filter a line."""
    return _all_of([_filter(table, line) for line in _split(tokens, lambda token: token["line"] is not None)])


def _split(tokens: Sequence[_Token], ends: Callable[[_Token], bool]) -> list[list[_Token]]:
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token["mark"] or "", 0)
        if depth == 0 and ends(token):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _filter(table: SqlTable, tokens: Sequence[_Token]) -> dict[str, Part]:
    """Return the parts of one filter in brackets. One that is not understood bounds nothing."""
    while tokens and tokens[0]["word"] == "optional:":
        tokens = tokens[1:]
    if len(tokens) < 3 or tokens[0]["mark"] != "(" or tokens[-1]["mark"] != ")":
        return {}
    inner = tokens[1:-1]
    if not _is_balanced(inner):
        return {}
    if len(parts := _split(inner, lambda token: token["word"] == "AND")) > 1:
        return _all_of([_filter(table, part) for part in parts])
    if len(parts := _split(inner, lambda token: token["word"] == "OR")) > 1:
        return _one_of([_filter(table, part) for part in parts])
    return _comparison(table, inner)


def _is_balanced(tokens: Sequence[_Token]) -> bool:
    """Return whether the brackets close in order, so that the outer two belong together."""
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token["mark"] or "", 0)
        if depth < 0:
            return False
    return depth == 0


def _all_of(made: Sequence[dict[str, Part]]) -> dict[str, Part]:
    bounds: dict[str, Part] = {}
    for parts in made:
        for name, part in parts.items():
            bounds[name] = bounds.get(name, ALL).and_(part)
    return bounds


def _one_of(made: Sequence[dict[str, Part]]) -> dict[str, Part]:
    common = set(made[0]).intersection(*made[1:])
    return {name: either([parts[name] for parts in made]) for name in common}


def _comparison(table: SqlTable, tokens: Sequence[_Token]) -> dict[str, Part]:
    """Return the part of `column = value`, `column < value` and alike, `column IN (value, …)`."""
    column = tokens[0]["word"] if tokens else None
    kind = table.columns.get(column or "")
    if column is None or kind is None or column not in _BOUNDED:
        return {}
    if len(tokens) == 3 and (sign := tokens[1]["sign"]) is not None and (value := _value(kind, tokens[2])) is not None:
        part = _equal(value)
        if sign == "=":
            return {column: part}
        if kind == "DOUBLE" or sign == "!=":  # a NaN is above all numbers in SQL
            return {}
        lower, upper = part.span()
        return {column: Part(None, lower, None) if sign[0] == ">" else Part(None, None, upper)}
    if len(tokens) > 4 and tokens[1]["word"] == "IN" and tokens[2]["mark"] == "(" and tokens[-1]["mark"] == ")":
        given = tokens[3:-1]
        values = [_value(kind, token) for token in given[::2]]
        commas = all(token["mark"] == "," for token in given[1::2])
        if commas and len(given) % 2 and None not in values:
            return {column: either([_equal(value) for value in values])}
    return {}


def _equal(value: Any) -> Part:
    """Return the values that a plan shows as this one. It leaves out empty lines, so that a text with a line break
    stands for all that begin with its first line."""
    if isinstance(value, str) and "\n" in value:
        first = value.partition("\n")[0]
        return Part(None, first + "\n", first + "\v")
    return Part(frozenset([value]))


def _value(kind: str, token: _Token) -> Any:
    """Return the literal as a value of a column of this type, None for a literal that is not understood."""
    text, of_type, number = token["text"], token["type"], token["number"]
    if text is not None:
        text = text.replace("''", "'")
    try:
        match kind, of_type:
            case (("VARCHAR" | "JSON"), None):
                return text
            case "BLOB", "BLOB" if text is not None:
                return _BYTE.sub(lambda found: bytes([int(found[1], 16)]), text.encode())
            case "UUID", "UUID" if text is not None:
                return UUID(text)
            case "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE" if text is not None:
                at = datetime.fromisoformat(text)
                return None if at.tzinfo is None else at.astimezone(UTC)
            case (("INTEGER" | "BIGINT"), None) if number is not None:
                return int(number)
            case "DOUBLE", None if number is not None:
                return float(number) or None  # 0.0 is also -0.0, with other bytes
    except (ValueError, OverflowError):  # a time outside of the years 1 to 9999, 1.5 for an integer
        return None
    return None
