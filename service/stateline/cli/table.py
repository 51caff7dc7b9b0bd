"""Show rows as aligned columns for people, or as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

Row = Mapping[str, object]


def as_text(rows: Sequence[Row], *, as_json: bool, hide: Collection[str] = ()) -> str:
    """The rows as indented JSON, or as columns under the first row's keys. `hide` leaves out columns."""
    if as_json:
        return json.dumps(rows, indent=2, ensure_ascii=False)
    if not rows:
        return "none"
    columns = [name for name in rows[0] if name not in hide]
    lines = [columns, *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
