"""The application of nodes under faults with stores less: nodes of the two do not go together."""

from __future__ import annotations

import os

from stateline import serdes
from stateline.dsl.app import App

_run = os.environ.get("CRASH_RUN", "none")
app = App(f"crashes-{_run}")
app.table(app.topic(f"numbers-{_run}", key=serdes.string, value=serdes.int64), store="newest")
