"""What the queries of HTTP should find in the stores of `matrix_app`, as JSON, out of plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from support.apps.kinds_app import HISTORY_MS, SEGMENT_MS, SIZE_MS
from support.apps.matrix_app import PartitionOracle

Json: TypeAlias = dict[str, Any]

KEY_VALUE, WINDOW, SESSION, VERSIONED = (
    ("plain", "stamped", "latest"),
    ("counts", "newest", "each"),
    ("visits", "stamped-visits"),
    ("history", "table"),
)


class Seen:
    """One store as these partitions have it. `None` is an open end of time; `limit` and order are the caller's."""

    def __init__(self, store: str, oracles: Mapping[int, PartitionOracle]) -> None:
        self._store = store
        self._oracles = oracles

    def pairs(self) -> list[Json]:
        """Of a key-value store, in key order."""
        found = [row for oracle in self._oracles.values() for row in oracle.entries[self._store].rows.items()]
        return [{"key": key, "value": value, "timestamp": at} for key, (value, at) in sorted(found)]

    def windows(self, key: str | None, first: int | None = None, last: int | None = None) -> list[Json]:
        """By start; those of all keys by segment, key and start."""
        rows = [row for row in self._contents() if key is None or row[0] == key]
        rows = [row for row in rows if (first is None or row[1] >= first) and (last is None or row[1] <= last)]
        if key is None:
            rows.sort(key=lambda row: (row[1] // SEGMENT_MS, row[0], row[1]))
        return [
            ({"key": name} if key is None else {}) | {"start": start, "end": start + SIZE_MS} | _shown(stored)
            for name, start, *stored in rows
        ]

    def sessions(self, key: str | None, first: int | None = None, last: int | None = None) -> list[Json]:
        """Of a key, by end and start; those of all keys that end in that time, by key, end and start."""
        rows = [row for row in self._contents() if key is None or row[0] == key]
        at = 1 if key is not None else 2
        rows = [row for row in rows if (first is None or row[2] >= first) and (last is None or row[at] <= last)]
        if key is None:
            rows.sort(key=lambda row: (row[0], row[2], row[1]))
        return [
            ({"key": name} if key is None else {}) | {"start": start, "end": end} | _shown(stored)
            for name, start, end, *stored in rows
        ]

    def versions(self, key: str, first: int | None = None, last: int | None = None) -> list[Json]:
        """Of a key, the newest first; only the latest is seen beyond the history."""
        found = []
        for value, at, end, floor in self._versions(key):
            since = floor if first is None else max(first, floor)
            if end is None:
                inside = last is None or (at <= last and (first is None or first <= last))
            else:
                inside = end > since and (last is None or (at <= last and since <= last))
            if inside:
                found.append({"value": value, "timestamp": at, "valid_to": end})
        return found

    def as_of(self, key: str, time: int | None) -> Json | None:
        """What was valid then; the latest for None."""
        for value, at, end, floor in self._versions(key):
            is_latest = end is None and (time is None or at <= time)
            if is_latest or (time is not None and time >= floor and at <= time and (end is None or time < end)):
                return {"value": value, "timestamp": at, "valid_to": end}
        return None

    def versions_of_keys(self, time: int | None) -> list[Json]:
        """What was valid then of every key that had anything, in key order; the latest for None."""
        keys = {key for oracle in self._oracles.values() for key in oracle.models[self._store].by_key}
        return [{"key": key} | row for key in sorted(keys) if (row := self.as_of(key, time)) is not None]

    def _contents(self) -> list[Any]:
        return [row for oracle in self._oracles.values() for row in oracle.models[self._store].contents()]

    def _versions(self, key: str) -> list[tuple[Any, int, int | None, int]]:
        """(value, timestamp, end, oldest time of the history), the newest first, without deletes."""
        found = []
        for oracle in self._oracles.values():
            model = oracle.models[self._store]
            held = sorted(model.by_key.get(key, {}).items(), reverse=True)
            ends = [None, *(timestamp for timestamp, _ in held)]
            floor = model.stream_time_ms - HISTORY_MS
            found += [
                (value, at, end, floor) for (at, value), end in zip(held, ends, strict=False) if value is not None
            ]
        return found


def _shown(stored: list[Any]) -> Json:
    value, timestamp = (*stored, None)[:2]
    return {"value": value, "timestamp": timestamp}


@dataclass(frozen=True)
class Case:
    """A query as a URL (below the store; `{key}` is one) and as a body, and what it finds."""

    path: str
    body: Json
    finds: Callable[[Seen, str], Any]
    params: Json = field(default_factory=dict)

    def __str__(self) -> str:
        shown = "&".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.path.replace('{key}', 'k')}{'?' if shown else ''}{shown}"


def found(key: str, row: Json | None, *, versioned: bool) -> Json:
    """The members of an answer of one key."""
    absent = {"value": None, "timestamp": None} | ({"valid_to": None} if versioned else {})
    return {"found": row is not None, "key": key} | (row or absent)


def _pair(seen: Seen, key: str) -> Json:
    return found(key, next((row for row in seen.pairs() if row["key"] == key), None), versioned=False)


def _scan(kind: str, path: str, finds: Callable[..., list[Json]], **params: Any) -> Case:
    """`finds(seen, key, from, to)` in its natural order; `order` and `limit` of the parameters are done here."""
    named = {name.rstrip("_"): value for name, value in params.items()}
    natural = "desc" if kind == "versions" else "asc"

    def entries(seen: Seen, key: str) -> list[Json]:
        rows = finds(seen, key, named.get("from"), named.get("to"))
        ordered = rows if named.get("order", natural) == natural else rows[::-1]
        return ordered[: named.get("limit", 10_000)]

    return Case(path, {"type": kind, **named}, entries, named)


def _windows(seen: Seen, key: str, first: int | None, last: int | None) -> list[Json]:
    return seen.windows(key, first, last)


def _all_windows(seen: Seen, _: str, first: int | None, last: int | None) -> list[Json]:
    return seen.windows(None, first, last)


def _sessions(seen: Seen, key: str, first: int | None, last: int | None) -> list[Json]:
    return seen.sessions(key, first, last)


def _all_sessions(seen: Seen, _: str, first: int | None, last: int | None) -> list[Json]:
    return seen.sessions(None, first, last)


def _versions(seen: Seen, key: str, first: int | None, last: int | None) -> list[Json]:
    return seen.versions(key, first, last)


def _range(lower: str, upper: str) -> Callable[..., list[Json]]:
    return lambda seen, *_: [row for row in seen.pairs() if lower <= row["key"] <= upper]


def _versioned_range(time: int | None, lower: str, upper: str) -> Callable[..., list[Json]]:
    return lambda seen, *_: [row for row in seen.versions_of_keys(time) if lower <= row["key"] <= upper]


def cases(kind: tuple[str, ...], early: int, late: int, now: int) -> list[Case]:
    """The queries that stores of this kind answer; times are milliseconds."""
    in_time: tuple[Json, ...] = (
        {},
        {"from_": early, "to": late},
        {"from_": late},
        {"to": early, "order": "desc"},
        {"limit": 2},
    )
    backwards: tuple[Json, ...] = (
        {"order": "desc"},
        {"order": "asc", "limit": 1},
        {"from_": late, "to": early},
        {"to": 0},
    )
    if kind is KEY_VALUE:
        keys = Case("", {"type": "keys"}, lambda seen, key: [_pair(seen, key), _pair(seen, "absent")])
        ranges = (
            _scan("range", "/range", _range("", "~")),
            _scan("range", "/range", _range("", "~"), order="desc", limit=5),
            _scan("range", "/range", _range("k1", "k3"), lower="k1", upper="k3"),
            _scan("range", "/range", _range("k1", "k1~"), prefix="k1"),
            _scan("range", "/range", _range("k3", "k1"), lower="k3", upper="k1"),
        )
        return [Case("/keys/{key}", {"type": "key"}, _pair), keys, *ranges]
    if kind is WINDOW:
        of_key = [_scan("windows", "/keys/{key}/windows", _windows, **p) for p in (*in_time, *backwards)]
        return of_key + [_scan("windows", "/windows", _all_windows, **p) for p in (*in_time, *backwards)]
    if kind is SESSION:
        of_key = [_scan("sessions", "/keys/{key}/sessions", _sessions, **p) for p in (*in_time, *backwards)]
        return of_key + [_scan("sessions", "/sessions", _all_sessions, **p) for p in (*in_time, *backwards)]
    versions = [_scan("versions", "/keys/{key}/versions", _versions, **p) for p in (*in_time, *backwards)]
    of_time = [
        _scan("range", "/range", _versioned_range(early, "", "~"), as_of=early),
        _scan("range", "/range", _versioned_range(None, "", "~"), order="desc", limit=5),
        _scan("range", "/range", _versioned_range(late, "k1", "k3"), lower="k1", upper="k3", as_of=late),
        _scan("range", "/range", _versioned_range(now, "k1", "k1~"), prefix="k1", as_of=now, order="desc"),
        _scan("range", "/range", _versioned_range(None, "k3", "k1"), lower="k3", upper="k1"),
    ]
    return versions + of_time + [_as_of(time) for time in (None, 0, early, late, now)]


def _as_of(time: int | None) -> Case:
    params = {} if time is None else {"as_of": time}
    return Case(
        "/keys/{key}",
        {"type": "key", **params},
        lambda seen, key: found(key, seen.as_of(key, time), versioned=True),
        params,
    )
