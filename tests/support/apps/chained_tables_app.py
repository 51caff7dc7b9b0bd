"""An application in which rows move between three subtopologies and back: orders joined with customers by foreign key,
grouped by the city, counted and collected, and joined with the names of cities. Its result in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from stateline import App, serdes

Given = tuple[str, tuple[str, str | None, int]]  # topic; key, value, timestamp
TOPICS = ("orders", "customers", "cities")


def customer_of(key: str, order: str) -> str | None:
    """The customer is before the dash; `x…` has none."""
    return None if order[0] == "x" else order.partition("-")[0]


def in_city(order: str, city: str) -> str:
    return f"{city}:{order}"


def by_city(key: str, row: str) -> tuple[str, str]:
    return row.partition(":")[0], key


def added(city: str, order: str, orders: list[str]) -> list[str]:
    return sorted([*orders, order])


def removed(city: str, order: str, orders: list[str]) -> list[str]:
    return [each for each in orders if each != order]


def named(count: int, name: str | None) -> str:
    return f"{name}={count}"


def build() -> App:
    app = App("chained-tables")
    orders, customers, cities = (
        app.ktable(app.table(topic, key=serdes.string, value=serdes.string)) for topic in TOPICS
    )
    sold = orders.join(customers, in_city, "sold", on=customer_of, name="sold")
    grouped = sold.group_by(by_city, name="by-city")
    grouped.aggregate(list, added, removed, "collected", value=serdes.json)
    grouped.count("counted").left_join(cities, named, "named", value=serdes.string)
    return app


def tables_of(given: Iterable[Given]) -> dict[str, dict[str, str]]:
    """The three tables after these records."""
    tables: dict[str, dict[str, str]] = {topic: {} for topic in TOPICS}
    for topic, (key, value, _) in given:
        tables[topic].pop(key, None)
        if value is not None:
            tables[topic][key] = value
    return tables


def sold_of(tables: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The rows of `sold`."""
    found = {}
    for key, order in tables["orders"].items():
        city = tables["customers"].get(customer_of(key, order) or "")
        if city is not None:
            found[key] = in_city(order, city)
    return found


def cities_of(tables: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The orders of each city that has some, as in `collected`."""
    found: dict[str, list[str]] = {}
    for key, row in sorted(sold_of(tables).items()):
        found.setdefault(row.partition(":")[0], []).append(key)
    return found


def named_of(tables: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The rows of `named` with a count above 0."""
    counts = Counter({city: len(orders) for city, orders in cities_of(tables).items()})
    return {city: named(count, tables["cities"].get(city)) for city, count in counts.items()}


app = build()
