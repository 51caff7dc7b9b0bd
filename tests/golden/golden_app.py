"""An application with every kind of store that Stateline keeps on disk. Never change it: archives of released versions
were made by it, and later versions go on from them. What a later version adds gets an application of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stateline import (
    App,
    HoppingWindows,
    InputRecord,
    JoinWindows,
    SessionView,
    SessionWindows,
    SlidingWindows,
    StoreView,
    TumblingWindows,
    VersionedView,
    WindowView,
    serdes,
    stores,
    until_time_limit,
    until_window_closes,
)

APPLICATION, PARTITIONS = "golden", 2
TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
COUNTS: dict[str, Any] = {"key": serdes.string, "value": serdes.int64}
INPUT = ("left", "right", "prices", "names", "codes", "short")
OUTPUT = ("joined", "priced", "named", "calm", "final", "coded")
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def joined(one: str | None, other: str | None) -> str:
    return f"{one}|{other}"


def letter(key: str, value: str) -> str:
    return value[0]


def build() -> App:
    app = App(APPLICATION)
    left, right = app.stream("left", **TEXTS), app.stream("right", **TEXTS)
    within = JoinWindows(10 * SECOND, grace=2 * SECOND)
    left.outer_join(right, joined, within=within, store="pairs").to("joined")

    newest = app.table("prices", **TEXTS, store="newest", headers=True)
    history = app.table("prices", **TEXTS, store="history", versioned=HOUR)
    left.left_join(history, joined, grace=SECOND, store="waiting").to("priced")
    prices = app.ktable(newest)
    prices.suppress(until_time_limit(5 * SECOND), name="held").to_stream().to("calm")
    prices.group_by(lambda key, value: (value[0], key), name="letters").count("by-letter")
    names = app.ktable(app.table("names", **TEXTS, store="names"))
    prices.join(names, joined, "named-prices", on=letter, name="naming").to_stream().to("named")

    codes = app.global_table("codes", **TEXTS, store="codes")
    left.left_join(codes, joined, on=letter).to("coded")

    grouped = left.group_by_key()
    grouped.count("counts")
    tumbling = grouped.windowed_by(TumblingWindows(MINUTE, grace=SECOND)).count("each-minute")
    tumbling.suppress(until_window_closes()).to_stream().to("final")
    grouped.windowed_by(HoppingWindows(MINUTE, advance=20 * SECOND)).count("hops")
    grouped.windowed_by(SlidingWindows(30 * SECOND)).count("slides")
    grouped.windowed_by(SessionWindows(15 * SECOND)).count("visits")

    app.table("short", **TEXTS, store="alive", ttl=30 * SECOND)
    _add_processor(app)
    return app


def _add_processor(app: App) -> None:
    timed: dict[str, Any] = {**TEXTS, "retention": 10 * MINUTE}
    kept = [
        stores.key_value("plain", **TEXTS),
        stores.timestamped_key_value("expiring", **TEXTS, own_ttl=True),
        stores.window("every", **timed, size=MINUTE, retain_duplicates=True),
        stores.window("stamped", **timed, size=MINUTE, timestamped=True),
        stores.session("spans", **timed, timestamped=True),
        stores.versioned("versions", **TEXTS, history=HOUR),
    ]

    @app.process("right", stores=[app.store(store) for store in kept])
    def keep(
        record: InputRecord,
        plain: StoreView,
        expiring: StoreView,
        every: WindowView,
        stamped: WindowView,
        spans: SessionView,
        versions: VersionedView,
    ) -> None:
        start_ms = record.timestamp_ms - record.timestamp_ms % 60_000
        plain.put(record.key, record.value)
        versions.put(record.key, record.value)
        if record.value is None:
            return
        expiring.put(record.key, record.value, ttl=(1 + int(record.value[1:]) % 40) * SECOND)
        every.put(record.key, record.value, start_ms)
        stamped.put(record.key, record.value, start_ms)
        spans.put(record.key, start_ms, record.timestamp_ms, record.value)
