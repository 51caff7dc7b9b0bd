"""The application of tests that kill a worker while tables are joined by foreign key, and its result in plain
Python."""

from __future__ import annotations

from collections.abc import Iterable

from stateline import App, serdes

Given = tuple[str, tuple[str, str | None, int]]  # topic; key, value, timestamp


def customer_of(key: str, order: str) -> str | None:
    """The customer is before the dash; `x…` has none."""
    return None if order[0] == "x" else order.partition("-")[0]


def named(order: str, name: str | None) -> str:
    return f"{order}/{name}"


def build() -> App:
    app = App("foreign-keys")
    orders, names = (
        app.ktable(app.table(topic, key=serdes.string, value=serdes.string)) for topic in ("orders", "names")
    )
    orders.join(names, named, "inner", on=customer_of, name="i")
    orders.left_join(names, named, "left", on=customer_of, name="l")
    return app


def rows_of(given: Iterable[Given]) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """The rows of `inner` and of `left` after these records."""
    tables: dict[str, dict[str, str]] = {"orders": {}, "names": {}}
    for topic, (key, value, _) in given:
        tables[topic].pop(key, None)
        if value is not None:
            tables[topic][key] = value
    left = {key: (order, tables["names"].get(customer_of(key, order) or "")) for key, order in tables["orders"].items()}
    inner = {key: pair for key, pair in left.items() if pair[1] is not None}
    made = [{key.encode(): named(*pair).encode() for key, pair in rows.items()} for rows in (inner, left)]
    return made[0], made[1]


app = build()
