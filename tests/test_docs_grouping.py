"""docs/grouping.md is true: its application does what the page says, and it names every method."""

from __future__ import annotations

import re
from typing import Any

from stateline import App
from stateline.dsl.cogrouped import CogroupedStream, CogroupedWindows
from stateline.dsl.grouped_tables import GroupedTable
from stateline.testing import TestDriver
from test_docs import blocks, document

TEXT = document("docs/grouping.md")


def declared() -> App:
    scope: dict[str, Any] = {}
    exec("\n\n".join(blocks(TEXT, "python")), scope)
    app = scope["app"]
    assert isinstance(app, App)
    return app


def test_the_application_that_it_shows_adds_up_the_current_rows_of_each_group() -> None:
    with TestDriver(declared()) as driver:
        for song, genre, plays in (("one", "jazz", 3), ("two", "jazz", 4), ("one", "pop", 5)):
            driver.pipe("songs", song, {"genre": genre, "plays": plays})
        assert {row.key: row.value for row in driver.store("plays_of").all()} == {"jazz": 4, "pop": 5}
        driver.pipe("songs", "two", None)
        assert {row.key: row.value for row in driver.store("songs_of").all()} == {"jazz": 0, "pop": 1}


def test_the_streams_that_it_shows_share_an_aggregate() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("orders", "ada", {"amount": 3}, timestamp_ms=1_000)
        driver.pipe("visits", "ada", "/cart", timestamp_ms=2_000)
        sessions = [session.value for session in driver.store("sessions_of").fetch_all()]
        assert sessions == [{"spent": 3, "page": "/cart"}]
        driver.pipe("orders", "ada", {"amount": 4}, timestamp_ms=9_000_000)
        assert driver.store("seen_of").get("ada") == {"spent": 7, "page": "/cart"}


def test_the_window_without_an_end_counts_from_its_start_on() -> None:
    with TestDriver(declared()) as driver:
        start_ms = 1_767_225_600_000
        for at_ms in (start_ms - 1, start_ms + 90_000_000_000, start_ms):
            driver.pipe("visits", "ada", "/", timestamp_ms=at_ms)
        counts = [(each.start, each.value) for each in driver.store("visits-of-the-year").fetch_all()]
        assert counts == [(start_ms, 2)]


def test_a_price_leaves_when_it_has_waited_for_the_time_limit() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("prices", "tea", 3, timestamp_ms=0)
        driver.pipe("prices", "tea", 4, timestamp_ms=1_000)
        assert driver.read("calm-prices") == []
        driver.pipe("prices", "oil", 9, timestamp_ms=300_000)
        assert [(row.key, row.value, row.timestamp_ms) for row in driver.read("calm-prices")] == [("tea", 4, 1_000)]
        assert [row.key for row in driver.store("calm-store").all()] == ["oil"]


def test_every_method_is_named() -> None:
    kinds = (GroupedTable, CogroupedStream, CogroupedWindows)
    methods = {name for kind in kinds for name in vars(kind) if not name.startswith("_")}
    assert methods <= set(re.findall(r"[`.]([a-z_]+)\(", TEXT))
