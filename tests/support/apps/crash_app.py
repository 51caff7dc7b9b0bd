"""The application of the crash tests: counts and sums per key, the newest value per key, every tenth sum forwarded."""

from __future__ import annotations

import os

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord, Output
from stateline.worker.restore import changelog_follower, store_restore


def build(run: str) -> App:
    """The application of one run: its topics and its name are its own."""
    app = App(f"crashes-{run}")
    numbers = app.topic(f"numbers-{run}", key=serdes.string, value=serdes.int64)
    tenths = app.topic(f"tenths-{run}", key=serdes.string, value=serdes.int64)
    app.table(numbers, store="newest")
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

    @app.process(numbers, stores=[counts], forwards=[tenths])
    def count(record: InputRecord, counts: StoreView, tenths: Output) -> None:
        n, total = counts.get(record.key) or (0, 0)
        counts.put(record.key, [n + 1, total + record.value])
        if (n + 1) % 10 == 0:
            tenths.forward(record.key, total + record.value)

    return app


# Small slices of restore, so that a kill falls between two of them although the changelog of a test is small.
changelog_follower.SLICE_RECORDS = int(os.environ.get("CRASH_RESTORE_SLICE", changelog_follower.SLICE_RECORDS))
# And batches that are committed on the way, so that what is answered then is seen.
store_restore._BATCH_BYTES = int(os.environ.get("CRASH_RESTORE_BATCH_BYTES", store_restore._BATCH_BYTES))

app = build(os.environ.get("CRASH_RUN", "none"))
