"""The application of the tests that lose all changelogs: each kind of store on disk, fed from one topic.

`RECOVERED_ID` is the application id of a process. Another id reads the same topic, so that it is a reference.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from stateline import InputRecord, serdes, stores
from stateline.dsl.app import App

PARTITIONS = 2
SIZE_MS = 60_000
LOGGED = ("counts", "stamped", "windows", "visits", "history", "gone")
STORES = (*LOGGED, "newest", "quiet")


def recovered(application_id: str, topic: str) -> App:
    """`gone` is empty after each record. `quiet` has no changelog."""
    app = App(application_id)
    source = app.topic(topic, key=serdes.string, value=serdes.json)
    app.table(source, store="newest")
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
    windowed = common | {"retention": timedelta(hours=1)}
    made = [
        stores.key_value("counts", **common),
        stores.timestamped_key_value("stamped", headers=True, **common),
        stores.window("windows", size=timedelta(milliseconds=SIZE_MS), timestamped=True, **windowed),
        stores.session("visits", **windowed),
        stores.versioned("history", history=timedelta(minutes=10), **common),
        stores.key_value("gone", **common),
        stores.key_value("quiet", logged=False, **common),
    ]
    app.process(source, stores=[app.store(definition) for definition in made])(keep)
    return app


def keep(
    record: InputRecord, counts: Any, stamped: Any, windows: Any, visits: Any, history: Any, gone: Any, quiet: Any
) -> None:
    """Count the records of a key. A record without a value ends its versions."""
    key, at, value = record.key, record.timestamp_ms, record.value
    start = at - at % SIZE_MS
    for view in (counts, quiet):
        view.put(key, (view.get(key) or 0) + 1)
    stamped.put(key, value)
    windows.put(key, value, start)
    visits.put(key, start, start + 10, value)
    history.put(key, value)
    gone.put(key, 1)
    gone.put(key, None)


if "RECOVERED_ID" in os.environ:
    app = recovered(os.environ["RECOVERED_ID"], os.environ["RECOVERED_TOPIC"])
