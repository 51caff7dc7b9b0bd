"""A record whose timestamp in the log is negative meets the policy for what cannot be read, whatever is made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, InputRecord, SessionWindows, StoreView, TumblingWindows, WindowView, serdes, stores
from stateline.model.topic import Topic
from stateline.testing import TestDriver
from stateline_store import RecordError
from support.run.length import long_only

HOUR = timedelta(hours=1)
ZERO_OF_GO = -62_135_596_800_000
Kind = Callable[[App, Topic], object]


def _putting(store: Any) -> Kind:
    def declare(app: App, topic: Topic) -> None:
        kept = app.store(store)

        @app.process(topic, stores=[kept])
        def put(record: InputRecord, kept: StoreView) -> None:
            kept.put(record.key, record.value)

    return declare


def _windows(app: App, topic: Topic) -> None:
    kept = app.store(stores.window("s", key=serdes.string, value=serdes.string, size=HOUR, retention=HOUR))

    @app.process(topic, stores=[kept])
    def put(record: InputRecord, kept: WindowView) -> None:
        kept.put(record.key, record.value, record.timestamp_ms // 3_600_000 * 3_600_000)


def _joined(app: App, topic: Topic) -> None:
    table = app.table("other", key=serdes.string, value=serdes.string, store="others")
    app.stream(topic).left_join(table, lambda value, other: value).to_table("s")


def _joined_global(app: App, topic: Topic) -> None:
    table = app.global_table("other", key=serdes.string, value=serdes.string, store="others")
    app.stream(topic).left_join(table, lambda value, other: value, on=lambda key, value: key).to_table("s")


def _joined_as_table(app: App, topic: Topic) -> None:
    table = app.table(topic, store="s")
    app.stream("other", key=serdes.string, value=serdes.string).join(table, lambda value, other: other).to_table("o")


TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
KINDS: dict[str, Kind] = {
    "table": lambda app, topic: app.table(topic, store="s"),
    "versioned table": lambda app, topic: app.table(topic, store="s", versioned=HOUR),
    "table with ttl": lambda app, topic: app.table(topic, store="s", ttl=HOUR),
    "table in memory": lambda app, topic: app.table(topic, store="s", persistent=False),
    "global table": lambda app, topic: (
        app.stream("other", **TEXTS).join(app.global_table(topic, store="s"), lambda a, b: a, on=lambda k, v: k).to("o")
    ),
    "to_table": lambda app, topic: app.stream(topic).to_table("s"),
    "through a topic": lambda app, topic: app.stream(topic).repartition("by").to_table("s"),
    "ktable": lambda app, topic: app.ktable(app.table(topic, store="b")).map_values(lambda k, v: v, "s"),
    "count": lambda app, topic: app.stream(topic).group_by_key().count("s"),
    "windows": lambda app, topic: app.stream(topic).group_by_key().windowed_by(TumblingWindows(HOUR)).count("s"),
    "sessions": lambda app, topic: app.stream(topic).group_by_key().windowed_by(SessionWindows(HOUR)).count("s"),
    "join": _joined,
    "join with a global table": _joined_global,
    "join as the table": _joined_as_table,
    "store": _putting(stores.key_value("s", **TEXTS)),
    "timestamped store": _putting(stores.timestamped_key_value("s", **TEXTS)),
    "store with ttl": _putting(stores.timestamped_key_value("s", ttl=HOUR, **TEXTS)),
    "versioned store": _putting(stores.versioned("s", history=HOUR, **TEXTS)),
    "window store": _windows,
}
READS = {"windows": "windows", "sessions": "sessions", "window store": "windows"}


def application(kind: str, policy: str, guarantee: str = "at_least_once") -> App:
    config = {
        "deserialization.exception.handler": policy,
        "processing.guarantee": guarantee,
        "errors.dead.letter.queue.topic.name": "dead",
    }
    app = App("negative", config=config)
    app.topic("o", **TEXTS)
    KINDS[kind](app, app.topic("in", **TEXTS))
    return app


def keys(driver: TestDriver, kind: str) -> set[str]:
    answer = driver.client.get(f"/v1/stores/s/{READS.get(kind, 'range')}").json()
    return {entry["key"] for entry in answer["entries"]}


@pytest.mark.parametrize(
    "policy", [pytest.param("skip", marks=long_only("a dead letter is left out, too")), "dead-letter"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_left_out_or_set_aside_and_the_worker_goes_on(kind: str, policy: str) -> None:
    with TestDriver(application(kind, policy)) as driver:
        driver.pipe_bytes("in", b"a", b"v", timestamp_ms=1000)
        for at in (-1, ZERO_OF_GO):
            driver.pipe_bytes("in", b"b", b"v", timestamp_ms=at)
        driver.pipe_bytes("in", b"c", b"v", timestamp_ms=2000)
        assert keys(driver, kind) == {"a", "c"}
        dead = driver.dead_letters()
        # Each worker reads a global table, and writes no dead letters of it.
        assert len(dead) == (2 if policy == "dead-letter" and kind != "global table" else 0)
        for letter, at in zip(dead, (-1, ZERO_OF_GO), strict=False):
            assert f"Its timestamp in the log is {at}" in letter.message
            assert dict(letter.headers)["__streams.errors.timestamp"] == str(at).encode()
            assert abs(letter.timestamp_ms - time.time_ns() // 1_000_000) < 3_600_000
        driver.restart()
        assert keys(driver, kind) == {"a", "c"}


@pytest.mark.parametrize("kind", KINDS)
def test_under_fail_the_worker_ends_and_names_the_record_and_the_way_out(kind: str) -> None:
    with TestDriver(application(kind, "fail")) as driver:
        driver.pipe_bytes("in", b"a", b"v", timestamp_ms=1000)
        with pytest.raises(RecordError) as raised:
            driver.pipe_bytes("in", b"b", b"v", timestamp_ms=-1)
        said = str(raised.value)
        assert "in-0 offset 1 key b'b'" in said
        assert "timestamp in the log is -1" in said
        assert "set deserialization.exception.handler to skip" in said


def test_a_topic_that_tells_its_own_time_takes_it_and_a_dead_letter_of_it_can_be_written() -> None:
    config = {"deserialization.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "dead"}
    app = App("own", config=config)
    by_field = app.topic("in", key=serdes.string, value=serdes.json, timestamp="at")
    app.table(by_field, store="s", versioned=HOUR)
    said: list[int] = []

    def told(record: InputRecord, partition_time_ms: int) -> int:
        said.append(record.timestamp_ms)
        return max(record.timestamp_ms, 7)

    app.table(app.topic("told", key=serdes.string, value=serdes.json, timestamp=told), store="t")
    with TestDriver(app) as driver:
        driver.pipe_bytes("in", b"a", b'{"at": 5000}', timestamp_ms=-1)
        driver.pipe_bytes("in", b"b", b'{"at": -5}', timestamp_ms=-1)
        driver.pipe_bytes("in", b"c", b"no JSON", timestamp_ms=ZERO_OF_GO)
        driver.pipe_bytes("told", b"d", b"1", timestamp_ms=-1)
        assert keys(driver, "versioned table") == {"a"}
        assert [letter.key for letter in driver.dead_letters()] == [b"b", b"c"]
        entry = driver.store("t").entry("d")
        assert entry is not None
        assert (entry.timestamp, said[0]) == (7, -1)
