"""Grafana's dashboard of the demo's stores: each panel's statement, run over the demo's own stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from flights import data, oracle
from flights.application import app
from flights.loader import DEPARTURE_PARTITIONS, DEPARTURES, TABLES
from stateline.testing import Record, TestDriver
from support.http.grafana import asked, sent

COUNT = 3_000
HOUR_MS = 3_600_000
DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "deploy/grafana/dashboards/flights.json").read_text(encoding="utf-8")
)
PANELS: dict[str, Any] = {panel["title"]: panel for panel in DASHBOARD["panels"]}
AIRPORTS = ["JFK", "LGA"]
FROM_MS, TO_MS = (int(datetime(2013, 1, day, 12, tzinfo=UTC).timestamp() * 1000) for day in (1, 3))
DAYS = [("N725MQ", FROM_MS + 5 * HOUR_MS, 3, 412), ("N14228", FROM_MS - 5 * HOUR_MS, 2, 300)]


@pytest.fixture(scope="module")
def answers(departures: list[data.SourceRecord]) -> oracle.Answers:
    return oracle.expected(COUNT)


@pytest.fixture(scope="module")
def driver(departures: list[data.SourceRecord], answers: oracle.Answers) -> Iterator[TestDriver]:
    """The application after the first departures, with the results of its pipelines as the oracle has them."""
    partitions = {DEPARTURES: DEPARTURE_PARTITIONS, **TABLES}
    with TestDriver(app, partitions=partitions, config={"sql.timeout.ms": 60_000}) as driver:
        weather = [each for each in data.table("weather") if each.timestamp_ms < TO_MS + 24 * HOUR_MS]
        read = {"airlines": data.table("airlines"), "weather": weather}
        for topic, records in {**read, DEPARTURES: departures[:COUNT]}.items():
            driver.pipe_all(topic, [Record(each[0].decode(), orjson.loads(each[1]), each[2]) for each in records])
        hours = answers.delay_windows.items()
        driver.pipe_all("delay_windows", [Record([key, start], value, start) for (key, start), value in hours])
        days = [([key, at, at + HOUR_MS], {"legs": legs, "minutes": minutes}, at) for key, at, legs, minutes in DAYS]
        driver.pipe_all("aircraft_days", [Record(*day) for day in days])
        yield driver


def body_of(title: str, airports: list[str] = AIRPORTS) -> str:
    (target,) = PANELS[title]["targets"]
    return sent(target["url_options"]["data"], {"airport": airports}, FROM_MS, TO_MS)


def rows_of(driver: TestDriver, title: str, airports: list[str] = AIRPORTS) -> list[dict[str, Any]]:
    (target,) = PANELS[title]["targets"]
    return asked(driver.client, target, body_of(title, airports))


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_has_rows_with_its_columns_of_their_types(driver: TestDriver, title: str) -> None:
    (target,) = PANELS[title]["targets"]
    rows = rows_of(driver, title)
    assert rows
    types = {column["selector"]: column["type"] for column in target["columns"]}
    for row in rows:
        assert list(row) == list(types)
        for name, value in row.items():
            match types[name]:
                case "timestamp":
                    assert datetime.fromisoformat(value).tzinfo == UTC
                case "number":
                    assert value is None or isinstance(value, int | float)
                case _:
                    assert isinstance(value, str)


def test_the_airports_are_the_chosen_ones_with_the_totals_of_the_csv_files(
    driver: TestDriver, answers: oracle.Answers
) -> None:
    totals = {key: answers.airport_totals[key] for key in AIRPORTS}
    assert rows_of(driver, "Airports now") == [
        {
            "airport": key,
            "departures": each["departures"],
            "cancelled": each["cancelled"],
            "minutes_late": each["delay_minutes"],
            "worst": each["worst_delay"],
        }
        for key, each in totals.items()
    ]


def test_the_hours_are_those_of_the_time_range_in_order(driver: TestDriver, answers: oracle.Answers) -> None:
    found = [
        (int(datetime.fromisoformat(row["start"]).timestamp() * 1000), row["airport"], row["departures"])
        for row in rows_of(driver, "Departures an hour")
    ]
    wanted = [
        (start, key, value["departures"])
        for (key, start), value in answers.delay_windows.items()
        if key in AIRPORTS and FROM_MS <= start < TO_MS
    ]
    assert found == sorted(wanted)
    assert len({start for start, _, _ in found}) > 20


def test_the_weather_is_that_of_the_end_of_the_range(driver: TestDriver) -> None:
    found = rows_of(driver, "Weather at the end of the range")
    assert [(row["airport"], row["measured"]) for row in found] == [
        (key, "2013-01-03T12:00:00+00:00") for key in AIRPORTS
    ]


def test_days_that_began_outside_the_range_are_left_out(driver: TestDriver) -> None:
    (day,) = rows_of(driver, "Longest days of aircraft")
    assert (day["aircraft"], day["legs"], day["minutes"]) == ("N725MQ", 3, 412)


def test_the_variable_offers_every_airport(driver: TestDriver) -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    query = variable["query"]["infinityQuery"]
    assert [row["airport"] for row in asked(driver.client, query, query["url_options"]["data"])] == [
        "EWR",
        "JFK",
        "LGA",
    ]


def test_a_value_of_the_variable_is_data_whatever_it_holds(driver: TestDriver) -> None:
    """`${airport:json}` of a variable with several values is an array, so a single one is quoted as well."""
    (variable,) = DASHBOARD["templating"]["list"]
    assert variable["multi"]
    assert variable["current"]["value"] == ["$__all"]
    for hostile in ('JFK"], "sql": "select 1"', "JFK') or true --", "a\\", "$1", '"'):
        assert rows_of(driver, "Airports now", [hostile]) == []


@pytest.mark.parametrize(
    ("title", "reads"),
    [
        ("Airports now", ["2 keys: JFK, LGA"]),
        ("Departures an hour", ["2 keys: JFK, LGA, start from 2013-01-01T12:00:00Z to 2013-01-03T12:00:00Z"]),
        ("Weather at the end of the range", ["2 keys: JFK, LGA"]),
        ("Longest days of aircraft", ["all keys, start from 2013-01-01T12:00:00Z to 2013-01-03T12:00:00Z"]),
    ],
)
def test_a_panel_reads_the_chosen_keys_or_the_time_range_alone(
    driver: TestDriver, title: str, reads: list[str]
) -> None:
    body = json.loads(body_of(title))
    plan = driver.client.post("/v1/sql", json={**body, "sql": f"explain {body['sql']}"})
    assert plan.status_code == 200, plan.text
    assert [row["reads"] for row in plan.json()] == reads
