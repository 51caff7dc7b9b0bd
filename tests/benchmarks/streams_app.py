"""The applications of the streams benchmark: `STREAMS_JOB` says which, `STREAMS_ID` what it is called.

The stores are those of the Java application in `tests/kafka_streams_app`.
"""

from __future__ import annotations

import os
from datetime import timedelta

from stateline import InputRecord, SessionWindows, StoreView, TumblingWindows, serdes, stores
from stateline.dsl.app import App

GRACE = timedelta(seconds=30)


def made(job: str, application_id: str) -> App:
    """The application of this job."""
    app = App(application_id)
    if job == "table":
        app.table("table", key=serdes.string, value=serdes.string)
        return app
    source = app.topic("events", key=serdes.string, value=serdes.string)
    if job == "processor":
        counts = app.store(stores.timestamped_key_value("count", key=serdes.string, value=serdes.int64))

        @app.process(source, stores=[counts])
        def count(record: InputRecord, counts: StoreView) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)

        return app
    grouped = app.stream(source).group_by_key()
    grouped.count("count")
    if job == "four":
        grouped.windowed_by(TumblingWindows(timedelta(seconds=60), grace=GRACE)).count("tumbling")
        grouped.windowed_by(SessionWindows(timedelta(seconds=10), grace=GRACE)).count("session")
        app.table(source, store="versioned", versioned=timedelta(minutes=2))
    return app


app = made(os.environ.get("STREAMS_JOB", "count"), os.environ.get("STREAMS_ID", "streams"))
