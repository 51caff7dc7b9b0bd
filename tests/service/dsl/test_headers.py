"""Record headers travel with the rows of a stream, as in Kafka Streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, JoinWindows, TumblingWindows, serdes, stores
from stateline.dsl.streams import Stream
from stateline.testing import Record, TestDriver

AT_ONCE = JoinWindows(timedelta(0), grace=timedelta(seconds=1))
SENT = [("trace", b"1"), ("none", None), ("trace", b"2")]  # a name may come twice, and order counts


def piped(build: Callable[[Stream, Any], Any], config: dict[str, str] | None = None) -> list[Record]:
    """What reaches the topic `out` for the second of two records, whose headers are `SENT`. The function gets a stream
    and a table of the same key."""
    app = App("headers")
    table = app.table("other", key=serdes.string, value=serdes.string)
    rows = app.stream("in", key=serdes.string, value=serdes.string)
    build(rows, app.ktable(table)).to(app.topic("out", key=serdes.string, value=serdes.string))
    with TestDriver(app, config=config) as driver:
        driver.pipe("other", "a", "there", timestamp_ms=1, headers=[("of", b"the table")])
        driver.pipe("in", "a", "x", timestamp_ms=1, headers=[("of", b"the record before")])
        driver.read("out")
        driver.pipe("in", "a", "x", timestamp_ms=2, headers=SENT)
        return driver.read("out")


STEPS: dict[str, Callable[[Stream, Any], Any]] = {
    "nothing": lambda s, t: s,
    "filter": lambda s, t: s.filter(lambda k, v: True),
    "peek": lambda s, t: s.peek(lambda k, v: None),
    "map_values": lambda s, t: s.map_values(lambda k, v: v.upper()),
    "map": lambda s, t: s.map(lambda k, v: (v, k), key=serdes.string),
    "flat_map": lambda s, t: s.flat_map(lambda k, v: [(k, v)]),
    "merge": lambda s, t: s.merge(s.filter(lambda k, v: False)),
    "repartition": lambda s, t: s.select_key(lambda k, v: v, key=serdes.string).repartition("by-value"),
    "join": lambda s, t: s.join(t.store, lambda mine, theirs: mine),
    "left_join": lambda s, t: s.left_join(t.store, lambda mine, theirs: mine),
    "stream join": lambda s, t: s.join(s, lambda mine, theirs: mine, within=AT_ONCE),
    "to_table": lambda s, t: s.to_table("kept").to_stream(),
    "table join": lambda s, t: s.to_table("kept").join(t, lambda mine, theirs: mine, store="joined").to_stream(),
    "reduce": lambda s, t: s.group_by_key().reduce(lambda old, new: new, "newest").to_stream(),
    "count": lambda s, t: (
        s.group_by_key().count("counts").to_stream().map_values(lambda k, v: str(v), value=serdes.string)
    ),
    "windowed count": lambda s, t: (
        s.group_by_key().windowed_by(TumblingWindows(timedelta(seconds=1))).count("in-windows").to_stream()
        .map(lambda k, v: (k.key, str(v)), key=serdes.string, value=serdes.string)
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize("step", STEPS)
def test_a_row_leaves_each_operator_with_the_headers_of_the_record_that_made_it(step: str, form: str) -> None:
    made = piped(STEPS[step], {"dsl.store.format": form})
    assert [list(record.headers) for record in made] == [SENT]
    assert [record.value for record in made] == [record.value for record in piped(STEPS[step])]


def test_a_function_in_a_stream_keeps_headers_unless_it_returns_a_record_with_others() -> None:
    def made(record: Any) -> Iterator[Any]:
        yield record.key, record.value
        yield record._replace(value="same")
        yield record._replace(value="other", headers=[("made", b"here")])
        yield record._replace(value="none", headers=())

    found = piped(lambda s, t: s.process(made).filter(lambda k, v: True))
    assert [(r.value, list(r.headers)) for r in found] == [
        ("x", SENT), ("same", SENT), ("other", [("made", b"here")]), ("none", [])
    ]  # fmt: skip
    found = piped(lambda s, t: s.process_values(lambda record: [record.value, "again"]))
    assert [list(r.headers) for r in found] == [SENT, SENT]


def test_what_is_no_header_meets_the_policy_for_records_that_fail() -> None:
    def made(record: Any) -> Any:
        return [record._replace(headers=[("no bytes", "text")])]

    assert piped(lambda s, t: s.process(made), {"processing.exception.handler": "skip"}) == []


def test_forward_hands_on_the_headers_of_the_record_and_a_punctuation_has_none() -> None:
    app = App("forwards")
    out = app.topic("out", key=serdes.string, value=serdes.string)

    @app.process("in", key=serdes.string, value=serdes.string, forwards=[out])
    def hand_on(record: Any, out: Any) -> None:
        out.forward(record.key, "kept")
        out.forward(record.key, "cleared", headers=())
        out.forward(record.key, "own", headers=[("own", b"1")])

    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[kept])
    def keep(record: Any, kept: Any) -> None:
        kept.put(record.key, record.value)

    @app.punctuate(every=timedelta(seconds=1), on="wall_clock_time", stores=[kept], forwards=[out])
    def tick(now_ms: int, kept: Any, out: Any) -> None:
        out.forward("a", "tick")

    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x", headers=SENT)
        found = {record.value: list(record.headers) for record in driver.read("out")}
        assert found == {"kept": SENT, "cleared": [], "own": [("own", b"1")]}
        driver.advance_wall_clock(timedelta(seconds=2))
        assert [(r.value, list(r.headers)) for r in driver.read("out")] == [("tick", [])]


def test_of_keys_that_a_table_lets_expire_the_deletions_have_no_headers_of_another_record() -> None:
    app = App("expiry")
    table = app.table("in", key=serdes.string, value=serdes.string, ttl=timedelta(seconds=1))
    app.ktable(table).to_stream().to(app.topic("out", key=serdes.string, value=serdes.string))
    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=1, headers=[("of", b"a")])
        driver.read("out")
        driver.pipe("in", "b", "y", timestamp_ms=5_000, headers=SENT)
        assert {r.key: (r.value, list(r.headers)) for r in driver.read("out")} == {"b": ("y", SENT), "a": (None, [])}
