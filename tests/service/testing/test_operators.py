"""Windows, sessions and joins in a test driver: what the oracles of a worker's operators make of the same records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from service.testing import orders
from service.worker.operators import test_stream_table_joins as joins
from service.worker.operators.test_punctuation import oracle as called
from service.worker.operators.test_punctuation import records, summing
from service.worker.operators.test_windows import built
from service.worker.operators.windows_oracle import BASE_MS, Sessions, Sliding, TimeWindows, count, events
from stateline import App, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows, serdes, until_window_closes
from stateline.testing import Record, TestDriver

SIZE, ADVANCE, GRACE = timedelta(seconds=30), timedelta(seconds=12), timedelta(seconds=25)
Case = tuple[Any, Callable[[], TimeWindows | Sessions]]
CASES: dict[str, Case] = {
    "tumbling": (TumblingWindows(SIZE, grace=GRACE), lambda: TimeWindows(30_000, 30_000, 25_000, count)),
    "hopping": (HoppingWindows(SIZE, ADVANCE, grace=GRACE), lambda: TimeWindows(30_000, 12_000, 25_000, count)),
    "sliding": (SlidingWindows(SIZE, grace=GRACE), lambda: Sliding(30_000, 25_000, count)),
    "sessions": (
        SessionWindows(timedelta(seconds=4), grace=GRACE),
        lambda: Sessions(4_000, 25_000, count, lambda one, other: (one or 0) + other),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_windows_hold_what_their_records_make_of_them_by_stream_time(guarantee: str, case: str) -> None:
    windows, make = CASES[case]
    wanted = make()
    given = events(300)
    app = built(windows, lambda w: w.count("kept"))
    with TestDriver(app, config={"processing.guarantee": guarantee}, wall_clock_ms=0) as driver:
        for part in (given[:150], given[150:]):
            driver.pipe_all("events", [Record(*each) for each in part])
            driver.restart()
        for key, value, at in given:
            wanted.process(None if key is None else key.encode(), value, at)
        kept = driver.store("kept")
        found: dict[Any, Any] = {}
        for window in kept.fetch_all():
            end = (window.end,) if case == "sessions" else ()
            found[window.key.encode(), window.start, *end] = window.value, window.timestamp
        assert wanted.dropped > 10
        assert found == wanted.live()
        first = min(found)
        assert kept.fetch(first[0].decode(), first[1], first[1])[0].value == found[first][0]


def test_a_window_is_emitted_when_stream_time_has_closed_it() -> None:
    app = App("final")
    counted = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    counts = counted.windowed_by(TumblingWindows(SIZE, grace=timedelta(0))).count("kept")
    counts.suppress(until_window_closes()).to_stream().to(
        app.topic("final", key=serdes.windowed(serdes.string), value=serdes.int64)
    )
    first = BASE_MS - BASE_MS % 30_000
    with TestDriver(app) as driver:
        driver.pipe("events", "a", "x", timestamp_ms=first)
        driver.pipe("events", "a", "x", timestamp_ms=first + 29_999)
        assert driver.read("final") == []
        driver.pipe("events", "b", "x", timestamp_ms=first + 30_000)
        assert driver.read("final") == [Record(("a", first), 2, timestamp_ms=first + 29_999)]


@pytest.mark.parametrize("left", [False, True], ids=["inner", "left"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_stream_is_joined_with_the_tables_value_of_that_time(left: bool, one_by_one: bool) -> None:
    app = App("joined")
    stream = app.stream("rows", key=serdes.string, value=serdes.string)
    table = app.ktable(app.table("table", key=serdes.string, value=serdes.string))
    out = app.topic("out", key=serdes.string, value=serdes.string)
    (stream.left_join(table, joins.pair) if left else stream.join(table, joins.pair)).to(out)
    rows, changes = joins.rows_and_changes(120 if one_by_one else 600, 1)
    merged = sorted([("rows", *each) for each in rows] + [("table", *each) for each in changes], key=lambda r: r[3])
    wanted, _ = joins.oracle(rows, changes, left=left)
    with TestDriver(app, config={"processing.guarantee": "exactly_once_v2"}) as driver:
        if one_by_one:
            for topic, key, value, at in merged:
                driver.pipe(topic, key, value, timestamp_ms=at)
        else:  # read together: what was processed first, the table before all rows, is aborted
            driver.autocommit = False
            driver.pipe_all("table", [Record(*each) for each in changes])
            driver.pipe_all("rows", [Record(*each) for each in rows])
            driver.abort()
            driver.commit()
        found = [
            (None if r.key is None else r.key.encode(), r.value.encode(), r.timestamp_ms) for r in driver.read("out")
        ]
        assert found == wanted
    assert len(wanted) >= 40


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_what_gets_another_key_is_followed_through_its_repartition_topic(guarantee: str) -> None:
    app = App("re-keyed")
    stream = app.stream("orders", key=serdes.string, value=serdes.json)
    by_city = stream.select_key(lambda key, order: order["city"], key=serdes.string)
    by_city = by_city.repartition("by-city")
    counted = by_city.group_by_key().count("orders_in")
    counted.to_stream().to(app.topic("counts", key=serdes.string, value=serdes.int64))
    with TestDriver(app, partitions=3, config={"processing.guarantee": guarantee}) as driver:
        for n in range(12):
            driver.pipe("orders", f"k{n}", {"city": "abc"[n % 3]})
        assert {entry.key: entry.value for entry in driver.store("orders_in").all()} == {"a": 4, "b": 4, "c": 4}
        assert sorted((r.key, r.value) for r in driver.read("counts")) == [(c, n) for c in "abc" for n in range(1, 5)]


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_punctuations_by_stream_time_are_called_as_the_oracle_says_also_over_restarts(guarantee: str) -> None:
    given = records(400, 1, 1_000_000)
    with TestDriver(summing(), config={"processing.guarantee": guarantee}) as driver:
        for part in (given[:150], given[150:151], given[151:]):
            driver.pipe_all("in", [Record(*each) for each in part])
            driver.restart()
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")] == [
            (at, counted, at) for at, counted in called(given)
        ]


def test_tables_drop_records_without_a_key_and_go_on(caplog: pytest.LogCaptureFixture) -> None:
    app = App("tables")
    app.ktable(app.table("a", key=serdes.string, value=serdes.string)).to_stream().to("out")
    app.global_table("everywhere", key=serdes.string, value=serdes.string)
    with TestDriver(app) as driver:
        for topic in ("a", "everywhere"):
            driver.pipe(topic, None, "1")
            driver.pipe(topic, "k", "2")
            said = f"'read {topic}' drops records that have no key: 1 so far, of 1 records"
            assert said in caplog.text
        assert [(row.key, row.value) for row in driver.read("out")] == [("k", "2")]
        assert driver.store("everywhere").get("k") == "2"
        driver.restart()
        assert driver.store("a").get("k") == "2"
