"""Our side of the live conformance: the stores of the Java application (`KeptStores.java`), over the same topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.dsl.streams import GroupedStream, Stream, Table
from stateline.model.event_time import OnInvalid
from stateline.model.windows import AnyWindows, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows
from stateline.processing.records import InputRecord
from stateline.processing.store_views import StoreView
from support.kafka.java_streams import ADVANCE_MS, DIFFERENCE_MS, GAP_MS, GRACE_MS, HISTORY_MS, SIZE_MS

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


WINDOWS: dict[str, AnyWindows] = {
    "tumbling": TumblingWindows(_ms(SIZE_MS), grace=_ms(GRACE_MS)),
    "hopping": HoppingWindows(_ms(SIZE_MS), _ms(ADVANCE_MS), grace=_ms(GRACE_MS)),
    "sliding": SlidingWindows(_ms(DIFFERENCE_MS), grace=_ms(GRACE_MS)),
    "session": SessionWindows(_ms(GAP_MS), grace=_ms(GRACE_MS)),
}


class Kept:
    """Declares stores by their names."""

    def __init__(self, app: App, prefix: str) -> None:
        self._app, self._prefix = app, prefix
        self._tables: dict[str, Table] = {}

    def table(self) -> None:
        self._app.table(f"{self._prefix}table", store="table", **TEXTS)

    def versioned(self) -> None:
        self._app.table(f"{self._prefix}versioned", store="versioned", versioned=_ms(HISTORY_MS), **TEXTS)

    def count(self) -> None:
        self._by_key().count("count")

    def reduce(self) -> None:
        self._by_key().reduce(max, "reduce")

    def windows(self, store: str) -> None:
        self._by_key().windowed_by(WINDOWS[store]).count(store)

    def timed(self, store: str, policy: OnInvalid) -> None:
        topic = self._app.topic(
            f"{self._prefix}{store}", **TEXTS, timestamp=_time_in_front, on_invalid_timestamp=policy
        )
        self._app.stream(topic).group_by_key().windowed_by(WINDOWS["tumbling"]).count(store)

    def tablejoin(self) -> None:
        self._table("left").join(self._table("right"), _joined, "tablejoin")

    def streamjoin(self) -> None:
        self._events().join(self._table("left"), _joined).to_table("streamjoin")

    def processed(self) -> None:
        numbers = self._app.store(stores.key_value("numbers", key=serdes.string, value=serdes.int64))
        self._events().process_values(_numbered, stores=[numbers]).to_table("processed")

    def _table(self, topic: str) -> Table:
        if topic not in self._tables:
            self._tables[topic] = self._app.ktable(self._app.table(f"{self._prefix}{topic}", **TEXTS))
        return self._tables[topic]

    def _events(self) -> Stream:
        return self._app.stream(f"{self._prefix}events", **TEXTS)

    def _by_key(self) -> GroupedStream:
        return self._events().group_by_key()


STORES: dict[str, Callable[[Kept], None]] = {
    "table": Kept.table,
    "versioned": Kept.versioned,
    "count": Kept.count,
    "reduce": Kept.reduce,
    **{store: partial(Kept.windows, store=store) for store in WINDOWS},
    "timed": partial(Kept.timed, store="timed", policy="partition_time"),
    "skipped": partial(Kept.timed, store="skipped", policy="skip"),
    "tablejoin": Kept.tablejoin,
    "streamjoin": Kept.streamjoin,
    "processed": Kept.processed,
}


def _time_in_front(record: InputRecord, partition_time_ms: int) -> int | None:
    digits = (record.value or "").partition("-")[0]
    return int(digits) if digits.isdigit() else None


def _numbered(event: InputRecord, numbers: StoreView) -> Iterator[str]:
    if event.key is None:
        return
    number = (numbers.get(event.key) or 0) + 1
    numbers.put(event.key, number)
    yield f"{number}:{'null' if event.value is None else event.value}"
    if number % 2 == 0:
        yield str(number)


def _joined(one: str, other: str) -> str:
    return f"{one}|{other}"


def build(application_id: str, prefix: str, kept_stores: Iterable[str] = STORES) -> App:
    """The application of these stores, whose input topics begin with this prefix."""
    app = App(application_id)
    kept = Kept(app, prefix)
    for store in kept_stores:
        STORES[store](kept)
    return app


app = build(
    os.environ.get("CONFORMANCE_APPLICATION", "conformance"),
    os.environ.get("CONFORMANCE_PREFIX", ""),
    os.environ.get("CONFORMANCE_STORES", " ".join(STORES)).split(),
)
