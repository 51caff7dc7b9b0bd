"""The application of the tests that kill workers with windows: counts over two kinds, and their final results."""

from __future__ import annotations

import os
from datetime import timedelta

from stateline import App, SessionWindows, TumblingWindows, serdes, until_window_closes

SIZE_MS, GAP_MS, GRACE_MS = 30_000, 4_000, 20_000
TUMBLING = TumblingWindows(timedelta(milliseconds=SIZE_MS), grace=timedelta(milliseconds=GRACE_MS))
SESSIONS = SessionWindows(timedelta(milliseconds=GAP_MS), grace=timedelta(milliseconds=GRACE_MS))


def build(application_id: str) -> App:
    """Tables `windows` and `sessions`; their final results go to `final-windows` and `final-sessions`."""
    app = App(application_id)
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    windows = grouped.windowed_by(TUMBLING).count("windows")
    windows.suppress(until_window_closes()).to_stream().to("final-windows")
    sessions = grouped.windowed_by(SESSIONS).count("sessions")
    sessions.suppress(until_window_closes()).to_stream().to("final-sessions")
    return app


app = build(os.environ.get("WINDOWS_APP", "app"))
