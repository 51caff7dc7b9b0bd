"""What windows and sessions must hold, record by record in plain Python, as Kafka Streams' rules have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from service.worker.operators.operator_scene import Given, Scene
from stateline.log import Record
from stateline_store.rows.windowed_keys import split_session_key, split_window_key
from support.processes.running_worker import Stores, read_all

Add = Callable[[Any, Any], Any]  # aggregate or None, value → aggregate or None
Row = tuple[bytes, int]  # value and timestamp
Place = tuple[Any, ...]  # key and start; of sessions key, start and end
Held = dict[Place, tuple[Any, int]]
BASE_MS = 1_700_000_000_000


def events(count: int, seed: int = 0, *, first: int = 0, step_ms: int = 500, keys: int = 6) -> list[Given]:
    """At multiples of 250 ms, so that ends are met exactly. Mostly in order; one in five late by up to 20 s, one in ten
    by up to 200 s; duplicates; some without key or value; now and then a long silence."""
    chance = random.Random(seed)
    made: list[Given] = []
    for n in range(first, first + count):
        back = chance.choices([0, chance.randrange(80) * 250, chance.randrange(800) * 250], [7, 2, 1])[0]
        key = None if chance.random() < 0.04 else f"k{chance.randrange(keys)}"
        value = None if chance.random() < 0.06 else f"v{chance.randrange(10)}"
        silence = (n // 150) * 300_000
        made.append((key, value, BASE_MS + n * step_ms + silence - back))
        if chance.random() < 0.1:
            made.append(made[-1])
    return made


def count(aggregate: Any, value: Any) -> Any:
    del value
    return (aggregate or 0) + 1


def larger(aggregate: Any, value: Any) -> Any:
    """A reduce: the larger of two texts, nothing for a value of v3."""
    if aggregate is None:
        return value
    return None if value == "v3" else max(aggregate, value or "")


def chained(aggregate: Any, value: Any) -> Any:
    """An aggregate: the values in the order of their coming, at most six of them."""
    return ([*(aggregate or []), value])[-6:]


class TimeWindows:
    """Tumbling and hopping windows of one partition."""

    def __init__(self, size: int, advance: int, grace: int, add: Add, retention: int | None = None) -> None:
        self.size, self.advance, self.grace, self.add = size, advance, grace, add
        self.retention = size + grace if retention is None else retention
        self.rows: Held = {}
        self.observed = self.newest_start = -1
        self.dropped = 0

    def process(self, key: bytes | None, value: Any, at: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.observed = max(self.observed, at)
        start = at - at % self.advance
        while start > at - self.size and start >= 0:
            if start + self.size > self.observed - self.grace:
                self._put(key, start, value, at)
            else:
                self.dropped += 1
            start -= self.advance

    def _put(self, key: bytes, start: int, value: Any, at: int) -> None:
        old, stamp = self.rows.get((key, start), (None, at))
        new = self.add(old, value)
        self.newest_start = max(self.newest_start, start)
        if new is None:
            self.rows.pop((key, start), None)
        else:
            self.rows[key, start] = new, max(stamp, at)

    def all(self) -> Held:
        return self.rows

    def live(self) -> Held:
        return {row: value for row, value in self.rows.items() if row[1] > self.newest_start - self.retention}

    def final(self) -> Held:
        return {r: v for r, v in self.rows.items() if r[1] + self.size <= self.observed - self.grace}


class Sliding(TimeWindows):
    """Sliding windows of one partition, from the definition: of the records that were not dropped, each of another time
    ends one window, and begins one right after it if that has records. A window that is closed takes no more."""

    def __init__(self, difference: int, grace: int, add: Add, retention: int | None = None) -> None:
        super().__init__(difference, 1, grace, add, 2 * difference + grace if retention is None else retention)

    def process(self, key: bytes | None, value: Any, at: int) -> None:
        if key is None or value is None:
            self.dropped += 1
            return
        self.observed = max(self.observed, at)
        if at + self.size < self.observed - self.grace:
            self.dropped += 1
            return
        self.in_order(key, value, at)

    def in_order(self, key: bytes, value: Any, at: int) -> None:
        """KStreamSlidingWindowAggregate.processInOrder; the operator has the steps of processReverse. They part where
        another record of this time has been before and a window is not there because its aggregate was None."""
        assert at >= self.size
        seen = max(at - 2 * self.size, self.newest_start - self.retention + 1, 0)
        starts = sorted(s for k, s in self.rows if k == key and seen <= s <= at + 1)
        found = {start: self.rows[key, start] for start in starts}
        left: Any = None
        right: tuple[Any, int] | None = None
        has_left = has_right = False
        previous: int | None = None
        for start, row in found.items():
            if start + self.size < at:
                left, previous = row[0], row[1]
            elif start + self.size == at:
                has_left = True
                previous = row[1] if row[1] < at else previous
                self._into(key, start, row, value, at)
            elif start <= at:
                right = row
                self._into(key, start, row, value, at)
            else:
                has_right = True
        if found.get(at - self.size, (None, -1))[1] == at:
            return
        if previous is not None and previous + 1 not in found and previous + 1 + self.size >= at:
            self._into(key, previous + 1, (None, at), value, at)
        if not has_left:
            inside = previous is not None and at - self.size <= previous
            self._into(key, at - self.size, (left if inside else None, at), value, at)
        if not has_right and right is not None and right[1] > at:
            self._set(key, at + 1, right)

    def _into(self, key: bytes, start: int, row: tuple[Any, int], value: Any, at: int) -> None:
        if start + self.size < self.observed - self.grace:
            self.dropped += 1
            return
        self._set(key, start, (self.add(row[0], value), at if row[0] is None else max(row[1], at)))

    def _set(self, key: bytes, start: int, row: tuple[Any, int]) -> None:
        self.newest_start = max(self.newest_start, start)
        self.rows[key, start] = row
        if row[0] is None:
            del self.rows[key, start]

    def final(self) -> Held:
        return {r: v for r, v in self.rows.items() if r[1] + self.size < self.observed - self.grace}


class Sessions:
    """Sessions of one partition, by (key, start, end)."""

    def __init__(self, gap: int, grace: int, add: Add, merge: Add, retention: int | None = None) -> None:
        self.gap, self.grace, self.add, self.merge = gap, grace, add, merge
        self.retention = gap + grace if retention is None else retention
        self.rows: Held = {}
        self.observed = self.newest_end = -1
        self.dropped = 0

    def process(self, key: bytes | None, value: Any, at: int) -> None:
        if key is None:
            self.dropped += 1
            return
        self.observed = max(self.observed, at)
        found = sorted((e, s) for k, s, e in self.rows if k == key and self._joins(s, e, at))
        start, end = min([at, *(s for _, s in found)]), max([at, *(e for e, _ in found)])
        if end < self.observed - self.grace - self.gap:
            self.dropped += 1
            return
        aggregate = None
        for e, s in found:
            aggregate = self.merge(aggregate, self.rows.pop((key, s, e))[0])
        self.rows.pop((key, start, end), None)
        self.newest_end = max(self.newest_end, end)
        new = self.add(aggregate, value)
        if new is not None:
            self.rows[key, start, end] = new, at

    def _joins(self, start: int, end: int, at: int) -> bool:
        return end >= at - self.gap and start <= at + self.gap and end > self.newest_end - self.retention

    def all(self) -> Held:
        return self.rows

    def live(self) -> Held:
        return {row: value for row, value in self.rows.items() if row[2] > self.newest_end - self.retention}

    def final(self) -> Held:
        """Their changes have the session's end as timestamp."""
        closed = self.observed - self.grace - self.gap
        return {row: (value, row[2]) for row, (value, _) in self.rows.items() if row[2] < closed}


