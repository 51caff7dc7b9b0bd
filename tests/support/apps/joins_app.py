"""The application of the tests that kill a worker in the middle of joins, and what plain Python makes of its input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stateline import App, serdes

Given = tuple[str, str | None, int]  # key, value, timestamp


def pair(one: Any, other: Any) -> str:
    return f"{one}|{other}"


def build() -> App:
    """Orders with their customers' names, in a topic and a table; how often each has ordered, beside the name."""
    app = App("joins")
    orders = app.stream("orders", key=serdes.string, value=serdes.string)
    names = app.ktable(app.table("names", key=serdes.string, value=serdes.string))
    named = orders.left_join(names, pair)
    named.to("named")
    named.to_table("newest")
    orders.group_by_key().count("counts").outer_join(names, pair, "joined", value=serdes.string)
    return app


app = build()


class Oracle:
    """The records of both topics, in order of time."""

    def __init__(self) -> None:
        self.named: list[tuple[bytes, bytes, int]] = []
        self.newest: dict[bytes, tuple[bytes, int]] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def process(self, records: Iterable[tuple[str, Given]]) -> None:
        """Each with its topic."""
        for topic, (key, value, at) in sorted(records, key=lambda record: record[1][2]):
            if topic == "orders" and value is not None:
                self._counts[key] = self._counts.get(key, 0) + 1
                made = (key.encode(), pair(value, self._names.get(key)).encode(), at)
                self.named.append(made)
                self.newest[made[0]] = made[1:]
            elif topic == "names" and value is None:
                self._names.pop(key, None)
            elif topic == "names" and value is not None:
                self._names[key] = value

    @property
    def joined(self) -> dict[bytes, bytes]:
        """Count and name of every key that has one of them."""
        keys = self._counts.keys() | self._names.keys()
        return {key.encode(): pair(self._counts.get(key), self._names.get(key)).encode() for key in keys}
