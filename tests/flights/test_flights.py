"""The demo's application on its first real departures, in the test driver: what it keeps is what the oracle says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest

from flights import data, oracle
from flights.application import app
from flights.loader import DEPARTURE_PARTITIONS, DEPARTURES, TABLES, create_topics
from stateline.log.embedded import EmbeddedLog
from stateline.model.internal_topics import required_topics
from stateline.testing import Record, TestDriver
from support.run.length import long_or_short

COUNT = 3_000
WEATHER_UNTIL = long_or_short(datetime(2014, 2, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC))


_UNTIL_MS = int(WEATHER_UNTIL.timestamp()) * 1000  # other tables have no later times


def typed(records: Iterable[data.SourceRecord]) -> list[Record]:
    return [Record(key.decode(), orjson.loads(value), timestamp_ms) for key, value, timestamp_ms in records]


@pytest.fixture(scope="module")
def driver(departures: list[data.SourceRecord]) -> Iterator[TestDriver]:
    """The application after the first departures."""
    with TestDriver(app, partitions={DEPARTURES: DEPARTURE_PARTITIONS, **TABLES}) as driver:
        for name in TABLES:
            driver.pipe_all(name, typed(each for each in data.table(name) if each.timestamp_ms < _UNTIL_MS))
        driver.pipe_all(DEPARTURES, typed(departures[:COUNT]))
        yield driver


def kept(driver: TestDriver, store: str) -> dict[str, object]:
    return {entry.key: entry.value for entry in driver.store(store).all(isolation_level="read_committed")}


def test_the_latest_departure_of_every_aircraft_and_the_totals_of_every_airport_are_kept(driver: TestDriver) -> None:
    expected = oracle.expected(COUNT)
    assert kept(driver, "aircraft") == expected.aircraft
    assert kept(driver, "airport_totals") == expected.airport_totals
    times = {entry.key: entry.timestamp for entry in driver.store("aircraft").all()}
    assert times == expected.aircraft_times


def test_the_keys_that_the_api_shows_are_there(driver: TestDriver) -> None:
    by_spark = {"delays", "delay_windows", "aircraft_days"}
    assert set(app.examples) == set(app.topology().all_stores)
    for store, key in app.examples.items():
        if store not in by_spark:
            assert driver.client.get(f"/v1/stores/{store}/keys/{quote(key, safe='')}").status_code == 200, store


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_is_kept(driver: TestDriver, name: str) -> None:
    expected = oracle.expected_table(name)
    if name == "weather":
        expected = {k: v for k, v in expected.items() if datetime.fromisoformat(v["time_hour"]) < WEATHER_UNTIL}
    assert kept(driver, name) == expected


def test_the_weather_of_every_hour_is_a_version_under_its_airport(driver: TestDriver) -> None:
    versions = driver.store("weather_as_of")
    for origin, all_year in oracle.expected_weather().items():
        wanted = [each for each in all_year if each.valid_from < _UNTIL_MS]
        wanted[-1] = wanted[-1]._replace(valid_to=None)
        found = versions.versions(origin)
        assert [(each.value, each.timestamp, each.valid_to) for each in found] == [tuple(each) for each in wanted], (
            origin
        )


def test_the_app_waits_for_nothing_but_the_topics_that_the_demo_loads(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    create_topics(log)
    with closing(log.admin()) as admin:
        assert set(required_topics(app.topology())) == set(admin.topics())
