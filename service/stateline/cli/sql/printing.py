"""Print the rows of a statement as a table, as CSV or as JSON. Pure."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from stateline.client import SqlAnswer
from stateline.server.contract.formats import CSV, JSON
from stateline.server.sql.results import rendered

Form = Literal["table", "csv", "json"]
FORMATS: tuple[Form, ...] = ("table", "csv", "json")
_NULL = "NULL"


def printed(answer: SqlAnswer, form: Form, *, expanded: bool = False) -> str:
    """Return the rows as text. `expanded` writes a table with a line for each value."""
    if form == "json":
        return rendered(answer.table, JSON, None).decode()
    names, *rows = csv.reader(io.StringIO(rendered(answer.table, CSV, None).decode(), newline=""))
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *rows])
        return text.getvalue().removesuffix("\n")
    names, rows = [_visible(name) for name in names], _with_nulls(answer.table, rows)
    count = f"({len(rows)} row{'s' * (len(rows) != 1)})"
    return "\n".join([*(_expanded(names, rows) if expanded else _aligned(answer.table, names, rows)), count])


def _with_nulls(table: pa.Table, rows: Sequence[Sequence[str]]) -> list[list[str]]:
    nulls = [column.is_null().to_pylist() for column in table.columns]
    return [
        [_NULL if nulls[place][number] else _visible(cell) for place, cell in enumerate(row)]
        for number, row in enumerate(rows)
    ]


def _aligned(table: pa.Table, names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(_width, (name, *(row[place] for row in rows)))) for place, name in enumerate(names)]
    right = [_is_number(kind) for kind in table.schema.types]

    def line(cells: Sequence[str]) -> str:
        padded = [
            " " * (width - _width(cell)) + cell if to_right else cell + " " * (width - _width(cell))
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return f" {' | '.join(padded)}".rstrip()

    return [line(names), "-+-".join("-" * width for width in widths).join("--"), *map(line, rows)]


def _expanded(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(map(_width, names), default=0)
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"-[ row {number} ]-")
        lines += [f"{name}{' ' * (width - _width(name))} | {cell}" for name, cell in zip(names, row, strict=True)]
    return lines


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _visible(text: str) -> str:
    """Return the text in one line, with control characters as their escapes: a terminal would obey them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _width(text: str) -> int:
    """Return the columns that a terminal takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)
