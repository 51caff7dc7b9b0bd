"""Our side of the live conformance: the stores of the Java application (`KeptStores.java`), over the same topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from stateline import JoinWindows, serdes, stores, until_time_limit
from stateline.dsl.app import App
from stateline.dsl.cogrouped import CogroupedStream
from stateline.dsl.streams import GroupedStream, Stream, Table, WindowedTable
from stateline.model.event_time import OnInvalid
from stateline.model.windows import AnyWindows, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows
from stateline.processing.records import InputRecord
from stateline.processing.store_views import SessionView, StoreView, WindowView
from support.kafka.java_streams import ADVANCE_MS, DIFFERENCE_MS, GAP_MS, GRACE_MS, HISTORY_MS, SIZE_MS

NOTED_SESSION_MS = 20_000
WAIT_MS = 5_000
TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


WINDOWS: dict[str, AnyWindows] = {
    "tumbling": TumblingWindows(_ms(SIZE_MS), grace=_ms(GRACE_MS)),
    "hopping": HoppingWindows(_ms(SIZE_MS), _ms(ADVANCE_MS), grace=_ms(GRACE_MS)),
    "sliding": SlidingWindows(_ms(DIFFERENCE_MS), grace=_ms(GRACE_MS)),
    "session": SessionWindows(_ms(GAP_MS), grace=_ms(GRACE_MS)),
}
NEAR = JoinWindows(_ms(DIFFERENCE_MS), grace=_ms(GRACE_MS))


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

    def groupcount(self) -> None:
        self._table("left").group_by(_by_end, name="by-end").count("groupcount")

    def cogroup(self) -> None:
        self._cogrouped().aggregate(str, "cogroup", value=serdes.string)

    def cowindows(self) -> None:
        self._cogrouped().windowed_by(WINDOWS["tumbling"]).aggregate(str, "cowindows", value=serdes.string)

    def joined(self, store: str, kind: str) -> None:
        others = self._app.stream(f"{self._prefix}others", **TEXTS)
        join = getattr(self._events(), kind)
        join(others, _both, within=NEAR, store=store).to(f"{self._prefix}ours-{store}")

    def foreign_key(self, store: str, kind: str) -> None:
        join = getattr(self._table("left"), kind)
        join(self._table("right"), _both, store, on=_named, name=store)

    def groupsum(self) -> None:
        grouped = self._table("left").group_by(lambda key, value: (value[-2:], value), name="for-sum")
        grouped.aggregate(
            int,
            lambda key, value, total: total + len(value),
            lambda key, value, total: total - len(value),
            "groupsum",
            value=serdes.int64,
        )

    def limited(self) -> None:
        waiting = self._table("left").suppress(until_time_limit(_ms(WAIT_MS)), name="limited")
        waiting.to_stream().to(f"{self._prefix}ours-limited")

    def versions(self) -> None:
        trades = self._app.stream(f"{self._prefix}trades", **TEXTS)
        trades.to_table("versions", versioned=_ms(HISTORY_MS))

    def graced(self) -> None:
        table = self._app.table(f"{self._prefix}versioned", store="versioned", versioned=timedelta(hours=1), **TEXTS)
        joined = self._events().left_join(table, _joined_or_null, grace=_ms(GRACE_MS), store="graced")
        joined.to(f"{self._prefix}ours-graced")

    def _cogrouped(self) -> CogroupedStream[Table, WindowedTable]:
        odd, rest = self._events().filter(_is_odd), self._events().filter_not(_is_odd)
        return odd.group_by_key().cogroup(partial(_added, "A")).cogroup(rest.group_by_key(), partial(_added, "B"))

    def processed(self) -> None:
        numbers = self._app.store(stores.key_value("numbers", key=serdes.string, value=serdes.int64))
        self._events().process_values(_numbered, stores=[numbers]).to_table("processed")

    def notedkey(self) -> None:
        noted = self._app.store(stores.timestamped_key_value("notedkey", headers=True, **TEXTS))
        with_left = self._known().filter(_has_value).left_join(self._table("left"), _joined_or_null)
        passed = with_left.flat_map_values(lambda key, value: [value]).peek(lambda key, value: None)
        renamed = passed.map_values(lambda key, value: f"<{value}").select_key(lambda key, value: f"{key}~")
        renamed.repartition("noted").process(_note, stores=[noted])

    def notedwindow(self) -> None:
        times: dict[str, Any] = {"size": _ms(SIZE_MS), "retention": timedelta(days=1)}
        noted = self._app.store(stores.window("notedwindow", timestamped=True, headers=True, **times, **TEXTS))
        self._known().process(_note_window, stores=[noted])

    def notedsession(self) -> None:
        retention = timedelta(days=1)
        noted = self._app.store(stores.session("notedsession", retention=retention, headers=True, **TEXTS))
        self._known().process(_note_session, stores=[noted])

    def _known(self) -> Stream:
        return self._events().filter(lambda key, value: key is not None)

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
    "groupcount": Kept.groupcount,
    "cogroup": Kept.cogroup,
    "cowindows": Kept.cowindows,
    "processed": Kept.processed,
    "notedkey": Kept.notedkey,
    "notedwindow": Kept.notedwindow,
    "notedsession": Kept.notedsession,
}
JOINED = {"joined": "join", "joinedleft": "left_join", "joinedouter": "outer_join"}
MOVED: dict[str, Callable[[Kept], None]] = {
    **{store: partial(Kept.joined, store=store, kind=kind) for store, kind in JOINED.items()},
    "foreignkey": partial(Kept.foreign_key, store="foreignkey", kind="join"),
    "foreignleft": partial(Kept.foreign_key, store="foreignleft", kind="left_join"),
    "groupsum": Kept.groupsum,
    "limited": Kept.limited,
}
"""Operators of an application of their own: as `MovedRows.java`."""
BY_VERSION: dict[str, Callable[[Kept], None]] = {"versions": Kept.versions, "graced": Kept.graced}
"""Tables with versions, not there in Java."""
NOTED = [store for store in STORES if store.startswith("noted")]
"""Stores that a processor fills with values and the headers of their records: as `NotedStores.java`."""


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


def _by_end(key: str, value: str) -> tuple[str | None, str]:
    return value[-3:] or None, value


def _is_odd(key: str | None, value: str | None) -> bool:
    return bool(value) and ord(str(value)[-1]) % 2 == 1


def _added(sign: str, key: str, value: str | None, found: str) -> str:
    return f"{found}{sign}{'null' if value is None else value}"[-24:]


def _both(one: str | None, other: str | None) -> str:
    return "|".join("null" if each is None else each for each in (one, other))


def _named(key: str, value: str) -> str | None:
    return None if value == "" or value.endswith("7") else f"key-{value[-2:]}"


def _joined(one: str, other: str) -> str:
    return f"{one}|{other}"


def _joined_or_null(one: str, other: str | None) -> str:
    return _joined(one, "null" if other is None else other)


def _has_value(key: str, value: str | None) -> bool:
    return value is not None


def _note(record: InputRecord, noted: StoreView) -> None:
    noted.put(record.key, _noted_value(record))


def _note_window(record: InputRecord, noted: WindowView) -> None:
    noted.put(record.key, _noted_value(record), record.timestamp_ms - record.timestamp_ms % SIZE_MS)


def _note_session(record: InputRecord, noted: SessionView) -> None:
    start_ms = record.timestamp_ms - record.timestamp_ms % NOTED_SESSION_MS
    noted.put(record.key, start_ms, start_ms + NOTED_SESSION_MS, _noted_value(record))


def _noted_value(record: InputRecord) -> str | None:
    value = record.value
    return None if value is None or value.endswith("7") or "7|" in value else str(value)


def build(application_id: str, prefix: str, kept_stores: Iterable[str] = STORES) -> App:
    """The application of these stores, whose input topics begin with this prefix."""
    app = App(application_id)
    kept = Kept(app, prefix)
    for store in kept_stores:
        {**STORES, **MOVED, **BY_VERSION}[store](kept)
    return app


app = build(
    os.environ.get("CONFORMANCE_APPLICATION", "conformance"),
    os.environ.get("CONFORMANCE_PREFIX", ""),
    os.environ.get("CONFORMANCE_STORES", " ".join(STORES)).split(),
)
