"""The application that nodes run under faults: that of the crash tests, and windows, sessions and versions of the same
input. What plain Python makes of it is in `support/oracles/cluster_values.py`.
"""

from __future__ import annotations

import os
from datetime import timedelta

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.processing.store_views import SessionView, VersionedView, WindowView
from stateline.worker import InputRecord
from support.apps import crash_app

SIZE_MS, GAP_MS = 100, 1
_DAY = timedelta(days=1)


def build(run: str) -> App:
    """The application of one run: its topics and its name are its own."""
    app = crash_app.build(run)
    numbers = app.topic(f"numbers-{run}", key=serdes.string, value=serdes.int64)
    windows = app.store(
        stores.window(
            "windows", key=serdes.string, value=serdes.int64, size=timedelta(milliseconds=SIZE_MS), retention=_DAY
        )
    )
    sessions = app.store(stores.session("sessions", key=serdes.string, value=serdes.int64, retention=_DAY))
    versions = app.store(stores.versioned("versions", key=serdes.string, value=serdes.int64, history=_DAY))
    app.process(numbers, stores=[windows, sessions, versions])(keep_times)
    return app


def keep_times(record: InputRecord, windows: WindowView, sessions: SessionView, versions: VersionedView) -> None:
    """How many records came in each window, in each session, and at each moment."""
    key, at = record.key, record.timestamp_ms
    start = at - at % SIZE_MS
    windows.put(key, (windows.get(key, start) or 0) + 1, start)
    version = versions.get(key, as_of=at)
    versions.put(key, 1 + (version.value if version is not None and version.timestamp == at else 0))
    if starts_none(at):
        return
    first, last, count = at, at, 1
    for found in sessions.find_sessions(key, at - GAP_MS, at + GAP_MS):
        first, last, count = min(first, found.start_ms), max(last, found.end_ms), count + found.value
        sessions.remove(key, found.start_ms, found.end_ms)
    sessions.put(key, first, last, count)


def starts_none(at: int) -> bool:
    """Whether a record of this time is in no session, so that not all of them grow together."""
    return at % 10 == 0


app = build(os.environ.get("CRASH_RUN", "none"))
