"""The application of the tests of versioned tables, and the final tables that plain Python makes of its input."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from stateline import App, serdes

Given = tuple[str, str | None, int]  # key, value, timestamp
Values = dict[bytes, bytes]


def pair(one: Any, other: Any) -> str:
    return f"{one}|{other}"


def build() -> App:
    """Prices and names with versions: joined, filtered, and counted by the first letter of the price."""
    app, day = App("app"), timedelta(days=1)
    prices = app.ktable(app.table("prices", key=serdes.string, value=serdes.string, versioned=day))
    names = app.stream("names", key=serdes.string, value=serdes.string).to_table("named", versioned=day)
    prices.join(names, pair, "inner")
    prices.outer_join(names, pair, "outer")
    prices.filter(lambda key, value: not value.startswith("a"), "kept").left_join(names, pair, "left")
    prices.group_by(lambda key, value: (value[:1], value), name="letters").count("counts")
    return app


app = build()


def final(prices: list[Given], names: list[Given]) -> dict[str, Values]:
    """Each store's values after these records, the newest by timestamp."""
    price, name = _newest(prices), _newest(names)
    kept = {key: value for key, value in price.items() if not value.startswith("a")}
    made = {
        "inner": {key: pair(price[key], name[key]) for key in price.keys() & name.keys()},
        "outer": {key: pair(price.get(key), name.get(key)) for key in price.keys() | name.keys()},
        "left": {key: pair(value, name.get(key)) for key, value in kept.items()},
    }
    values = {store: {key.encode(): row.encode() for key, row in rows.items()} for store, rows in made.items()}
    counts = Counter(value[:1] for value in price.values())
    return {**values, "counts": {letter.encode(): serdes.int64.serialize(n) for letter, n in counts.items()}}


def _newest(records: list[Given]) -> dict[str, str]:
    newest: dict[str, tuple[int, str | None]] = {}
    for key, value, at in records:
        if at >= newest.get(key, (-1, None))[0]:
            newest[key] = at, value
    return {key: value for key, (_, value) in newest.items() if value is not None}
