"""Quix Streams' application of the streams benchmark: a table or a count per key. Run by the benchmark, with a Python
that has Quix Streams: ``quix_peer.py JOB SERVERS GROUP STATE_DIR GUARANTEE``."""

from __future__ import annotations

import sys

from quixstreams import Application, State  # type: ignore[import-not-found]  # not among what Stateline needs

job, servers, group, state_dir, guarantee = sys.argv[1:]
app = Application(
    broker_address=servers,
    consumer_group=group,
    auto_offset_reset="earliest",
    processing_guarantee=guarantee,
    commit_interval=0.1,
    state_dir=state_dir,
    loglevel="WARNING",
)


def keep(value: str, state: State) -> None:
    state.set("value", value)


def count(value: str, state: State) -> None:
    state.set("count", state.get("count", 0) + 1)


topic = app.topic("table" if job == "table" else "events", key_deserializer="str", value_deserializer="str")
frame = app.dataframe(topic)
frame = frame.update(keep if job == "table" else count, stateful=True)
app.run(frame)
