"""What the oracle says of windows, sessions and versions, and of the ranking: plain dicts over plain rows.

As `flights.oracle`, it shares nothing with the application. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

Value = dict[str, Any]

_HOUR_MS = 3_600_000
_REST_MS = 6 * _HOUR_MS
_OCTOBER_MS = 1_380_585_600_000  # 2013-10-01T00:00Z
_LEAST_FLIGHTS, _PLACES = 100, 20


class Flight(NamedTuple):
    """What these answers need of a departure. None is what the file has no number for."""

    time_ms: int
    tail: str | None
    origin: str
    carrier: str
    departure_delay: float | None
    arrival_delay: float | None
    air_minutes: float | None


class Version(NamedTuple):
    """A value and from when until when it is valid; `valid_to` is None of the latest."""

    value: Value
    valid_from: int
    valid_to: int | None


def delay_windows(flights: Iterable[Flight]) -> dict[tuple[str, int], Value]:
    """Origin and start of the hour → delays."""
    windows: dict[tuple[str, int], Value] = {}
    names = ("departures", "left", "departure_delay_minutes", "arrived", "arrival_delay_minutes")
    for flight in flights:
        key = flight.origin, flight.time_ms // _HOUR_MS * _HOUR_MS
        window = windows.setdefault(key, {"origin": flight.origin, **dict.fromkeys(names, 0)})
        window["departures"] += 1
        if flight.departure_delay is not None:
            window["left"] += 1
            window["departure_delay_minutes"] += flight.departure_delay
        if flight.arrival_delay is not None:
            window["arrived"] += 1
            window["arrival_delay_minutes"] += flight.arrival_delay
    return windows


def aircraft_days(flights: Iterable[Flight]) -> dict[tuple[str, int, int], Value]:
    """Tail number, first and last departure → legs and minutes, since October.

    A rest is more than six hours between departures.
    """
    legs: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for flight in flights:
        if flight.tail is None or flight.departure_delay is None:
            continue  # not known, or cancelled
        if flight.time_ms >= _OCTOBER_MS:
            legs[flight.tail].append((flight.time_ms, flight.air_minutes or 0))
    days: dict[tuple[str, int, int], Value] = {}
    for tail, flown in legs.items():
        flown.sort()
        rests = [at for at, (one, other) in enumerate(pairwise(flown), 1) if other[0] - one[0] > _REST_MS]
        for first, end in zip([0, *rests], [*rests, len(flown)], strict=True):
            day = flown[first:end]
            minutes = sum(minutes for _, minutes in day)
            days[tail, day[0][0], day[-1][0]] = {"tailnum": tail, "legs": len(day), "minutes": minutes}
    return days


def versions(values: Iterable[tuple[str, int, Value]]) -> dict[str, list[Version]]:
    """Key → versions, the oldest first, of (key, from when, value)."""
    by_key: dict[str, list[tuple[int, Value]]] = defaultdict(list)
    for key, valid_from, value in values:
        by_key[key].append((valid_from, value))
    return {key: _until_the_next(sorted(of_key, key=lambda each: each[0])) for key, of_key in by_key.items()}


def _until_the_next(of_key: list[tuple[int, Value]]) -> list[Version]:
    ends = [valid_from for valid_from, _ in of_key[1:]]
    return [Version(value, start, end) for (start, value), end in zip(of_key, [*ends, None], strict=True)]


def ranking(flights: Iterable[Flight], airlines: Mapping[str, str], airports: Mapping[str, str]) -> list[Value]:
    """The airlines and airports with the longest mean delay, of those with a hundred flights that left."""
    delays: dict[tuple[str, str], list[float]] = defaultdict(list)
    for flight in flights:
        if flight.departure_delay is not None:
            delays[flight.origin, flight.carrier].append(flight.departure_delay)
    many = [(pair, sum(of), len(of)) for pair, of in delays.items() if len(of) >= _LEAST_FLIGHTS]
    many.sort(key=lambda each: (-each[1] / each[2], each[0]))
    return [
        {
            "airport": origin,
            "airport_name": airports.get(origin),
            "carrier": carrier,
            "airline": airlines.get(carrier),
            "flights": flights,
            "minutes": minutes,
            "mean": minutes / flights,
        }
        for (origin, carrier), minutes, flights in many[:_PLACES]
    ]
