"""KTable operators: the newest changes that leave a pipeline equal what plain Python makes of the whole topics."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.operators.bench import OperatorBench, Record, declare, newest
from stateline import serdes
from stateline.dsl.app import App
from stateline.spark import KTable, table_of
from stateline_store import TopologyError

app = App("operators")
people = app.topic("people", key=serdes.string, value=serdes.json, schema="city string, age int")
sizes = app.topic("sizes", key=serdes.string, value=serdes.json, schema="city string, size double, span float")
scores = app.topic("scores", key=serdes.string, value=serdes.json, schema="score int")
per_person = partial(declare, app, reads=[], tables=[people], key="_key")
per_city = partial(declare, app, reads=[], tables=[people], key="city")
joined = partial(declare, app, reads=[], tables=[people, scores], key="_key")


@per_person()
def adults(people: KTable) -> KTable:
    """filter, mapValues."""
    return people.filter("age >= 18").map_values("city", (F.col("age") + 1).alias("next"))


@per_person()
def others(people: KTable) -> DataFrame:
    """filterNot, toStream."""
    return people.filter_not(F.col("age") >= 18).to_stream()


@per_city()
def count(people: KTable) -> KTable:
    """groupBy, count."""
    return people.group_by("city").count("n")


@per_city()
def summed(people: KTable) -> KTable:
    """groupBy, an aggregate of Stateline's own."""
    return people.group_by("city").sum("age")


@app.pipeline(reads=[], tables=[sizes], writes="sums", key="city")
def doubles(sizes: KTable) -> KTable:
    """groupBy, sums of doubles."""
    return sizes.group_by("city").sum("size", "span")


