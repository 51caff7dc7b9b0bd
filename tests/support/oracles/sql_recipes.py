"""The rows of docs/sql-recipes.md, from the demo's records in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

from flights import data

Value = Mapping[str, Any]
Rows = list[dict[str, Any]]
HOUR_MS, REST_MS = 3_600_000, 6 * 3_600_000
FIRST_MS = 1_356_998_400_000  # 2013-01-01T00:00Z
NOON_MS, LAST_MINUTES_MS = FIRST_MS + 12 * HOUR_MS + HOUR_MS // 2, FIRST_MS + 14 * HOUR_MS


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def hour_ms(key: str) -> int:
    """Return the hour of a key of `delays`."""
    return int(datetime.fromisoformat(key.rpartition("|")[2]).timestamp() * 1000)


def rounded(amount: int, count: int) -> float:
    return float((Decimal(amount) / Decimal(count)).quantize(Decimal("0.1"), ROUND_HALF_UP))


@dataclass
class Records:
    """Departures with their times, in order, and the values of tables by key."""

    departures: Sequence[tuple[int, Value]]
    airlines: Mapping[str, Value]
    planes: Mapping[str, Value]
    airports: Mapping[str, Value]
    weather: Sequence[tuple[int, Value]]

    @cached_property
    def latest(self) -> dict[str, tuple[int, Value]]:
        """Tail number → time and value of its latest departure."""
        return {value["tailnum"] or data.UNKNOWN_AIRCRAFT: (at, value) for at, value in self.departures}

    @cached_property
    def windows(self) -> Counter[tuple[str, int]]:
        """Airport and start of an hour → departures."""
        return Counter((value["origin"], at // HOUR_MS * HOUR_MS) for at, value in self.departures)

    @cached_property
    def delays(self) -> dict[str, dict[str, Any]]:
        """``origin|carrier|hour`` → the value of `delays`."""
        found: dict[str, dict[str, Any]] = {}
        for at, value in self.departures:
            key = f"{value['origin']}|{value['carrier']}|{iso(at // HOUR_MS * HOUR_MS)[:16]}Z"
            airline = self.airlines[value["carrier"]]["name"]
            row = found.setdefault(key, {"airline": airline, "departures": 0, "delay_minutes": 0})
            row["departures"] += 1
            row["delay_minutes"] += value["dep_delay"] or 0
        return found

    @cached_property
    def sessions(self) -> list[tuple[str, int, int, int]]:
        """Tail number, first and last departure, and legs, of departures at most six hours apart. The longest first."""
        flown: dict[str, list[int]] = defaultdict(list)
        for at, value in self.departures:
            if value["tailnum"] is not None and value["dep_delay"] is not None:
                flown[value["tailnum"]].append(at)
        found = []
        for tail, unsorted in flown.items():
            times = sorted(unsorted)
            ends = [n for n, (one, other) in enumerate(pairwise(times), 1) if other - one > REST_MS]
            for first, end in zip([0, *ends], [*ends, len(times)], strict=True):
                found.append((tail, times[first], times[end - 1], end - first))
        return sorted(found, key=lambda each: (each[1] - each[2], each[1]))


def top(records: Records) -> Rows:
    rows = [{"tailnum": k, "dest": v["dest"], "delay": v["dep_delay"]} for k, (_, v) in records.latest.items()]
    return sorted(rows, key=lambda row: (row["delay"] is None, -(row["delay"] or 0), row["tailnum"]))[:20]


def late_of_united(records: Records) -> Rows:
    late = [
        {"tailnum": tail, "dest": value["dest"], "delay": value["dep_delay"]}
        for tail, (_, value) in records.latest.items()
        if value["carrier"] == "UA" and (value["dep_delay"] or 0) > 60
    ]
    return sorted(late, key=lambda row: (-row["delay"], row["tailnum"]))


def by_prefix(records: Records) -> Rows:
    delays = sorted(records.delays.items())
    return [{"key": key, "departures": str(row["departures"])} for key, row in delays if key.startswith("JFK|")]


def by_airline(records: Records) -> Rows:
    departures, minutes = Counter[str](), Counter[str]()
    for row in records.delays.values():
        departures[row["airline"]] += row["departures"]
        minutes[row["airline"]] += row["delay_minutes"]
    return [
        {"airline": name, "departures": count, "minutes": rounded(minutes[name], count)}
        for name, count in sorted(departures.items(), key=lambda each: (-each[1], each[0]))
    ]


def by_manufacturer(records: Records) -> Rows:
    aircraft, seats = Counter[str](), Counter[str]()
    for tail in records.latest.keys() & records.planes.keys():
        plane = records.planes[tail]
        aircraft[plane["manufacturer"]] += 1
        seats[plane["manufacturer"]] += plane["seats"]
    return [
        {"manufacturer": name, "aircraft": aircraft[name], "seats": count}
        for name, count in sorted(seats.items(), key=lambda each: (-each[1], each[0]))
    ]


def hours(records: Records) -> Rows:
    return [
        {"start": iso(start), "airport": airport, "departures": count}
        for (airport, start), count in sorted(records.windows.items(), key=lambda each: each[0][::-1])
        if airport in ("JFK", "LGA") and FIRST_MS <= start < FIRST_MS + 48 * HOUR_MS
    ]


def filled_hours(records: Records) -> Rows:
    starts = [FIRST_MS + number * HOUR_MS for number in range(25)]
    return [{"hour": iso(start), "departures": records.windows["JFK", start]} for start in starts]


def last_minutes(records: Records) -> Rows:
    found = Counter[str]()
    for (airport, start), count in records.windows.items():
        if LAST_MINUTES_MS - 3 * HOUR_MS < start <= LAST_MINUTES_MS:
            found[airport] += count
    return [{"airport": airport, "departures": count} for airport, count in sorted(found.items())]


def weather_at_noon(records: Records) -> Rows:
    valid = {value["origin"]: (at, value) for at, value in sorted(records.weather, key=_time) if at <= NOON_MS}
    return [{"airport": key, "temp": value["temp"], "since": iso(at)} for key, (at, value) in sorted(valid.items())]


def weather_versions(records: Records) -> Rows:
    versions = sorted(((at, value) for at, value in records.weather if value["origin"] == "JFK"), key=_time)
    ends = [iso(at) for at, _ in versions[1:]]
    return [
        {"since": iso(at), "valid_to": end, "temp": value["temp"]}
        for (at, value), end in zip(versions, [*ends, None], strict=True)
    ]


def percentiles(records: Records) -> Rows:
    import pandas as pd  # type: ignore[import-untyped]

    delays: dict[str, list[int]] = defaultdict(list)
    for _, value in records.latest.values():
        if value["dep_delay"] is not None:
            delays[value["origin"]].append(value["dep_delay"])
    of_each = {airport: pd.Series(found).quantile([0.5, 0.9, 0.99]).tolist() for airport, found in delays.items()}
    return [{"airport": airport, "p50_p90_p99": of_each[airport]} for airport in sorted(of_each)]


def changes(records: Records) -> Rows:
    counts = sorted((start, count) for (airport, start), count in records.windows.items() if airport == "JFK")
    before = [None, *(count for _, count in counts)]
    return [
        {"start": iso(start), "departures": count, "change": None if last is None else count - last}
        for (start, count), last in zip(counts, before[:-1], strict=True)
    ]


def destinations(records: Records) -> Rows:
    found: dict[str, set[str]] = defaultdict(set)
    for _, value in records.latest.values():
        found[value["carrier"]].add(value["dest"])
    rows = [{"carrier": carrier, "destinations": len(names)} for carrier, names in found.items()]
    return sorted(rows, key=lambda row: (-row["destinations"], row["carrier"]))


def on_the_map(records: Records) -> Rows:
    return [
        {"faa": faa, "name": value["name"], "lat": value["lat"], "lon": value["lon"]}
        for faa, value in sorted(records.airports.items())
        if 40 <= value["lat"] <= 41 and -75 <= value["lon"] <= -73
    ]


def shares(records: Records) -> Rows:
    found = Counter(value["origin"] for _, value in records.departures)
    return [
        {"airport": airport, "departures": count, "percent": rounded(100 * count, found.total())}
        for airport, count in found.most_common()
    ]


def longest_sessions(records: Records) -> Rows:
    longest: dict[str, dict[str, Any]] = {}
    for tail, first, last, legs in records.sessions:
        minutes = (last - first) // 60_000
        row = {"tailnum": tail, "start": iso(first), "end": iso(last), "minutes": minutes, "legs": legs}
        longest.setdefault(tail, row)
    return sorted(longest.values(), key=lambda row: (-row["minutes"], row["tailnum"]))[:20]


ROWS: Mapping[str, Sequence[Callable[[Records], Rows]]] = {
    "Top 20": [top],
    "Filter by a member": [late_of_united],
    "Keys by prefix": [by_prefix],
    "Group by": [by_airline],
    "Join two stores at one moment": [by_manufacturer],
    "Time series of windows": [hours, filled_hours],
    "The last minutes": [last_minutes],
    "Versions as of a time": [weather_at_noon, weather_versions],
    "Percentiles": [percentiles],
    "Change against the previous window": [changes],
    "Distinct counts": [destinations],
    "A box on the map": [on_the_map],
    "Share of a total": [shares],
    "The longest session of each key": [longest_sessions],
}
"""The rows of each request below a heading of the page, in order. Time or chance picks the rows of other headings."""


def _time(each: tuple[int, Value]) -> int:
    return each[0]
