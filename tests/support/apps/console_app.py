"""The application of the console's tests: flights, in a store of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.processing.store_views import SessionView, StoreView, WindowView
from stateline.worker import InputRecord

HOUR_MS, QUIET_MS = 3_600_000, 1_200_000
START_MS = 1_362_000_000_000 - 1_362_000_000_000 % HOUR_MS  # a full hour in 2013
PARTITIONS = 2
HOSTILE_KEY = "<img src=x onerror=document.title='hit'>"
LARGE = 2**53 + 1  # the first integer that JavaScript's numbers round
AIRPORTS = ("EWR", "JFK", "LGA")

app = App("flights")
flights = app.topic("flights", key=serdes.string, value=serdes.json)
departures = app.topic("departures", key=serdes.string, value=serdes.json)
status = app.topic("airport-status", key=serdes.string, value=serdes.json)

app.table(flights, store="aircraft")
app.table(status, store="airports", versioned=timedelta(days=30))

_common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
hourly = app.store(stores.window("hourly", size=timedelta(hours=1), retention=timedelta(days=30), **_common))
rushes = app.store(stores.session("rushes", timestamped=True, retention=timedelta(days=30), **_common))
distances = app.store(stores.key_value("distances", key=serdes.int64, value=serdes.int64))
routes = app.store(stores.key_value("routes", key=serdes.json, value=serdes.json))


@app.process(departures, stores=[hourly, rushes, distances, routes])
def depart(
    record: InputRecord, hourly: WindowView, rushes: SessionView, distances: StoreView, routes: StoreView
) -> None:
    """Count what leaves by hour, and by rush: departures with less than twenty minutes between two."""
    at = record.timestamp_ms
    start = at - at % HOUR_MS
    seen = hourly.get(record.key, start) or {"flights": 0, "delay": {"total": 0}}
    delay = seen["delay"]["total"] + record.value["delay"]
    hourly.put(record.key, {"flights": seen["flights"] + 1, "delay": {"total": delay}}, start)
    _count_rush(rushes, record.key, at)
    distances.put(record.value["number"], LARGE)
    routes.put([record.key, record.value["to"]], record.value["number"])


def _count_rush(rushes: SessionView, key: str, at: int) -> None:
    first, last, count = at, at, 1
    for found in rushes.find_sessions(key, at - QUIET_MS, at + QUIET_MS):
        first, last, count = min(first, found.start_ms), max(last, found.end_ms), count + found.value
        rushes.remove(key, found.start_ms, found.end_ms)
    rushes.put(key, first, last, count)


def aircraft_records(count: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Newest states of so many aircraft."""
    for number in range(count):
        yield f"N{number:03}".encode(), _json({"seats": 50 + number, "carrier": "UA"}), START_MS + number


def departure_records(count: int, first: int = 0) -> Iterator[tuple[bytes, bytes, int]]:
    """Departures of three airports in turn, five minutes apart and with a gap now and then."""
    for number in range(first, first + count):
        at = START_MS + number * 300_000 + number // 7 * 1_200_000
        value = {"number": number, "delay": number * 7 % 40 - 5, "to": ("SFO", "ORD")[number % 2]}
        yield AIRPORTS[number % 3].encode(), _json(value), at


def status_records(key: str = "JFK") -> list[tuple[bytes, bytes, int]]:
    """Three states of one airport, an hour apart."""
    states = ("open", "snow", "open again")
    return [(key.encode(), _json({"state": s, "runways": 4 - i}), START_MS + i * HOUR_MS) for i, s in enumerate(states)]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
