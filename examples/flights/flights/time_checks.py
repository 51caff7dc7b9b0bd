"""Compares windows, sessions and versions with what the oracle says, and counts, as `flights.checks` does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from flights.checks import Tally, at_least
from flights.oracle import Answers, Value
from flights.oracle_times import Version
from stateline.client import Client, Position
from stateline.client.requests import TimeArguments
from stateline.client.terms import TermArguments

_HOUR_MS = 3_600_000
_LIMIT = 10_000
_EVERY = 20  # of so many aircraft one is asked for by a request of its own
_ALL_TIMES: TimeArguments = {"time_from": 0, "time_to": 2**62, "order": "asc", "page_size": _LIMIT}

Bounds = Mapping[str, Position]
"""Store → the position that its answers must reflect."""


def check_times(
    client: Client, bounds: Bounds, expected: Answers, weather: Mapping[str, Sequence[Version]], tally: Tally
) -> None:
    """Every window of `delay_windows`, every session of `aircraft_days`, every version of `weather_as_of`."""
    check_times_by_query(client, bounds, expected, weather, tally)
    with tally.asking("a snapshot of aircraft_days"):
        check_sessions(client, expected.aircraft_days, tally)


def check_times_by_query(
    client: Client, bounds: Bounds, expected: Answers, weather: Mapping[str, Sequence[Version]], tally: Tally
) -> None:
    """The same without a snapshot: of the sessions those of some aircraft."""
    with tally.asking("delay_windows"):
        check_windows(client, at_least(bounds["delay_windows"]), expected.delay_windows, tally)
    check_sessions_of_some(client, at_least(bounds["aircraft_days"]), expected.aircraft_days, tally)
    check_versions(client, at_least(bounds["weather_as_of"]), weather, tally)
    check_weather_at_departures(client, expected.aircraft, weather, tally)


def check_windows(client: Client, terms: TermArguments, windows: Mapping[tuple[str, int], Value], tally: Tally) -> None:
    """Exactly these windows, an hour long each."""
    left = dict(windows)
    for window in client.store("delay_windows", **terms).all_windows(**_ALL_TIMES):
        key, start = window.key, window.start
        expected = (start + _HOUR_MS, left.pop((key, start), None))
        tally.check(f"delay_windows {key} {start}", (window.end, window.value), expected)
    tally.check("windows that are missing", sorted(left), [])


def check_sessions(client: Client, sessions: Mapping[tuple[str, int, int], Value], tally: Tally) -> None:
    """Exactly these sessions, in a snapshot: there are too many to ask for each aircraft's by themselves."""
    left = dict(sessions)
    with client.snapshot(["aircraft_days"]) as snapshot:
        for partition in snapshot.details.stores["aircraft_days"]:
            for batch in snapshot.read("aircraft_days", partition, columns=["key", "start", "end", "value"]):
                for tail, start, end, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    expected = left.pop((tail, start, end), None)
                    tally.check(f"aircraft_days {tail} {start} to {end}", orjson.loads(value), expected)
    tally.check("sessions that are missing", sorted(left), [])


def check_sessions_of_some(
    client: Client, terms: TermArguments, sessions: Mapping[tuple[str, int, int], Value], tally: Tally
) -> None:
    """The sessions of some aircraft, by a query each."""
    by_tail: dict[str, list[tuple[int, int, Value]]] = {}
    for (tail, start, end), value in sessions.items():
        by_tail.setdefault(tail, []).append((start, end, value))
    for tail in sorted(by_tail)[::_EVERY]:
        with tally.asking(f"aircraft_days of {tail}"):
            answered = client.store("aircraft_days", **terms).sessions(tail, **_ALL_TIMES)
            days = [(day.start, day.end, day.value) for day in answered]
            tally.check(f"aircraft_days of {tail}", days, sorted(by_tail[tail], key=lambda day: day[0]))


def check_versions(
    client: Client, terms: TermArguments, weather: Mapping[str, Sequence[Version]], tally: Tally
) -> None:
    """Exactly these versions of each airport's weather."""
    for origin, versions in weather.items():
        with tally.asking(f"versions of {origin}"):
            entries = client.store("weather_as_of", **terms).versions(origin, **_ALL_TIMES)
            answered = [Version(entry.value, entry.timestamp, entry.valid_to) for entry in entries]
            tally.check(f"number of versions of {origin}", len(answered), len(versions))
            for one, expected in zip(answered, versions, strict=False):
                tally.check(f"weather_as_of {origin} {one.valid_from}", one, expected)


def check_weather_at_departures(
    client: Client, latest: Mapping[str, Value], weather: Mapping[str, Sequence[Version]], tally: Tally
) -> None:
    """The weather when the latest flight of some aircraft left."""
    for tail in sorted(latest)[::_EVERY]:
        origin, left = latest[tail]["origin"], left_at_ms(latest[tail])
        versions = weather[origin]
        valid = bisect_right(versions, left, key=lambda version: version.valid_from)
        expected = versions[valid - 1].value if valid else None
        with tally.asking(f"weather_as_of {origin} as of {left}"):
            answer = client.store("weather_as_of").get(origin, as_of=left, isolation_level="read_committed")
            tally.check(f"weather_as_of {origin} as of {left}", answer.value, expected)


def left_at_ms(departure: Mapping[str, Any]) -> int:
    """When a flight left: as scheduled, and its delay later. One that was cancelled: as scheduled."""
    scheduled = int(datetime.fromisoformat(departure["scheduled"]).timestamp())
    return scheduled * 1000 + int(departure["dep_delay"] or 0) * 60_000
