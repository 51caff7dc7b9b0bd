"""The application that `bench_sql` asks: a table of JSON orders, and a store of the size of a declared aggregate."""

from typing import Any

from stateline import serdes
from stateline.dsl.app import App
from stateline.stores import timestamped_key_value

app = App("sql")
_orders = app.topic("orders", key=serdes.string, value=serdes.json)
app.table(_orders, store="orders")
_by_city = app.store(timestamped_key_value("by_city", key=serdes.string, value=serdes.json))


@app.process(_orders, stores=[_by_city])
def count(order: Any, by_city: Any) -> None:
    """Nothing: the stores are filled by who measures."""
