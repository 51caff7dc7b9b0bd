"""A stream joined with itself, in one store or in two (test_golden_operators.py compares with Kafka Streams)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stateline import App, JoinWindows, serdes
from stateline.model.unnamed_stores import check_names
from stateline.testing import Record, TestDriver

ONE_STORE = {"topology.optimization": "single.store.self.join"}
LONG = "x" * 990_000
ROWS = [("k", "a", 0), ("k", "b", 5), (None, "x", 6), ("k", None, 6), ("k", "c", 5), ("j", "d", 9), ("k", "e", 90)]


def declared(kind: str = "join", store: str | None = "j") -> App:
    app = App("self")
    rows = app.stream("in", key=serdes.string, value=serdes.string)
    rows = rows.map_values(lambda key, value: value and value.replace("long", LONG))
    join = getattr(rows, kind)
    join(rows, lambda one, other: f"{one}{other}", within=JoinWindows(timedelta(milliseconds=10)), store=store).to(
        "out"
    )
    return app


def results(settings: dict[str, str], guarantee: str) -> tuple[list[Record], list[str]]:
    app = declared()
    with TestDriver(app, config={"processing.guarantee": guarantee, **settings}) as driver:
        for place, (key, value, at_ms) in enumerate(ROWS):
            driver.pipe("in", key, value, timestamp_ms=at_ms)
            if place == 3:
                driver.restart()
        return driver.read("out"), list(app.topology().stores)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_one_store_gives_the_rows_of_two_in_their_order(guarantee: str) -> None:
    one, stores = results(ONE_STORE, guarantee)
    two, both = results({}, guarantee)
    assert [row.value for row in one] == ["aa", "ba", "ab", "bb", "ca", "cb", "ac", "bc", "cc", "dd", "ee"]
    assert one == two
    assert (stores, both) == (["j-this-join-store"], ["j-this-join-store", "j-other-join-store"])


def test_a_dropped_row_counts_once_in_one_store(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(declared(), config=ONE_STORE) as driver:
        driver.pipe("in", None, "x")
        driver.pipe("in", "k", None)
    assert "have no key: 1 so far" in caplog.text
    assert "have no value: 1 so far" in caplog.text


@pytest.mark.parametrize("settings", [ONE_STORE, {}], ids=["one-store", "two-stores"])
@pytest.mark.parametrize("kind", ["join", "outer_join"])
def test_a_row_that_is_too_large_is_one_dead_letter_and_others_are_joined(kind: str, settings: dict[str, str]) -> None:
    letters = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "dead"}
    with TestDriver(declared(kind), config={**settings, **letters}) as driver:
        rows = [("k", "a", 0), ("k", "long", 1), ("k", "b", 2)]
        driver.pipe_all("in", [Record(key, value, at_ms) for key, value, at_ms in rows])
        assert [letter.offset for letter in driver.dead_letters()] == [1]
        assert [row.value for row in driver.read("out")] == ["aa", "ba", "ab", "bb"]


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_only_inner_joins_do_with_one_store(kind: str) -> None:
    app = declared(kind)
    with TestDriver(app, config=ONE_STORE):
        assert len(app.topology().stores) == 3


def test_names_are_explicit_without_the_store_that_is_left_out() -> None:
    app = declared(store=None)
    with TestDriver(app, config=ONE_STORE):
        topology = app.topology()
    assert list(topology.generated) == ["KSTREAM-JOINTHIS-0000000000-store"]
    check_names(topology, explicit=False)
