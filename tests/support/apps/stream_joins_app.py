"""The application of the tests that kill a worker in the middle of joins of streams, and the results of its input."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from stateline import App, JoinWindows, serdes

Given = tuple[str, str | None, int]  # key, value, timestamp
BEFORE_MS, AFTER_MS, GRACE_MS = 200, 300, 100


def pair(one: Any, other: Any) -> str:
    return f"{one}|{other}"


def build() -> App:
    app = App("stream-joins")
    left = app.stream("left", key=serdes.string, value=serdes.string)
    right = app.stream("right", key=serdes.string, value=serdes.string)
    within = JoinWindows(
        timedelta(0),
        before=timedelta(milliseconds=BEFORE_MS),
        after=timedelta(milliseconds=AFTER_MS),
        grace=timedelta(milliseconds=GRACE_MS),
    )
    left.outer_join(right, pair, within=within, store="both").to("out")
    return app


app = build()


def results(left: Iterable[Given], right: Iterable[Given]) -> list[tuple[bytes, bytes, int]]:
    """The results of an outer join of rows that come in order of time, once no partner can come any more."""
    found = []
    met = set()
    right = list(right)
    for key, value, at in left:
        partners = [
            row for row in right if row[0] == key and row[1] is not None and at - BEFORE_MS <= row[2] <= at + AFTER_MS
        ]
        if value is None:
            continue
        met.update(partners)
        found += [(key.encode(), pair(value, other).encode(), max(at, their_at)) for _, other, their_at in partners]
        if not partners:
            found.append((key.encode(), pair(value, None).encode(), at))
    alone = [row for row in right if row[1] is not None and row not in met]
    return found + [(key.encode(), pair(None, value).encode(), at) for key, value, at in alone]
