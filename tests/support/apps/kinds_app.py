"""The application of the tests of every kind of store, and what its processor makes of records in plain dicts.

The processor is one function over views. The worker calls it with its own; an `Oracle` calls it with models of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeAlias

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.processing.store_views import SessionView, VersionedView, Window, WindowView
from stateline.worker import InputRecord
from stateline_store.steps import reached

SIZE_MS, RETENTION_MS, GAP_MS, HISTORY_MS = 60_000, 300_000, 8_000, 120_000
SEGMENT_MS = RETENTION_MS // 2
BOOM = "boom"  # a value that the processor raises on, after it has written to every store

Views: TypeAlias = tuple[WindowView, WindowView, WindowView, SessionView, SessionView, VersionedView, VersionedView]


def definitions(persistent: bool) -> list[StoreDefinition]:
    """The stores that the processor writes: windows, sessions, and a history of versions."""
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json, "persistent": persistent}
    windows = common | {"size": _time(SIZE_MS), "retention": _time(RETENTION_MS)}
    sessions = common | {"retention": _time(RETENTION_MS)}
    return [
        stores.window("counts", **windows),
        stores.window("newest", timestamped=True, **windows),
        stores.window("each", retain_duplicates=True, **windows),
        stores.session("visits", **sessions),
        stores.session("stamped-visits", timestamped=True, **sessions),
        stores.versioned("history", history=_time(HISTORY_MS), **common),
    ]


def build(run: str, *, persistent: bool = True) -> App:
    """The application of one run: its topic and its name are its own."""
    app = App(f"kinds-{run}")
    events = app.topic(f"events-{run}", key=serdes.string, value=serdes.json)
    table = app.table(events, store="table", versioned=_time(HISTORY_MS), persistent=persistent)
    made = [app.store(definition) for definition in definitions(persistent)]
    app.process(events, stores=[*made, table])(keep)
    return app


def keep(
    record: InputRecord,
    counts: WindowView,
    newest: WindowView,
    each: WindowView,
    visits: SessionView,
    stamped: SessionView,
    history: VersionedView,
    table: VersionedView,
) -> None:
    """Write one record to every store; the history keeps how many versions the table had, too."""
    reached("kinds:record")
    key, at = record.key, record.timestamp_ms
    start = at - at % SIZE_MS
    counts.put(key, (counts.get(key, start) or 0) + 1, start)
    newest.put(key, record.value, start)
    each.put(key, record.value, start)
    merge(visits, key, at)
    merge(stamped, key, at)
    seen = sum(1 for _ in table.versions(key))
    history.put(key, None if record.value is None else [record.value, seen])
    if record.value == BOOM:
        raise RuntimeError("no such luck")


def merge(sessions: SessionView, key: str, at: int) -> None:
    """Make one session of the record and of all that are within the gap of it."""
    start, end, count = at, at, 1
    for found in sessions.find_sessions(key, at - GAP_MS, at + GAP_MS):
        start, end, count = min(start, found.start_ms), max(end, found.end_ms), count + found.value
        sessions.remove(key, found.start_ms, found.end_ms)
    sessions.put(key, start, end, count)


def _time(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


# ---- the oracle


class _Expiring:
    """Rows by time: stream time is the largest put, a row goes with its segment and hides before."""

    def __init__(self, *, timestamped: bool) -> None:
        self.rows: dict[Any, tuple[Any, ...]] = {}
        self._timestamped = timestamped
        self.stream_time_ms = -1
        self.dropped = 0
        self.now_ms = -1

    def stage(self, at: int, row: Any, value: Any) -> bool:
        if at // SEGMENT_MS < max(0, self.stream_time_ms - RETENTION_MS) // SEGMENT_MS:
            return False
        if value is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = (value, self.now_ms) if self._timestamped else (value,)
        self.stream_time_ms = max(self.stream_time_ms, at)
        return True

    def is_seen(self, at: int) -> bool:
        return at > self.stream_time_ms - RETENTION_MS

    def _sorted(self) -> list[tuple[Any, tuple[Any, ...]]]:
        return sorted(self.rows.items(), key=lambda item: item[0])


class _Windows(_Expiring):
    def __init__(self, *, timestamped: bool = False, duplicates: bool = False) -> None:
        super().__init__(timestamped=timestamped)
        self._numbers = itertools.count(1) if duplicates else itertools.repeat(0)
        self._duplicates = duplicates

    def put(self, key: str, value: Any, start: int) -> None:
        if not (self._duplicates and value is None):
            self.dropped += not self.stage(start, (key, start, next(self._numbers)), value)

    def get(self, key: str, start: int) -> Any:
        return self.rows.get((key, start, 0), (None,))[0] if self.is_seen(start) else None

    def contents(self) -> list[Any]:
        return [(key, start, *row) for (key, start, _), row in self._sorted() if self.is_seen(start)]


class _Sessions(_Expiring):
    def put(self, key: str, start: int, end: int, value: Any) -> None:
        self.dropped += not self.stage(end, (key, end, start), value)

    def remove(self, key: str, start: int, end: int) -> None:
        self.stage(end, (key, end, start), None)

    def find_sessions(self, key: str, earliest_end: int, latest_start: int) -> list[Window]:
        found = [Window(k, start, end, value) for (k, end, start), (value, *_) in self._sorted()]
        return [
            s
            for s in found
            if s.key == key and s.end_ms >= earliest_end and s.start_ms <= latest_start and self.is_seen(s.end_ms)
        ]

    def contents(self) -> list[Any]:
        return [(key, start, end, *row) for (key, end, start), row in self._sorted() if self.is_seen(end)]


class _Versions:
    def __init__(self) -> None:
        self.by_key: dict[str, dict[int, Any]] = {}
        self.stream_time_ms = -1
        self.dropped = 0
        self.now_ms = -1

    def put(self, key: str, value: Any) -> None:
        if self.now_ms < self.stream_time_ms - HISTORY_MS:
            self.dropped += 1
            return
        self.by_key.setdefault(key, {})[self.now_ms] = value
        self.stream_time_ms = max(self.stream_time_ms, self.now_ms)

    def versions(self, key: str) -> list[tuple[Any, int, int | None]]:
        held = sorted(self.by_key.get(key, {}).items(), reverse=True)
        ends = [None, *(timestamp for timestamp, _ in held)]
        return [
            (value, timestamp, end)
            for (timestamp, value), end in zip(held, ends, strict=False)
            if value is not None and (end is None or end > self.stream_time_ms - HISTORY_MS)
        ]

    def contents(self) -> list[Any]:
        return [(key, self.versions(key)) for key in sorted(self.by_key) if self.versions(key)]


Event: TypeAlias = tuple[str, Any, int]  # key, value, timestamp


class Oracle:
    """What records make of every store when each counts once, and one that raises leaves nothing but its table row."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {
            "counts": _Windows(),
            "newest": _Windows(timestamped=True),
            "each": _Windows(duplicates=True),
            "visits": _Sessions(timestamped=False),
            "stamped-visits": _Sessions(timestamped=True),
            "history": _Versions(),
            "table": _Versions(),
        }

    def process(self, events: Iterable[Event]) -> None:
        for key, value, at in events:
            for model in self.models.values():
                model.now_ms = at
            self.models["table"].put(key, value)
            if value != BOOM:
                keep(InputRecord("", 0, 0, at, key, value, ()), *self.models.values())

    def contents(self) -> dict[str, tuple[int, list[Any]]]:
        """Stream time and rows by store."""
        return {name: (model.stream_time_ms, model.contents()) for name, model in self.models.items()}

    def dropped(self) -> dict[str, int]:
        """How many puts came too late, by store; nobody counts a table's."""
        return {name: model.dropped for name, model in self.models.items() if name != "table"}


app = build(os.environ.get("KINDS_RUN", "none"))
