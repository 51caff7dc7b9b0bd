"""The applications of the streams benchmark: `STREAMS_JOB` says which, `STREAMS_ID` what it is called, `STREAMS_PREFIX`
how its topics begin.

The stores are those of the Java application in `tests/kafka_streams_app`.
"""

from __future__ import annotations

import os
from datetime import timedelta

from stateline import InputRecord, JoinWindows, SessionWindows, StoreView, TumblingWindows, serdes, stores
from stateline.dsl.app import App
from stateline.dsl.streams import Stream, Table

GRACE = timedelta(seconds=30)
NEAR = JoinWindows(timedelta(seconds=20), grace=GRACE)


def joined(app: App, prefix: str) -> App:
    """Two streams joined, to a topic."""
    one, other = (stream(app, prefix + topic) for topic in ("events", "others"))
    one.join(other, both, within=NEAR, store="joined").to(f"{prefix}ours-joined")
    return app


def groupcount(app: App, prefix: str) -> App:
    """The rows of a table counted by the end of their values."""
    grouped = table(app, f"{prefix}left").group_by(lambda key, value: (value[-3:], value), name="by-end")
    grouped.count("groupcount")
    return app


def customers(app: App, prefix: str) -> App:
    """A table joined with another by the key that its values end with."""
    left, right = (table(app, prefix + topic) for topic in ("left", "right"))
    left.join(right, both, "customers", on=lambda key, value: f"key-{value[-8:]}", name="customers")
    return app


def stream(app: App, topic: str) -> Stream:
    return app.stream(topic, key=serdes.string, value=serdes.string)


def table(app: App, topic: str) -> Table:
    return app.ktable(app.table(topic, key=serdes.string, value=serdes.string))


def both(one: str, other: str) -> str:
    return f"{one}|{other}"


OPERATORS = {"joined": joined, "groupcount": groupcount, "customers": customers}


def made(job: str, application_id: str) -> App:
    """The application of this job."""
    app = App(application_id)
    if job in OPERATORS:
        return OPERATORS[job](app, os.environ.get("STREAMS_PREFIX", ""))
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
