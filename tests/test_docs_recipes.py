"""docs/sql-recipes.md is true: every request is asked of the demo's stores, over the demo's records of two days."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest

from flights import data
from flights.application import app
from stateline.testing import TestDriver
from test_docs import document

PAGE = document("docs/sql-recipes.md")
DEPARTURES = 900


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each request of the page, with the heading above it."""
    for heading, text in re.findall(r"^## (.+)\n([^]*?)(?=^## |\Z)".replace("[^]", r"[\s\S]"), PAGE, re.MULTILINE):
        for language, block in re.findall(r"^```(sql|json)\n([\s\S]*?)^```", text, re.MULTILINE):
            yield heading, {"sql": block} if language == "sql" else json.loads(block)


REQUESTS = list(requests())


@pytest.fixture(scope="module")
def departures() -> Sequence[dict[str, Any]]:
    return [json.loads(record.value) for record in data.departures()[:DEPARTURES]]


@pytest.fixture(scope="module")
def demo(departures: Sequence[dict[str, Any]]) -> Iterator[httpx.Client]:
    """The demo's application, with what its pipelines would write."""
    with TestDriver(app, config={"sql.timeout.ms": 60_000}) as driver:
        for record in data.departures()[:DEPARTURES]:
            driver.pipe("departures", record.key.decode(), json.loads(record.value), timestamp_ms=record.timestamp_ms)
        flown = {each["tailnum"] for each in departures}
        kept: dict[str, Callable[[dict[str, Any]], bool]] = {
            "weather": lambda value: value["month"] == 1 and value["day"] <= 2,
            "airlines": lambda value: True,
            "planes": lambda value: value["tailnum"] in flown,
            "airports": lambda value: 39 < value["lat"] < 42,
        }
        for name, is_kept in kept.items():
            for record in data.table(name):
                if is_kept(value := json.loads(record.value)):
                    driver.pipe(name, record.key.decode(), value, timestamp_ms=record.timestamp_ms)
        for (origin, hour), count in Counter((each["origin"], each["scheduled"][:13]) for each in departures).items():
            start_ms = data._milliseconds(f"{hour}:00:00Z")
            driver.pipe("delay_windows", [origin, start_ms], {"departures": count}, timestamp_ms=start_ms)
            value = {"airline": "JetBlue Airways", "departures": count, "delay_minutes": 2 * count}
            driver.pipe("delays", f"{origin}|B6|{hour}:00Z", value, timestamp_ms=start_ms)
        yield driver.client


def rows(demo: httpx.Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    answer = demo.post("/v1/sql", json=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def of(heading: str) -> dict[str, Any]:
    return next(asked for each, asked in REQUESTS if each == heading)


@pytest.mark.parametrize(("heading", "asked"), REQUESTS)
def test_each_recipe_has_rows(demo: httpx.Client, heading: str, asked: dict[str, Any]) -> None:
    assert rows(demo, asked), heading


def test_the_page_has_the_recipes_that_dashboards_need() -> None:
    assert len({heading for heading, _ in REQUESTS}) >= 10


def test_the_top_is_that_of_the_latest_departures(demo: httpx.Client, departures: Sequence[dict[str, Any]]) -> None:
    latest = {each["tailnum"] or data.UNKNOWN_AIRCRAFT: each["dep_delay"] for each in departures}
    delays = sorted((delay for delay in latest.values() if delay is not None), reverse=True)
    assert [row["delay"] for row in rows(demo, of("Top 20"))] == delays[:20]


def test_an_hour_without_departures_is_zero(demo: httpx.Client, departures: Sequence[dict[str, Any]]) -> None:
    filled = [asked for heading, asked in REQUESTS if heading == "Time series of windows"][1]
    counts = Counter(each["scheduled"][:13] for each in departures if each["origin"] == "JFK")
    found = {row["hour"][:13].replace(" ", "T"): row["departures"] for row in rows(demo, filled)}
    assert len(found) == 25
    assert found == {hour: counts[hour] for hour in found}
    assert 0 in found.values()


def test_the_change_is_that_against_the_window_before(demo: httpx.Client) -> None:
    found = rows(demo, of("Change against the previous window"))
    assert found[0]["change"] is None
    pairs = pairwise(found)
    assert all(later["change"] == later["departures"] - before["departures"] for before, later in pairs)


def test_recipes_with_keys_or_times_read_part_of_a_table(demo: httpx.Client) -> None:
    for heading in ("Time series of windows", "The last minutes", "Change against the previous window"):
        asked = of(heading)
        (plan,) = rows(demo, {**asked, "sql": f"explain {asked['sql']}"})
        assert "start from" in plan["reads"], heading
    live = "explain select key from delay_windows where start > now() - interval 60 minutes"
    (plan,) = rows(demo, {"sql": live})
    assert "start from" in plan["reads"]
