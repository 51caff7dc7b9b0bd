"""The application whose scans are measured: a store of each kind, all of one task."""

from datetime import timedelta
from typing import Any

from stateline import serdes
from stateline.dsl.app import App
from stateline.stores import session, versioned, window

_YEAR = timedelta(days=365)

app = App("scans")
_topic = app.topic("rows", key=serdes.string, value=serdes.string)
app.table(_topic, store="rows")
_windows = app.store(
    window("windows", key=serdes.string, value=serdes.int64, size=timedelta(minutes=1), retention=_YEAR)
)
_sessions = app.store(session("sessions", key=serdes.string, value=serdes.int64, retention=_YEAR))
_versions = app.store(versioned("versions", key=serdes.string, value=serdes.string, history=_YEAR))


@app.process(_topic, stores=[_windows, _sessions, _versions])
def update(record: Any, windows: Any, sessions: Any, versions: Any) -> None:
    """Nothing: the stores are filled by who measures."""
