"""An application of tables and stores with a time to live, and what a dict says is alive of its input."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from stateline import App, InputRecord, StoreView, serdes, stores

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
TTL, TTL_MS = timedelta(seconds=10), 10_000
Row = tuple[str, str | None, int]


def build(application_id: str = "alive", prefix: str = "") -> App:
    """A table, a table made of it, its changes in a topic, and a store of a processor's: each with what is alive.
    Topics begin with the prefix."""
    app = App(application_id)
    table = app.table(f"{prefix}in", **TEXTS, store="newest", ttl=TTL)
    changes = app.ktable(table)
    changes.map_values(lambda key, value: value.upper(), "upper").to_stream().to(app.topic(f"{prefix}out", **TEXTS))
    kept = app.store(stores.timestamped_key_value("kept", **TEXTS, ttl=TTL))

    @app.process(f"{prefix}in", stores=[kept])
    def keep(record: InputRecord, kept: StoreView) -> None:
        kept.put(record.key, record.value)

    return app


app = build()


def given(count: int, seed: int = 3) -> list[Row]:
    """Puts and deletes of 25 keys, some of them late, with gaps in which everything expires."""
    draw, now, rows = random.Random(seed), 100_000, list[Row]()
    for n in range(count):
        now += draw.choice([0, 100, 700, 15_000 if draw.random() < 0.05 else 300])
        value = None if draw.random() < 0.1 else f"v{n}"
        rows.append((f"k{draw.randrange(25)}", value, now - draw.choice([0, 0, 4_000])))
    return rows


def alive(rows: list[Row]) -> dict[str, str]:
    """What is there of one partition's records."""
    found: dict[str, tuple[str, int]] = {}
    newest = -1
    for key, value, at in rows:
        found.pop(key, None)
        if value is not None:
            found[key], newest = (value, at), max(newest, at)
    return {key: value for key, (value, at) in found.items() if at >= newest - TTL_MS}
