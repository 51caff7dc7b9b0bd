"""The application of tests that kill a worker while tables are grouped, and what plain Python makes of its input."""

from __future__ import annotations

from collections.abc import Iterable

from stateline import App, serdes

Given = tuple[str, str | None, int]  # key, value, timestamp


def group_of(key: str, value: str) -> tuple[str, str] | None:
    """The group is the value's first letter; `x…` is in none."""
    return None if value[0] == "x" else (value[0], key)


def with_row(group: str, row: str, rows: list[str]) -> list[str]:
    return sorted({*rows, row})


def without_row(group: str, row: str, rows: list[str]) -> list[str]:
    return sorted({*rows} - {row})


def build() -> App:
    """How many rows each group has, and which."""
    app = App("groups")
    groups = app.ktable(app.table("people", key=serdes.string, value=serdes.string)).group_by(group_of, name="letters")
    groups.count("counts")
    groups.aggregate(list, with_row, without_row, "rows", value=serdes.json)
    return app


def rows_of(given: Iterable[Given]) -> dict[str, list[str]]:
    """The rows of each group that ever had one."""
    table, found = dict[str, str | None](), dict[str, list[str]]()
    for key, value, _ in given:
        table[key] = value
        if value is not None and value[0] != "x":
            found[value[0]] = []
    for key, value in sorted(table.items()):
        if value is not None and value[0] != "x":
            found[value[0]].append(key)
    return found


app = build()
