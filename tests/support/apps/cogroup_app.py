"""The application of tests that kill a worker in the middle of a cogroup, and what plain Python makes of its input."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from stateline import App, TumblingWindows, serdes

Given = tuple[str, str | None, int]  # key, value, timestamp
SIZE_MS = 1_000


def ordered(key: str, order: str, found: list[str]) -> list[str]:
    return [*found, f"o{order}"][-8:]


def visited(key: str, page: str | None, found: list[str]) -> list[str]:
    return [*found, f"v{page}"][-8:]


def build() -> App:
    """The newest orders and visits of each customer, of all time and by the second."""
    app = App("cogroup")
    orders, visits = (
        app.stream(t, key=serdes.string, value=serdes.string).group_by_key() for t in ("orders", "visits")
    )
    both = orders.cogroup(ordered).cogroup(visits, visited)
    both.aggregate(list, "newest", value=serdes.json).to_stream().to("out")
    seconds = both.windowed_by(TumblingWindows(timedelta(milliseconds=SIZE_MS), grace=timedelta(days=1)))
    seconds.aggregate(list, "seconds", value=serdes.json, retention=timedelta(days=2))
    return app


def newest(records: Iterable[tuple[str, Given]]) -> dict[bytes, tuple[list[str], int]]:
    """What `newest` has: of records with their topics, by time."""
    found: dict[bytes, tuple[list[str], int]] = {}
    for topic, (key, value, at) in sorted(records, key=lambda record: record[1][2]):
        if value is not None:
            add = ordered if topic == "orders" else visited
            found[key.encode()] = add(key, value, found.get(key.encode(), ([], 0))[0]), at
    return found


app = build()
