"""KStream operators without state, with state of one's own, and aggregates: what leaves equals plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from service.spark.operators.bench import OperatorBench, Record, declare, newest
from stateline import serdes
from stateline.dsl.app import App
from stateline.spark.columns import DELETED, TOPIC
from support.run.length import long_only

app = App("operators")
words = app.topic("words", key=serdes.string, value=serdes.json, schema="text string, n int")
more_words = app.topic("more-words", key=serdes.string, value=serdes.json, schema="text string, n int")
each = partial(declare, app, reads=words, key="_key", output_mode="append")
looked_up = partial(each, static=[more_words])
aggregated = partial(declare, app, reads=words, key="_key")
timed = partial(declare, app, reads=words, key=("_key", "start"))


# --- Tuple by tuple, the same key


@each()
def filtered(words: DataFrame) -> DataFrame:
    """filter."""
    return words.filter("n > 5")


@each()
def filtered_not(words: DataFrame) -> DataFrame:
    """filterNot."""
    return words.filter(~F.col("n").between(0, 5))


@each()
def mapped_values(words: DataFrame) -> DataFrame:
    """mapValues."""
    return words.select("_key", F.upper("text").alias("loud"))


@each()
def flat_mapped_values(words: DataFrame) -> DataFrame:
    """flatMapValues."""
    return words.select("_key", F.explode(F.split("text", " ")).alias("word"))


@each(branches=["large", "small"])
def branched(words: DataFrame) -> DataFrame:
    """branch: `_topic` names where a row goes; the rest goes to `writes`."""
    topic = F.when(F.col("n") > 7, "large").when(F.col("n") < 3, "small")
    return words.select("_key", "n", topic.alias(TOPIC))


@each(reads=[words, more_words])
def merged(words: DataFrame, more_words: DataFrame) -> DataFrame:
    """merge."""
    return words.unionByName(more_words)


# --- Tuple by tuple, a new key


@each(key="n")
def selected_key(words: DataFrame) -> DataFrame:
    """selectKey."""
    return words.select("n", "text")


@each(key="first")
def mapped(words: DataFrame) -> DataFrame:
    """map."""
    return words.select(F.substring("text", 1, 1).alias("first"), (F.col("n") * 2).alias("twice"))


@each(key="word")
def flat_mapped(words: DataFrame) -> DataFrame:
    """flatMap."""
    return words.select(F.explode(F.split("text", " ")).alias("word"), "n")


# --- Joins with a table as it is at the micro-batch


@looked_up()
def joined_at_once(words: DataFrame, more_words: DataFrame) -> DataFrame:
    """KStream–KTable join, at once."""
    return words.join(more_words.select("_key", F.col("text").alias("other")), "_key")


@looked_up()
def left_joined_at_once(words: DataFrame, more_words: DataFrame) -> DataFrame:
    """KStream–KTable leftJoin, at once."""
    return words.join(more_words.select("_key", F.col("text").alias("other")), "_key", "left")


# --- With state of one's own


class Differences(StatefulProcessor):
    """How much each number of a key is more than the one before it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        (last,) = self._last.get() or (0,)
        for row in sorted(rows, key=lambda row: row["_offset"]):
            yield Row(_key=key[0], more=row["n"] - last)
            last = row["n"]
        self._last.update((last,))

    def close(self) -> None:
        """Nothing is held."""


@each()
def transformed(words: DataFrame) -> DataFrame:
    """transform, transformValues: Spark's transformWithState."""
    return words.groupBy("_key").transformWithState(Differences(), "_key string, more int", "Append", "None")


# --- What does something else than changing records


