"""The application of the test that kills a worker which holds back changes."""

from __future__ import annotations

from datetime import timedelta

from stateline import App, serdes, until_time_limit

WAIT_MS = 100


def build() -> App:
    """The newest values of `prices`; each leaves to `calm` after the time limit."""
    app = App("app")
    table = app.ktable(app.table("prices", key=serdes.string, value=serdes.string, store="newest"))
    table.suppress(until_time_limit(timedelta(milliseconds=WAIT_MS)), name="waiting").to_stream().to("calm")
    return app


app = build()
