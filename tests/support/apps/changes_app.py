"""The application of the tests of change feeds: stores of every kind, fed from one topic."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.worker import InputRecord

SIZE_MS = 60_000
# Stores that have a changelog or are one's table, by what their changes are read from.
TABLES = ("newest", "cache", "dated")
LOGGED = ("counts", "memory", "windows", "stamped", "visits", "history")


def build(run: str, *, stamped: bool = False, headers: bool = False) -> App:
    """The application of one run: its topic and its name are its own. `stamped`: counts have timestamps. `headers`: a
    table and the windows with timestamps keep headers."""
    app = App(f"changes-{run}")
    source = app.topic(f"in-{run}", key=serdes.string, value=serdes.json)
    app.table(source, store="newest", headers=headers)
    app.table(source, store="cache", persistent=False)
    app.table(source, store="dated", versioned=timedelta(days=1))
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
    windowed = common | {"retention": timedelta(hours=1)}
    made = [
        (stores.timestamped_key_value if stamped else stores.key_value)("counts", **common),
        stores.key_value("memory", persistent=False, **common),
        stores.window("windows", size=timedelta(milliseconds=SIZE_MS), **windowed),
        stores.window("stamped", size=timedelta(milliseconds=SIZE_MS), timestamped=True, headers=headers, **windowed),
        stores.session("visits", **windowed),
        stores.versioned("history", history=timedelta(days=1), **common),
        stores.key_value("quiet", logged=False, **common),
    ]
    app.process(source, stores=[app.store(definition) for definition in made])(keep)
    return app


def keep(
    record: InputRecord,
    counts: Any,
    memory: Any,
    windows: Any,
    stamped: Any,
    visits: Any,
    history: Any,
    quiet: Any,
) -> None:
    """Count the records of a key until one without a value, which takes the key out of every store."""
    key, at, value = record.key, record.timestamp_ms, record.value
    start = at - at % SIZE_MS
    for view in (counts, memory, quiet):
        view.put(key, None if value is None else (view.get(key) or 0) + 1)
    for view in (windows, stamped):
        view.put(key, value, start)
    visits.put(key, start, start + 10, value)
    history.put(key, value)


app = build(
    os.environ.get("CHANGES_RUN", "none"),
    stamped=bool(os.environ.get("CHANGES_STAMPED")),
    headers=bool(os.environ.get("CHANGES_HEADERS")),
)
