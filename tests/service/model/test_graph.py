"""The graph of a topology, which `stateline check` and the console draw."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from stateline import App, JoinWindows, serdes
from stateline.model.graph import graph_of


def test_a_step_that_several_topics_come_to_is_one_node() -> None:
    app = App("app")
    orders, payments = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("orders", "payments"))
    within = JoinWindows(timedelta(minutes=1))
    orders.outer_join(payments, lambda order, payment: f"{order}{payment}", within=within, store="paid").to("out")
    both = (
        orders.group_by_key()
        .cogroup(lambda key, value, seen: seen)
        .cogroup(payments.group_by_key(), lambda key, value, seen: seen)
    )
    both.aggregate(str, "seen", value=serdes.string)
    (part,) = graph_of(app.topology())
    steps = Counter(drawn.name for drawn in part.drawn if drawn.kind == "operator")
    sides = {"left side": 1, "right side": 1, "cogroup": 2}
    assert steps == {**sides, "outer_join paid": 1, "to out": 1, "merge": 1, "aggregate seen": 1}
    into = [edge.start.name for edge in part.edges if edge.end.name == "outer_join paid"]
    assert into == ["left side", "right side"]
    assert len({drawn.key for drawn in part.drawn}) == len(part.drawn)
