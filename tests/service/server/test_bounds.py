"""Position bounds: which part of one, on several stores, each store is asked to meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stateline import App, serdes
from stateline.server.routing.bounds import PositionBounds
from stateline_store import Position, PositionBound, TopicPartition


def test_a_bound_on_several_stores_asks_each_for_its_own_topics_and_for_those_of_none() -> None:
    app = App("bounds")
    for name in ("orders", "people"):
        app.table(app.topic(name, key=serdes.string, value=serdes.json), store=f"{name}-table")
    at = {topic: TopicPartition(topic, 0) for topic in ("orders", "people", "unknown")}
    bound = PositionBound(Position.of(dict.fromkeys(at.values(), 5)))
    stores: Any = [SimpleNamespace(name=f"{name}-table", is_global=False) for name in ("orders", "people")]
    found = PositionBounds(app.topology()).of_each(stores, bound)
    assert found == {
        f"{name}-table": PositionBound(Position.of({at[name]: 5, at["unknown"]: 5})) for name in ("orders", "people")
    }
    alone = PositionBounds(app.topology()).of_each(stores[:1], bound)
    assert alone == {"orders-table": bound}, "a bound that one store can never meet is still refused"
