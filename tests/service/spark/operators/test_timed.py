"""Joins by event time and sessions: what leaves a pipeline equals what plain Python makes of the whole topics.

Keys are in several partitions, of which a micro-batch of few records reads some of each: they come in order of time
within a key only. The last record of each topic is hours later: the watermark passes all others, and nothing waits any
more.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from service.spark.operators.bench import OperatorBench, Record, declare, newest
from stateline import serdes
from stateline.dsl.app import App
from stateline.spark import KTable, join_stream_table, session_aggregate
from stateline_store import TopologyError
from support.run.length import long_only

DOCUMENT = Path(__file__).parents[4] / "docs" / "operators.md"
MINUTE = 60_000
START = 1_356_998_400_000
END = ("end", {"n": -1}, START + 600 * MINUTE)
HOUR, TEN_MINUTES = timedelta(hours=1), timedelta(minutes=10)

app = App("operators")
clicks = app.topic("clicks", key=serdes.string, value=serdes.json, schema="n int")
views = app.topic("views", key=serdes.string, value=serdes.json, schema="n int")
prices = app.topic("prices", key=serdes.string, value=serdes.json, schema="price double")
priced_by = partial(declare, app, reads=clicks, tables=[prices], key="_key")
both = partial(declare, app, reads=[clicks, views], key="clicked", output_mode="append")


@priced_by()
def priced(clicks: DataFrame, prices: KTable) -> DataFrame:
    """KStream–KTable join, by event time."""
    return join_stream_table(clicks, prices, "_key", delay=TEN_MINUTES, table_delay=TEN_MINUTES)


@priced_by()
def priced_or_not(clicks: DataFrame, prices: KTable) -> DataFrame:
    """KStream–KTable leftJoin, by event time."""
    return join_stream_table(clicks, prices, "_key", delay=TEN_MINUTES, table_delay=TEN_MINUTES, how="left")


@priced_by()
def priced_early(clicks: DataFrame, prices: KTable) -> DataFrame:
    """A watermark without delay, of the stream alone."""
    return join_stream_table(clicks, prices, "_key", delay=timedelta(0), how="left")


def within(clicks: DataFrame, views: DataFrame, how: str) -> DataFrame:
    """Clicks and views of a key at most two minutes apart."""
    left = clicks.select(F.col("_key").alias("a"), F.col("n").alias("clicked"), F.col("_timestamp").alias("at"))
    right = views.select(F.col("_key").alias("b"), F.col("n").alias("viewed"), F.col("_timestamp").alias("seen"))
    near = F.expr("a = b AND seen BETWEEN at - INTERVAL 2 MINUTES AND at + INTERVAL 2 MINUTES")
    joined = left.withWatermark("at", "1 hour").join(right.withWatermark("seen", "1 hour"), near, how)
    return joined.select("a", "b", "clicked", "viewed")


@both()
def met(clicks: DataFrame, views: DataFrame) -> DataFrame:
    """KStream–KStream join."""
    return within(clicks, views, "inner")


@both()
def met_or_clicked(clicks: DataFrame, views: DataFrame) -> DataFrame:
    """KStream–KStream leftJoin."""
    return within(clicks, views, "left_outer")


@both()
def met_or_either(clicks: DataFrame, views: DataFrame) -> DataFrame:
    """KStream–KStream outerJoin."""
    return within(clicks, views, "full_outer")


@declare(app, reads=clicks, key="_key")
def visits(clicks: DataFrame) -> DataFrame:
    """Aggregate by sessions, in update mode."""

    def add(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        return {"sum": total["sum"] + value["n"], "rows": total["rows"] + 1}

    def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {name: one[name] + other[name] for name in one}

    initial = {"sum": 0, "rows": 0}
    return session_aggregate(
        clicks, "_key", gap=timedelta(minutes=3), delay=HOUR, initial=initial, add=add, merge=merge,
        schema="sum bigint, rows int",
    )  # fmt: skip


class Reminders(StatefulProcessor):
    """Of each row a reminder, a minute after its time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        for row in rows:
            self._handle.registerTimer(row["at"] + MINUTE)
        return iter(())

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803  # Spark's name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803  # Spark's name
    ) -> Iterator[Row]:
        yield Row(_key=key[0], due=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Nothing is held."""


@declare(app, reads=clicks, key=("_key", "due"), output_mode="append")
def reminded(clicks: DataFrame) -> DataFrame:
    """transform, process: timers of one's own, by event time."""
    rows = clicks.withWatermark("_timestamp", "1 hour").withColumn("at", F.unix_millis("_timestamp"))
    return rows.groupBy("_key").transformWithState(Reminders(), "_key string, due bigint", "Append", "EventTime")


def random_events(count: int, seed: int, member: str = "n") -> list[Record]:
    """Of a few keys, a minute apart or so; a tenth of them is some minutes late."""
    chance = random.Random(seed)
    made: list[Record] = []
    at = START
    for number in range(count):
        at += chance.randrange(0, 2 * MINUTE)
        late = chance.randrange(5 * MINUTE) if chance.random() < 0.1 else 0
        made.append((chance.choice("abcd"), {member: number}, at - late))
    return made


def random_prices(count: int, seed: int) -> list[Record]:
    """Three in the time of an event, so that a micro-batch of as many records comes less far in them."""
    chance = random.Random(seed)
    events = random_events(count, seed, "price")
    return [(k, None if chance.random() < 0.2 else v, START + (at - START) // 3) for k, v, at in events]


def named(name: str) -> Any:
    return app.topology().pipelines[name]


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_a_stream_joins_a_table_as_of_each_rows_time(bench: OperatorBench, rows_per_batch: int) -> None:
    of_clicks, of_prices = random_events(40, seed=1), random_prices(120, seed=2)
    bench.write("clicks", [*of_clicks, END])
    bench.write("prices", [*of_prices, ("end", {"price": 1}, END[2])])
    found = bench.run(named("priced"), named("priced_or_not"), rows_per_batch=rows_per_batch)

    versions = sorted(
        ((at, offset, key, value) for offset, (key, value, at) in enumerate(of_prices)), key=lambda v: v[:2]
    )
    expected: Counter[Any] = Counter()
    for key, value, at in of_clicks:
        then = [v for when, _, k, v in versions if k == key and when <= at]
        expected[(key, value["n"], iso(at), then[-1]["price"] if then and then[-1] else None)] += 1
    for name, wanted in (
        ("priced_or_not", expected),
        ("priced", Counter({row: count for row, count in expected.items() if row[3] is not None})),
    ):
        rows = [row for row in found[name] if row["_key"] != "end"]
        assert Counter((row["_key"], row["n"], row["_timestamp"], row["price"]) for row in rows) == wanted
        assert all("_offset" in row and "_order" not in row for row in rows)  # an offset orders only its key's rows
    assert len({price for *_, price in expected}) > 10


def test_a_row_that_comes_after_the_watermark_still_leaves(bench: OperatorBench) -> None:
    events = random_events(60, seed=6)
    bench.write("clicks", [*events, END])
    bench.write("prices", [END])
    rows = bench.run(named("priced_early"), rows_per_batch=30)["priced_early"]
    assert sorted(row["n"] for row in rows if row["_key"] != "end") == list(range(60))


def test_the_example_of_the_document_runs(bench: OperatorBench) -> None:
    scope: dict[str, Any] = {}
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    exec(code[1], scope)
    bench.write("customers", [("c", {"name": "Ada", "level": 1}, START), ("d", {"name": "Bo", "level": 1}, START)])
    bench.write("orders", [("c", {"city": "Bath", "amount": 3}, START + 1), ("d", None, START + 300 * MINUTE)])
    bench.write("orders", [("c", {"city": "Bath", "amount": 4}, START + 300 * MINUTE)])
    found = bench.run(*scope["app"].topology().pipelines.values())
    assert newest(found["members"], "_key") == {key: {"name": name} for key, name in (("c", "Ada"), ("d", "Bo"))}
    assert [(row["name"], row["amount"]) for row in found["named_orders"]] == [("Ada", 3)]


@long_only("a join of two streams is Spark's own operator, and Stateline adds nothing to it")
def test_joins_of_streams_equal_the_pairs_within_the_window(bench: OperatorBench, rows_per_batch: int) -> None:
    of_clicks, of_views = random_events(50, seed=3), random_events(50, seed=4)
    bench.write("clicks", [*of_clicks, END])
    bench.write("views", [*of_views, END])
    found = bench.run(named("met"), named("met_or_clicked"), named("met_or_either"), rows_per_batch=rows_per_batch)
    pairs = [
        (key, key, value["n"], other["n"])
        for key, value, at in of_clicks
        for match, other, seen in of_views
        if key == match and abs(at - seen) <= 2 * MINUTE
    ]
    alone = [(k, None, v["n"], None) for k, v, _ in of_clicks if v["n"] not in {pair[2] for pair in pairs}]
    unseen = [(None, k, None, v["n"]) for k, v, _ in of_views if v["n"] not in {pair[3] for pair in pairs}]
    assert pairs
    assert alone
    assert unseen
    for name, wanted in (
        ("met", pairs),
        ("met_or_clicked", [*pairs, *alone]),
        ("met_or_either", [*pairs, *alone, *unseen]),
    ):
        rows = [(row["a"], row["b"], row["clicked"], row["viewed"]) for row in found[name]]
        assert Counter(row for row in rows if "end" not in row) == Counter(wanted)


def test_sessions_grow_merge_and_leave_tombstones(bench: OperatorBench, rows_per_batch: int) -> None:
    events = random_events(90, seed=5)
    bench.write("clicks", [*events, END])
    rows = bench.run(named("visits"), rows_per_batch=rows_per_batch)["visits"]
    expected: dict[Any, dict[str, int]] = {}
    for key in "abcd":
        sessions: list[list[tuple[int, int]]] = []
        for at, number in sorted((at, value["n"]) for name, value, at in events if name == key):
            if sessions and at - sessions[-1][-1][0] <= 3 * MINUTE:
                sessions[-1].append((at, number))
            else:
                sessions.append([(at, number)])
        for session in sessions:
            name = (key, iso(session[0][0]), iso(session[-1][0] + 3 * MINUTE))
            expected[name] = {"sum": sum(number for _, number in session), "rows": len(session)}
    flat = [
        {**{name: value for name, value in row.items() if name != "session"}, **row["session"]}
        for row in rows
        if row["_key"] != "end"
    ]
    assert newest(flat, "_key", "start", "end") == expected
    assert any(row["_deleted"] for row in rows) == (rows_per_batch < 90)


@long_only("timers of one's own are Spark's; test_sessions_grow_… has those of Stateline's own processor")
def test_timers_of_ones_own_come_once_each(bench: OperatorBench, rows_per_batch: int) -> None:
    events = random_events(60, seed=7)
    bench.write("clicks", [*events, END])
    rows = bench.run(named("reminded"), rows_per_batch=rows_per_batch)["reminded"]
    assert sorted((row["_key"], row["due"]) for row in rows) == sorted({(key, at + MINUTE) for key, _, at in events})


def test_what_cannot_be_joined_by_time_is_refused(bench: OperatorBench) -> None:
    frame = bench.session.range(1).selectExpr("id", "'x' AS text", "current_timestamp() AS _timestamp")
    by_text = KTable(frame.selectExpr("text", "id AS other"), ("text",))
    with pytest.raises(TopologyError, match="bigint, and the table's key is string"):
        join_stream_table(frame, by_text, "id", delay=HOUR)
    with pytest.raises(TopologyError, match="'right'"):
        join_stream_table(frame, by_text, "text", delay=HOUR, how="right")  # type: ignore[arg-type]  # on purpose
