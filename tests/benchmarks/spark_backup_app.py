"""The application whose backups Spark reads: a table of JSON orders, and counts in windows of an hour."""

from datetime import timedelta
from typing import Any

from stateline import serdes
from stateline.dsl.app import App
from stateline.stores import window

app = App("spark-backup")
_topic = app.topic("orders", key=serdes.string, value=serdes.json)
app.table(_topic, store="orders")
_counts = app.store(
    window("counts", key=serdes.string, value=serdes.int64, size=timedelta(minutes=1), retention=timedelta(days=365))
)


@app.process(_topic, stores=[_counts])
def count(order: Any, counts: Any) -> None:
    """Nothing: the stores are filled by who measures."""
