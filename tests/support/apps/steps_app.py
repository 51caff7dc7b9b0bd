"""The application of the tests of upgrades, migrations and moved stores, in every declaration that they go through.

Environment of a process: `STEPS_RUN` names the run, `STEPS_TIMESTAMPED=1` declares the stores with timestamps,
`STEPS_HEADERS=1` with headers,
`STEPS_FIRST=1` puts another subtopology in front, `STEPS_NOTES=1` adds a store of a user's own. `STEPS_SLICE` is how
many records a restore takes at once.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from typing import Any

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.processing.store_views import SessionView, StoreView, WindowView
from stateline.worker import InputRecord
from stateline.worker.restore import changelog_follower
from support.apps.own_stores import OwnStore

KINDS = ("key_value", "window", "session")
HOUR = timedelta(hours=1)


def declared(kind: str, name: str = "s", *, timestamped: bool, **options: Any) -> StoreDefinition:
    """A store of text by text, of one of `KINDS`."""
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string, **options}
    if kind == "window":
        return stores.window(name, size=timedelta(seconds=1), retention=HOUR, timestamped=timestamped, **common)
    if kind == "session":
        return stores.session(name, retention=HOUR, timestamped=timestamped, **common)
    return (stores.timestamped_key_value if timestamped else stores.key_value)(name, **common)


def keep(record: InputRecord, view: StoreView | WindowView | SessionView) -> None:
    """Write a record where its kind of store takes it; the value "none" removes what is there."""
    value = None if record.value == "none" else record.value
    if isinstance(view, WindowView):
        view.put(record.key, value, record.timestamp_ms // 1000 * 1000)
    elif isinstance(view, SessionView):
        view.put(record.key, record.timestamp_ms // 1000 * 1000, record.timestamp_ms // 1000 * 1000, value)
    else:
        view.put(record.key, value)


def keeping(*definitions: StoreDefinition, application_id: str = "app", topic: str = "in") -> App:
    """Keeps every record in each of these stores."""
    app = App(application_id)
    source = app.topic(topic, key=serdes.string, value=serdes.string)
    made = [app.store(definition) for definition in definitions]

    @app.process(source, stores=made)
    def keep_in_all(record: InputRecord, *views: StoreView | WindowView | SessionView) -> None:
        for view in views:
            keep(record, view)

    return app


def build(
    run: str, *, timestamped: bool = False, headers: bool = False, first: bool = False, notes: bool = False
) -> App:
    """Sums by key in a store named `sums`. `first`: behind a subtopology that it did not have before; `notes`: beside
    a store of a user's own, which leaves its offset to the task's `.checkpoint`."""
    app = App(f"steps-{run}")
    if first:
        app.table(app.topic(f"before-{run}", key=serdes.string, value=serdes.int64), store="before")
    numbers = app.topic(f"numbers-{run}", key=serdes.string, value=serdes.int64)
    make = stores.timestamped_key_value if timestamped else stores.key_value
    if headers:
        make = partial(stores.timestamped_key_value, headers=True)
    used = [app.store(make("sums", key=serdes.string, value=serdes.int64))]
    if notes:
        own = partial(OwnStore, transactional=True, manages_offsets=False)
        used.append(app.store(stores.custom("notes", own, key=serdes.string, value=serdes.string)))

    @app.process(numbers, stores=used)
    def add(record: InputRecord, sums: StoreView, *notes: OwnStore) -> None:
        total = (sums.get(record.key) or 0) + record.value
        sums.put(record.key, total)
        for own in notes:
            own.put(record.key, str(total))

    return app


# Small slices of restore, so that a kill falls between two of them although the changelog of a test is small.
changelog_follower.SLICE_RECORDS = int(os.environ.get("STEPS_SLICE", changelog_follower.SLICE_RECORDS))

app = build(
    os.environ.get("STEPS_RUN", "none"),
    timestamped=bool(os.environ.get("STEPS_TIMESTAMPED")),
    headers=bool(os.environ.get("STEPS_HEADERS")),
    first=bool(os.environ.get("STEPS_FIRST")),
    notes=bool(os.environ.get("STEPS_NOTES")),
)