@per_city()
def squares(people: KTable) -> KTable:
    """groupBy, aggregate with adder and subtractor."""

    def add(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        return {"n": total["n"] + 1, "squares": total["squares"] + value["age"] ** 2}

    def subtract(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        return {"n": total["n"] - 1, "squares": total["squares"] - value["age"] ** 2}

    grouped = people.group_by(F.upper("city").alias("city"))
    return grouped.aggregate({"n": 0, "squares": 0}, add, subtract, "n int, squares bigint")


@per_city()
def reduced(people: KTable) -> KTable:
    """groupBy, reduce with adder and subtractor."""
    named = people.map_values("age", F.col("city").alias("town"))
    return named.group_by(F.col("town").alias("city")).reduce(
        lambda one, other: {"age": one["age"] + other["age"], "town": one["town"]},
        lambda one, other: {"age": one["age"] - other["age"], "town": one["town"]},
    )


@joined()
def inner(people: KTable, scores: KTable) -> KTable:
    """join."""
    return people.join(scores)


@joined()
def left(people: KTable, scores: KTable) -> KTable:
    """leftJoin."""
    return people.join(scores, "left")


@joined()
def outer(people: KTable, scores: KTable) -> KTable:
    """outerJoin."""
    return people.join(scores, "outer")


@joined()
def score_per_city(people: KTable, scores: KTable) -> KTable:
    """A join, then filter, then groups of it, in one query."""
    return people.join(scores, "left").filter("score > 10").group_by("city").sum("score")


def random_people(count: int, seed: int) -> list[Record]:
    """Changes of a few keys: they move, change and vanish, and come back."""
    chance = random.Random(seed)
    made: list[Record] = []
    for number in range(count):
        value = {"city": chance.choice("abc"), "age": chance.randrange(60)} if chance.random() < 0.75 else None
        made.append((f"p{chance.randrange(12)}", value, 1_000 * number))
    return made


def random_scores(count: int, seed: int) -> list[Record]:
    chance = random.Random(seed)
    keys = [f"p{chance.randrange(4, 16)}" for _ in range(count)]
    return [
        (k, {"score": chance.randrange(40)} if chance.random() < 0.7 else None, 500 * n) for n, k in enumerate(keys)
    ]


Table = dict[str, dict[str, Any]]


def table(records: Iterable[Record]) -> Table:
    """The newest value of each key."""
    found = {str(key): value for key, value, _ in records}
    return {key: value for key, value in found.items() if value is not None}


def ages(people: Table) -> dict[str, list[int]]:
    """The ages in each city."""
    found: dict[str, list[int]] = {}
    for value in people.values():
        found.setdefault(value["city"], []).append(value["age"])
    return found


def in_both(people: Table, scores: Table, keys: Iterable[str]) -> Table:
    """The join's rows of these keys."""
    nobody, nothing = {"city": None, "age": None}, {"score": None}
    return {key: people.get(key, nobody) | scores.get(key, nothing) for key in keys}


def named(name: str) -> Any:
    return app.topology().pipelines[name]


def test_filters_and_map_values_keep_the_table_of_what_passes(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_people(90, seed=1)
    bench.write("people", records)
    found = bench.run(named("adults"), named("others"), rows_per_batch=rows_per_batch)
    whole = table(records)
    assert newest(found["adults"], "_key") == {
        key: {"city": value["city"], "next": value["age"] + 1} for key, value in whole.items() if value["age"] >= 18
    }
    assert newest(found["others"], "_key") == {key: value for key, value in whole.items() if value["age"] < 18}
    assert all(row["city"] is None and row["next"] is None for row in found["adults"] if row["_deleted"])
    assert len(found["adults"]) == len(records)  # a change for each: nothing is kept of what was there before
    assert (bench.batches > 2) == (rows_per_batch < len(records))


def test_groups_follow_rows_that_change_move_and_vanish(bench: OperatorBench, rows_per_batch: int) -> None:
    records = [*random_people(50, seed=3), *[(f"p{n}", None, 90_000) for n in range(8)]]
    bench.write("people", [*records, ("q", {"age": 3}, 90_001)])  # of no city: in no group
    names = ("count", "summed", "squares", "reduced")
    found = bench.run(*map(named, names), rows_per_batch=rows_per_batch)
    cities = ages(table(records))
    assert newest(found["count"], "city") == {city: {"n": len(each)} for city, each in cities.items()}
    assert newest(found["summed"], "city") == {city: {"age": sum(each)} for city, each in cities.items()}
    assert newest(found["squares"], "city") == {
        city.upper(): {"n": len(each), "squares": sum(age**2 for age in each)} for city, each in cities.items()
    }
    assert newest(found["reduced"], "city") == {city: {"age": sum(each), "town": city} for city, each in cities.items()}
    for name in names:
        changes = Counter((row["batch"], row["city"]) for row in found[name])
        assert set(changes.values()) == {1}  # one change of a group in a micro-batch


def test_sums_of_doubles_are_exact_and_rounded_once_also_after_a_restart(bench: OperatorBench) -> None:
    def write_and_sum(*records: tuple[str, float | str | None]) -> Table:
        values = ((key, n if n is None else {"city": "a", "size": n, "span": 0.1}, 1) for key, n in records)
        bench.write("sizes", values)
        found = bench.run(named("doubles"), checkpoint="doubles")
        return newest(found["doubles"], "city")

    tenth = Fraction(struct.unpack("f", struct.pack("f", 0.1))[0])  # as a float has it
    assert write_and_sum(("x", 0.1), ("y", 0.2), ("z", 1e16)) == {"a": {"size": 1e16, "span": float(3 * tenth)}}
    assert write_and_sum(("z", "Infinity")) == {"a": {"size": 0.1 + 0.2, "span": float(3 * tenth)}}
    assert write_and_sum(("z", None), ("y", None)) == {"a": {"size": 0.1, "span": float(tenth)}}


def test_joins_of_tables_equal_the_join_of_their_newest_rows(bench: OperatorBench, rows_per_batch: int) -> None:
    of_people, of_scores = random_people(60, seed=4), random_scores(70, seed=5)
    bench.write("people", of_people)
    bench.write("scores", of_scores)
    names = ("inner", "left", "outer", "score_per_city")
    found = bench.run(*map(named, names), rows_per_batch=rows_per_batch)
    people, scores = table(of_people), table(of_scores)
    assert newest(found["inner"], "_key") == in_both(people, scores, people.keys() & scores.keys())
    assert newest(found["left"], "_key") == in_both(people, scores, people.keys())
    assert newest(found["outer"], "_key") == in_both(people, scores, people.keys() | scores.keys())
    totals: Counter[str] = Counter()
    for row in in_both(people, scores, people.keys()).values():
        if (row["score"] or 0) > 10:
            totals[row["city"]] += row["score"]
    assert newest(found["score_per_city"], "city") == {city: {"score": total} for city, total in totals.items()}
    for name in ("inner", "left", "outer"):
        there: set[str] = set()
        for row in found[name]:
            assert row["_key"] in there or not row["_deleted"]  # a tombstone leaves only for what was there
            there = there - {row["_key"]} if row["_deleted"] else there | {row["_key"]}


def test_what_cannot_be_joined_or_summed_is_refused(bench: OperatorBench) -> None:
    frame = bench.session.range(1).selectExpr("id", "'x' AS text", "id AS other")
    by_id, by_text = table_of(frame, "id"), table_of(frame, "text")
    with pytest.raises(TopologyError, match=r"a DataFrame.*table_of"):
        by_id.join(frame)  # type: ignore[arg-type]  # that is the mistake
    shorter: Any = lambda total: total  # noqa: E731  # that is the mistake
    with pytest.raises(TopologyError, match=r"aggregate calls its subtract with 2 .* \(.*test_tables.py, line \d+\)"):
        by_id.group_by("text").aggregate({}, lambda total, value: total, shorter, "n int")
    with pytest.raises(TopologyError, match=r"reduce was given 'add' as its add.* \(.*test_tables.py, line \d+\)"):
        by_id.group_by("text").reduce("add", lambda total, value: total)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TopologyError, match="bigint and string"):
        by_id.join(by_text)
    with pytest.raises(TopologyError, match="column 'other'"):
        by_id.map_values("other").join(by_id)
    with pytest.raises(TopologyError, match="'text' is string"):
        by_id.group_by("other").sum("text")
    with pytest.raises(TopologyError, match=r"key city: _offset orders rows of one _key.*add a column _order"):
        table_of(frame.selectExpr("text AS city", "other", "'k' AS _key", "id AS _offset"), "city")
    with pytest.raises(TopologyError, match="has no value"):
        table_of(frame.select("id"), "id")
