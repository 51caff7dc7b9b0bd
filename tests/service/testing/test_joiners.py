"""Joiners that take the key before the two values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stateline import App, serdes
from stateline.dsl.streams import Table
from stateline.testing import TestDriver
from stateline_store import TopologyError


def told(key: str, left: str | None, right: str | None) -> str:
    return f"{key}: {left} {right}"


def table(app: App, topic: str) -> Table:
    return app.ktable(app.table(topic, key=serdes.string, value=serdes.string))


JOINS: dict[str, Callable[[Table, Table], Any]] = {
    "join": lambda left, right: left.join(right, told, "joined"),
    "outer_join": lambda left, right: left.outer_join(right, told, "joined"),
    "join by foreign key": lambda left, right: left.join(right, told, "joined", on=lambda k, v: v[:1], name="fk"),
}


@pytest.mark.parametrize("kind", JOINS)
def test_a_joiner_of_tables_with_three_parameters_gets_the_key_first(kind: str) -> None:
    app = App("keyed")
    left, right = table(app, "left"), table(app, "right")
    JOINS[kind](left, right)
    with TestDriver(app) as driver:
        driver.pipe("right", "k", "r")
        driver.pipe("left", "k", "k1")
        assert driver.store("joined").get("k") == "k: k1 r"


def test_a_joiner_that_can_be_called_with_two_values_gets_two() -> None:
    app = App("keyed")

    def pair(left: str, right: str, sign: str = "+") -> str:
        return left + sign + right

    table(app, "left").join(table(app, "right"), pair, "joined")
    with TestDriver(app) as driver:
        driver.pipe("left", "k", "l")
        driver.pipe("right", "k", "r")
        assert driver.store("joined").get("k") == "l+r"


def test_a_joiner_of_other_parameters_is_refused_with_what_it_may_take() -> None:
    app = App("keyed")
    left, right = table(app, "left"), table(app, "right")
    with pytest.raises(TopologyError, match=r"with 2 arguments: value, other_value, or with the key before them"):
        left.join(right, lambda value: value, "joined")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="async"):
        left.join(right, _later, "joined")


async def _later(key: str, left: str, right: str) -> str:
    return key + left + right
