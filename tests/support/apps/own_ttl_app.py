"""An application whose entries have a time to live of their own, and what a dict says is alive of its input."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from stateline import App, InputRecord, StoreView, serdes, stores
from stateline_store.rows.expiry import with_expiry
from stateline_store.rows.headers import Headers

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
Row = tuple[str, str | None, int]


def build(application_id: str = "alive", prefix: str = "") -> App:
    """A store of a processor's, and two tables whose records say when they expire: `newest`, whose changes go into a
    topic, and `shown`, which is only read. A value begins with its seconds to live. Topics begin with the prefix."""
    app = App(application_id)
    table = app.table(f"{prefix}in", **TEXTS, store="newest", own_ttl=True)
    app.table(f"{prefix}in", **TEXTS, store="shown", own_ttl=True)
    app.ktable(table).to_stream().to(app.topic(f"{prefix}out", **TEXTS))
    kept = app.store(stores.timestamped_key_value("kept", **TEXTS, own_ttl=True))

    @app.process(f"{prefix}in", stores=[kept])
    def keep(record: InputRecord, kept: StoreView) -> None:
        ttl = None if record.value is None else timedelta(milliseconds=lives_ms(record.value))
        kept.put(record.key, record.value, ttl=ttl, headers=())

    return app


app = build()


def lives_ms(value: str) -> int:
    """How long an entry with this value lives."""
    return int(value.split()[0]) * 1_000


def headers_of(value: str | None, at: int) -> Headers:
    """The headers of a record of the table."""
    return () if value is None else with_expiry((), at + lives_ms(value))


def given(count: int, seed: int = 3) -> list[Row]:
    """Puts and deletes of 25 keys, some of them late, with gaps in which many expire."""
    draw, now, rows = random.Random(seed), 100_000, list[Row]()
    for n in range(count):
        now += draw.choice([0, 100, 700, 15_000 if draw.random() < 0.05 else 300])
        value = None if draw.random() < 0.1 else f"{draw.choice([1, 5, 20])} v{n}"
        rows.append((f"k{draw.randrange(25)}", value, now - draw.choice([0, 0, 4_000])))
    return rows


def alive(rows: list[Row]) -> dict[str, str]:
    """What is there of one partition's records."""
    found: dict[str, tuple[str, int]] = {}
    newest = -1
    for key, value, at in rows:
        found.pop(key, None)
        if value is not None:
            found[key], newest = (value, at + lives_ms(value)), max(newest, at)
        found = {k: each for k, each in found.items() if each[1] >= newest}
    return {key: value for key, (value, _) in found.items()}