def parts(key: bytes, *, sessions: bool) -> tuple[Any, ...]:
    """(key, start) or (key, start, end) of a changelog's key."""
    return tuple(split_session_key(key)) if sessions else split_window_key(key)[:2]


def compacted(records: list[Record], *, sessions: bool) -> dict[tuple[Any, ...], Row]:
    """What is left of a changelog: the newest value and timestamp of each key."""
    newest: dict[bytes, Row | None] = {}
    for record in records:
        assert record.key is not None
        newest[record.key] = None if record.value is None else (record.value, record.timestamp_ms)
    return {parts(key, sessions=sessions): row for key, row in newest.items() if row is not None}


def held(scene: Scene, store: str, *, sessions: bool) -> dict[tuple[Any, ...], Row]:
    """The committed rows of a store of windows or sessions that its retention still shows."""
    found: dict[tuple[Any, ...], Row] = {}
    stores, retention = (
        Stores(scene.app, scene.config, scene.root / "scratch"),
        scene.app.topology().stores[store].retention_ms,
    )
    try:
        for partition in range(scene.count("events")):
            reader = stores.reader(store, partition)
            if reader is None:
                continue
            with reader.range(None, None) as rows:
                for stored, row in rows:
                    place = parts(stored[8:], sessions=sessions)
                    if place[-1] > reader.stream_time_ms - retention:
                        found[place] = row[8:], int.from_bytes(row[:8], "big", signed=True)
    finally:
        stores.close()
    return found


Oracle = TimeWindows | Sessions


def oracles(scene: Scene, make: Callable[[], Oracle], topic: str = "events") -> list[Oracle]:
    """One for each partition, which has processed all of its records in the log's order."""
    made = [make() for _ in range(scene.count("events"))]
    for record in sorted(read_all(scene.log, topic, scene.count(topic)), key=lambda record: record.offset):
        value = None if record.value is None else record.value.decode()
        made[record.partition].process(record.key, value, record.timestamp_ms)
    return made


def check(scene: Scene, store: str, made: list[Oracle], write: Callable[[Any], bytes]) -> None:
    """The store holds what the oracles hold, and its changelog, compacted, what they have ever held."""
    sessions = isinstance(made[0], Sessions)

    def typed(rows: dict[Any, tuple[Any, int]]) -> dict[tuple[Any, ...], Row]:
        return {place: (write(value), at) for place, (value, at) in rows.items()}

    live = {place: row for oracle in made for place, row in typed(oracle.live()).items()}
    ever = {place: row for oracle in made for place, row in typed(oracle.all()).items()}
    assert live, "the test has live windows"
    assert held(scene, store, sessions=sessions) == live
    changelog = read_all(scene.log, f"{scene.app.application_id}-{store}-changelog", scene.count("events"))
    assert compacted(changelog, sessions=sessions) == ever