def seen_in(path: Path, pass_on: bool) -> Any:
    """For mapInArrow: writes a line per row to a file; gives the rows, or none."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{text}\n" for text in batch.column("text").to_pylist())
            yield batch if pass_on else batch.slice(0, 0)

    return look


def peeking(path: Path) -> App:
    """peek and foreach, for a folder that only a test knows."""
    looking = App("operators")
    topic = looking.topic("words", key=serdes.string, value=serdes.json, schema="text string, n int")

    @declare(looking, reads=topic, key="_key", output_mode="append")
    def peeked(words: DataFrame) -> DataFrame:
        """peek."""
        return words.mapInArrow(seen_in(path / "peeked", pass_on=True), words.schema)

    @declare(looking, reads=topic, key="_key", output_mode="append")
    def for_each(words: DataFrame) -> DataFrame:
        """foreach, process: nothing leaves."""
        return words.mapInArrow(seen_in(path / "for_each", pass_on=False), words.schema)

    @declare(looking, reads=topic, key="_key", output_mode="append")
    def counted(words: DataFrame) -> DataFrame:
        """peek: counts alone."""
        return words.observe("words", F.count("*").alias("records"), F.sum("n").alias("n"))

    return looking


# --- Aggregates


def totals() -> list[Column]:
    """count, reduce and aggregate."""
    return [F.count("*").alias("rows"), F.max("n").alias("most"), F.collect_set("n").alias("numbers")]


@aggregated()
def plain(words: DataFrame) -> DataFrame:
    """countByKey, reduceByKey, aggregateByKey."""
    return words.groupBy("_key").agg(*totals())


@aggregated()
def undivided(words: DataFrame) -> DataFrame:
    """Of an aggregate the keys of which a condition is true; of one that no longer is among them a tombstone."""
    return words.groupBy("_key").agg(F.sum("n").alias("sum")).withColumn(DELETED, F.col("sum") % 3 == 0)


@timed()
def tumbling(words: DataFrame) -> DataFrame:
    """The same by tumbling windows."""
    grouped = words.withWatermark("_timestamp", "1 day").groupBy("_key", F.window("_timestamp", "1 minute"))
    return grouped.agg(*totals()).withColumn("start", F.col("window.start"))


@timed()
def sliding(words: DataFrame) -> DataFrame:
    """The same by windows that overlap."""
    grouped = words.groupBy("_key", F.window("_timestamp", "1 minute", "20 seconds"))
    return grouped.agg(*totals()).withColumn("start", F.col("window.start"))


@timed(output_mode="complete")
def whole_windows(words: DataFrame) -> DataFrame:
    """Each micro-batch gives the whole result."""
    return (
        words.groupBy("_key", F.window("_timestamp", "1 minute"))
        .agg(*totals())
        .withColumn("start", F.col("window.start"))
    )


@timed(output_mode="append")
def ended_windows(words: DataFrame) -> DataFrame:
    """Each window once, when it has ended."""
    grouped = words.withWatermark("_timestamp", "1 minute").groupBy("_key", F.window("_timestamp", "1 minute"))
    return grouped.agg(*totals()).withColumn("start", F.col("window.start"))


@timed(output_mode="append")
def sessions(words: DataFrame) -> DataFrame:
    """The same by sessions: once each, when it has ended."""
    grouped = words.withWatermark("_timestamp", "1 minute").groupBy("_key", F.session_window("_timestamp", "8 seconds"))
    return grouped.agg(*totals()).withColumn("start", F.col("session_window.start"))


def random_words(count: int, seed: int) -> list[Record]:
    """Some words each, of a few keys, a few seconds apart."""
    chance = random.Random(seed)
    vocabulary = ["ah", "bee", "cow", "doe"]
    return [
        (
            chance.choice("xyz"),
            {"text": " ".join(chance.choices(vocabulary, k=chance.randrange(1, 4))), "n": chance.randrange(10)},
            1_000 * at,
        )
        for at in sorted(chance.randrange(4 * count) for _ in range(count))
    ]


def named(name: str) -> Any:
    return app.topology().pipelines[name]


def found_in(rows: list[dict[str, Any]], *columns: str) -> Counter[Any]:
    return Counter(tuple(row[column] for column in columns) for row in rows)


@long_only("they are Spark's own operators; test_peek_and_foreach_… and test_plain_aggregates_… read the same rows")
def test_operators_on_single_records_equal_plain_python(bench: OperatorBench, rows_per_batch: int) -> None:
    records, others = random_words(80, seed=1), random_words(30, seed=2)
    bench.write("words", records)
    bench.write("more-words", others)
    flat = [(k, v["text"], v["n"]) for k, v, _ in records]
    expected: dict[str, tuple[tuple[str, ...], list[Any]]] = {
        "filtered": (("_key", "n"), [(k, n) for k, _, n in flat if n > 5]),
        "filtered_not": (("_key", "n"), [(k, n) for k, _, n in flat if n > 5]),
        "mapped_values": (("_key", "loud"), [(k, t.upper()) for k, t, _ in flat]),
        "flat_mapped_values": (("_key", "word"), [(k, word) for k, t, _ in flat for word in t.split()]),
        "branched": (
            ("_key", "n", "_topic"),
            [(k, n, "large" if n > 7 else "small" if n < 3 else None) for k, _, n in flat],
        ),
        "merged": (("_key", "text", "n"), flat + [(k, v["text"], v["n"]) for k, v, _ in others]),
        "selected_key": (("n", "text"), [(n, t) for _, t, n in flat]),
        "mapped": (("first", "twice"), [(t[0], 2 * n) for _, t, n in flat]),
        "flat_mapped": (("word", "n"), [(word, n) for _, t, n in flat for word in t.split()]),
    }
    found = bench.run(*map(named, expected), rows_per_batch=rows_per_batch)
    assert {name: found_in(found[name], *columns) for name, (columns, _) in expected.items()} == {
        name: Counter(rows) for name, (_, rows) in expected.items()
    }


@long_only("test_followed_topic.py joins static topics as they are at each micro-batch")
def test_joins_at_once_take_the_newest_row_of_each_key(bench: OperatorBench, rows_per_batch: int) -> None:
    records, others = random_words(50, seed=8), random_words(20, seed=9)
    bench.write("words", records)
    bench.write("more-words", [*others, ("x", {"text": "newest", "n": 0}, 1), ("y", None, 1)])
    found = bench.run(named("joined_at_once"), named("left_joined_at_once"), rows_per_batch=rows_per_batch)
    table = {key: value["text"] for key, value, _ in others if key != "y"} | {"x": "newest"}
    wanted = Counter((key, value["n"], table.get(key or "")) for key, value, _ in records)
    assert found_in(found["left_joined_at_once"], "_key", "n", "other") == wanted
    matched = Counter({row: count for row, count in wanted.items() if row[2] is not None})
    assert found_in(found["joined_at_once"], "_key", "n", "other") == matched
    assert 0 < len(matched) < len(wanted)


def test_a_transformation_has_its_state_in_order_of_offsets(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_words(60, seed=3)
    bench.write("words", records)
    found = bench.run(named("transformed"), rows_per_batch=rows_per_batch)["transformed"]
    expected: Counter[Any] = Counter()
    last: dict[str | None, int] = {}
    for key, value, _ in records:
        expected[(key, value["n"] - last.get(key, 0))] += 1
        last[key] = value["n"]
    assert found_in(found, "_key", "more") == expected


def test_peek_and_foreach_see_each_record(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_words(60, seed=4)
    bench.write("words", records)
    pipelines = peeking(bench.folder).topology().pipelines.values()
    found = bench.run(*pipelines, rows_per_batch=rows_per_batch)
    texts = Counter(value["text"] for _, value, _ in records)
    for name in ("peeked", "for_each"):
        assert Counter((bench.folder / name).read_text(encoding="utf-8").splitlines()) == texts
    assert found_in(found["peeked"], "text") == Counter({(text,): count for text, count in texts.items()})
    assert found["for_each"] == []
    assert sum(seen["words"]["records"] for seen in bench.observed if "words" in seen) == len(records)
    assert sum(seen["words"]["n"] or 0 for seen in bench.observed if "words" in seen) == sum(
        v["n"] for _, v, _ in records
    )


Groups = dict[Any, list[int]]


def aggregates(groups: Groups) -> dict[Any, Any]:
    return {name: (len(each), max(each), sorted(set(each))) for name, each in groups.items()}


def newest_aggregates(rows: list[dict[str, Any]], *key: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        found[tuple(row[name] for name in key)] = (row["rows"], row["most"], sorted(row["numbers"]))
    return found


def seconds(text: str) -> int:
    """Seconds after 1970 of a text of the first hours."""
    hours, minutes, rest = text.split("T")[1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest[:2])


def by_window(records: list[Record], slide_s: int) -> Groups:
    """Numbers per key and start of each minute that covers them, starts `slide_s` apart."""
    found: Groups = {}
    for key, value, at_ms in records:
        at = at_ms // 1000
        start = at - at % slide_s
        while start > at - 60:
            found.setdefault((key, start), []).append(value["n"])
            start -= slide_s
    return found


def by_session(records: list[Record]) -> Groups:
    found: Groups = {}
    last: dict[Any, tuple[int, int]] = {}  # key → start and last row of its newest session
    for key, value, at_ms in records:
        at = at_ms // 1000
        start, before = last.get(key, (at, at))
        start = at if at - before > 8 else start
        last[key] = (start, at)
        found.setdefault((key, start), []).append(value["n"])
    return found


def with_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "start": seconds(row["start"])} for row in rows if not row["start"].startswith("1969")]


def test_plain_aggregates_equal_plain_python(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_words(80, seed=5)
    bench.write("words", records)
    found = bench.run(named("plain"), named("undivided"), rows_per_batch=rows_per_batch)
    groups: Groups = {}
    for key, value, _ in records:
        groups.setdefault((key,), []).append(value["n"])
    assert newest_aggregates(found["plain"], "_key") == aggregates(groups)
    sums = {key: sum(numbers) for (key,), numbers in groups.items()}
    assert newest(found["undivided"], "_key") == {key: {"sum": n} for key, n in sums.items() if n % 3}
    assert {row["_deleted"] for row in found["undivided"]} == {True, False}


@long_only("windows are Spark's own; test_windowed_results.py has some that overlap")
@pytest.mark.parametrize(("name", "slide_s"), [("tumbling", 60), ("sliding", 20), ("whole_windows", 60)])
def test_windowed_aggregates_equal_plain_python(
    bench: OperatorBench, rows_per_batch: int, name: str, slide_s: int
) -> None:
    records = [(key, value, at + 60_000) for key, value, at in random_words(80, seed=6)]
    bench.write("words", records)
    found = with_seconds(bench.run(named(name), rows_per_batch=rows_per_batch)[name])
    assert newest_aggregates(found, "_key", "start") == aggregates(by_window(records, slide_s))
    if name == "whole_windows":
        last = [row for row in found if row["batch"] == bench.batches - 1]
        assert len(last) == len(by_window(records, slide_s))


@long_only("Spark's own windows and watermarks; test_timed.py has watermarks and sessions of Stateline's operators")
def test_sessions_and_windows_leave_once_when_they_have_ended(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_words(80, seed=7)
    end: Record = ("end", {"text": "end", "n": 0}, 3_600_000)
    bench.write("words", [*records, end])
    found = bench.run(named("sessions"), named("ended_windows"), rows_per_batch=rows_per_batch)
    for name, groups in (("sessions", by_session(records)), ("ended_windows", by_window(records, slide_s=60))):
        rows = with_seconds(found[name])
        assert newest_aggregates(rows, "_key", "start") == aggregates(groups)
        assert len(rows) == len(groups)
    assert (len({row["batch"] for row in found["ended_windows"]}) > 1) == (rows_per_batch < len(records))
