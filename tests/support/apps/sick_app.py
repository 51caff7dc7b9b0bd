"""The application of nodes that cannot work: it counts, and fails at some keys while a file of its node is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.worker import InputRecord


def build(run: str) -> App:
    """The application of one run: its topic and its name are its own."""
    app = App(f"sick-{run}")
    source = app.topic(f"in-{run}", key=serdes.string, value=serdes.int64)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))
    app.process(source, stores=[counts])(count)
    return app


def count(record: InputRecord, counts: Any) -> None:
    """How often each key was written."""
    if record.key.startswith("poison") and Path(os.environ["SICK_IF"]).exists():
        raise ValueError("this node cannot process it")
    counts.put(record.key, (counts.get(record.key) or 0) + 1)


app = build(os.environ.get("SICK_RUN", "none"))
