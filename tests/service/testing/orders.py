"""The application of the driver's tests: orders to totals, by city in another subtopology, and some of them onwards."""

from __future__ import annotations

from typing import Any

from stateline import App, InputRecord, Output, StoreView, serdes, stores

GUARANTEES = ["at_least_once", "exactly_once_v2"]
TYPES: dict[str, Any] = {"key": serdes.string, "value": serdes.json}


def made(**config: Any) -> App:
    """`config` has underscores for dots."""
    app = App("shop", config={name.replace("__", "."): value for name, value in config.items()})
    orders = app.topic("orders", **TYPES)
    large = app.topic("large", **TYPES)
    app.topic("elsewhere", **TYPES)
    app.table("prices", key=serdes.string, value=serdes.float64)
    by_city = app.repartition("by-city", **TYPES)
    totals = app.store(stores.key_value("totals", key=serdes.string, value=serdes.int64))
    cities = app.store(stores.timestamped_key_value("cities", key=serdes.string, value=serdes.int64))

    @app.process(orders, stores=[totals], forwards=[large, by_city])
    def add_up(order: InputRecord, totals: StoreView, large: Output, by_city: Output) -> None:
        amount = order.value["amount"]
        totals.put(order.key, (totals.get(order.key) or 0) + amount)
        by_city.forward(order.value.get("city", "?"), {"amount": amount})
        if amount < 0:
            raise ValueError("Nobody is paid here.")
        if amount > 100:
            large.forward(order.key, order.value)

    @app.process(by_city, stores=[cities])
    def count(order: InputRecord, cities: StoreView) -> None:
        cities.put(order.key, (cities.get(order.key) or 0) + 1)

    return app
