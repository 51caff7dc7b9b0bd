"""A pipeline whose code has changed goes on from its checkpoint only where state and results do not depend on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.departures import read_all, settings
from service.spark.operators.bench import OperatorBench
from stateline import serdes
from stateline.config.loading import load_config
from stateline.deployment.partition_counts import TopicCount
from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.dsl.app import App
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.topic import Topic
from stateline.spark import join_stream_table, session_aggregate, table_of
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.operators.declared import Declared, declared_operators
from stateline.spark.sink.declaration import declaration_of, differences
from stateline_store import TopologyError
from support.run.length import long_only, long_or_short

Value = dict[str, Any]
_ROOT = Path(__file__).parents[4]
COLUMNS = "city STRING, age INT, at TIMESTAMP"


def add(total: Value, value: Value) -> Value:
    """Count."""
    return {"n": total["n"] + 1}


def other(total: Value, value: Value, *, of: int = 0) -> Value:
    """Something else."""
    return total


def sessions(session: SparkSession, gap: int = 5, delay: int = 1, **more: Any) -> DataFrame:
    given = {"initial": {"n": 0}, "add": add, "merge": lambda one, two: one, "schema": "n BIGINT", "time": "at", **more}
    frame = session.createDataFrame([], COLUMNS)
    return session_aggregate(frame, "city", gap=timedelta(minutes=gap), delay=timedelta(minutes=delay), **given)


def looked_up(session: SparkSession, how: Any = "inner", delay: int = 1, columns: str = COLUMNS) -> DataFrame:
    stream = session.createDataFrame([], columns)
    names = table_of(session.createDataFrame([], "name STRING, size INT"), "name")
    return join_stream_table(stream, names, "city", how=how, time="at", delay=timedelta(minutes=delay))


WIDE = ", ".join(["city string", "at timestamp", *(f"c{number} int" for number in range(50))])


def wide(session: SparkSession) -> DataFrame:
    return looked_up(session, columns=WIDE)


def both(session: SparkSession, how: Any = "inner") -> None:
    looked_up(session, how)
    sessions(session)


@cache
def operators_of(session: SparkSession, function: Callable[[SparkSession], Any]) -> list[Declared]:
    """Spark analyses a plan for each of them: a third of a second."""
    with declared_operators() as operators:
        function(session)
    return operators


def declaration(session: SparkSession, function: Callable[[SparkSession], Any], **terms: Any) -> PipelineDeclaration:
    operators = operators_of(session, function)
    made = {"reads": (Topic("in", serdes.string, serdes.json),), "key": ("k",), **terms}
    return declaration_of(Pipeline("p", function, writes=Topic("out", serdes.string, serdes.json), **made), operators)


HARMFUL = [
    (looked_up, partial(looked_up, how="left"), 'join_stream_table: how was "inner" and is "left"'),
    (
        looked_up,
        partial(looked_up, columns="city STRING, age BIGINT, at TIMESTAMP"),
        'left was "city string, age int, at timestamp" and',
    ),
    (sessions, partial(sessions, add=other), 'session_aggregate: add was "add" and is "other"'),
    (sessions, partial(sessions, initial={"n": 1}), 'session_aggregate: initial was {"n": 0} and is {"n": 1}'),
    (partial(sessions, add=partial(other, of=1)), partial(sessions, add=partial(other, of=2)), 'is "other(of=2)"'),
    (sessions, partial(sessions, gap=6), 'session_aggregate: gap was "0:05:00" and is "0:06:00"'),
    (sessions, partial(sessions, merge=other), 'merge was "sessions.<locals>.<lambda>" and is "other"'),
    (sessions, partial(sessions, schema="n INT"), 'schema was "n bigint" and is "n int"'),
    (sessions, looked_up, "its operators with state were session_aggregate and are join_stream_table"),
    (both, partial(both, how="left"), 'join_stream_table of operator 1: how was "inner" and is "left"'),
]


@pytest.mark.parametrize(
    "change",
    [
        ("c40 int", "c40 bigint"),
        ("c40 int, ", ""),
        pytest.param(("c1 int", "c1 bigint"), marks=long_only("another type near the end is shown in the same way")),
    ],
)
def test_of_long_schemas_the_part_is_shown_where_they_differ(session: SparkSession, change: tuple[str, str]) -> None:
    changed = partial(looked_up, columns=WIDE.replace(*change))
    (found,) = differences(declaration(session, wide), declaration(session, changed))
    was, now = found.split(" and is ")
    assert was.partition("was ")[2] != now
    assert change[0] in was
    assert change[1] in now
    assert len(found) < 450


def test_an_initial_aggregate_without_a_json_form_is_refused(session: SparkSession) -> None:
    with pytest.raises(TopologyError, match=r"initial of .*aggregate .*object.* JSON"):
        sessions(session, initial={"n": object()})


@pytest.mark.parametrize(("before", "after", "says"), HARMFUL)
def test_what_state_depends_on_is_named_with_what_it_was_and_is(
    session: SparkSession, before: Callable[..., Any], after: Callable[..., Any], says: str
) -> None:
    found = differences(declaration(session, before), declaration(session, after))
    assert len(found) <= 2
    assert says in "; ".join(found)


@pytest.mark.parametrize("function", dict.fromkeys(before for before, *_ in HARMFUL))
def test_the_same_code_declares_the_same_operators_each_time(
    session: SparkSession, function: Callable[..., Any]
) -> None:
    assert operators_of.__wrapped__(session, function) == operators_of(session, function)


HOUR, DAY = Windowing("window", "w", 3_600_000), Windowing("window", "w", 86_400_000)
TERMS = [
    ({}, {"reads": (Topic("other", serdes.string, serdes.json),)}, 'reads was ["in"] and is ["other"]'),
    ({}, {"key": ("k", "l")}, 'key was ["k"] and is ["k", "l"]'),
    ({"windowing": HOUR}, {"windowing": DAY}, "windowing was"),
    ({}, {"output_mode": "complete"}, 'output_mode was "update" and is "complete"'),
    ({"output_mode": "complete"}, {"output_mode": "update"}, None),
    ({"output_mode": "complete"}, {"output_mode": "complete", "key": ("l",)}, None),
    ({"result": "stream"}, {"result": "stream", "key": ("l",)}, None),
    ({}, {"trigger_ms": 5, "timestamp": "t", "whole_epochs": True, "output_mode": "append"}, None),
]


@pytest.mark.parametrize(("before", "after", "says"), TERMS)
def test_of_a_pipelines_terms_those_count_that_its_results_depend_on(
    session: SparkSession, before: dict[str, Any], after: dict[str, Any], says: str | None
) -> None:
    found = differences(declaration(session, looked_up, **before), declaration(session, looked_up, **after))
    assert found == [] if says is None else says in found[0]


def test_steps_without_state_and_delays_may_change(session: SparkSession) -> None:
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (sessions, lambda s: sessions(s).where("n > 1").select("city", F.col("n").alias("m"))),
        (sessions, partial(sessions, delay=9)),
        (looked_up, partial(looked_up, delay=9)),
    ]
    for before, after in pairs:
        assert differences(declaration(session, before), declaration(session, after)) == []


def test_the_declaration_of_a_pipeline_is_as_the_documents_show(session: SparkSession) -> None:
    made = declaration(
        session, looked_up, reads=(Topic("orders", serdes.string, serdes.json),),
        tables=(Topic("names", serdes.string, serdes.json),), key=("city",), result="stream",
    )  # fmt: skip
    counted = replace(made, topics={"names": TopicCount(2, "H8oZf2FQRvqGDqkVVqTfZg")})
    assert counted.encode().decode() in (_ROOT / "docs/formats/pipelines.md").read_text()


Run = Callable[..., None]


@pytest.fixture
def run(session: SparkSession, bench: OperatorBench, tmp_path: Path) -> Run:
    """Runs the pipeline `p` with this function over what is in `people` now."""
    config = load_config("operators", overrides=settings(str(tmp_path)))
    bench.write("people", [("a", {"city": "x", "age": 1}, 1)])

    def run(change: Callable[[Any], Any], kind: str = "tables", **terms: Any) -> None:
        app = App("operators")
        people = app.topic("people", key=serdes.string, value=serdes.json, schema="city string, age int")
        given = {"reads": [], kind: [people], "writes": "out", "key": "city", "name": "p", **terms}
        app.pipeline(**given)(lambda people: change(people))
        run_pipelines(app, ["p"], config, bench.log, available_now=True, session=session)

    return run


def visits(people: DataFrame, schema: str = "n BIGINT") -> DataFrame:
    return session_aggregate(
        people, "city", gap=timedelta(minutes=5), delay=timedelta(minutes=1), initial={"n": 0}, add=add, merge=other,
        schema=schema,
    )  # fmt: skip


VISITS: dict[str, Any] = {"kind": "reads", "windowing": Windowing("session", "session", 300_000)}


def test_a_changed_pipeline_is_refused_until_the_old_code_is_back(run: Run, bench: OperatorBench) -> None:
    run(visits, **VISITS)
    bench.write("people", [("b", {"city": "x", "age": 2}, 2)])
    with pytest.raises(TopologyError, match=r"'p' has changed since .*schema was .*old code back.*operators-p-epochs"):
        run(partial(visits, schema="n INT"), **VISITS)
    run(lambda people: visits(people.where("age < 9")), trigger_ms=7, **VISITS)
    values = [json.loads(record.value)["n"] for record in read_all(bench.log, "out") if record.value is not None]
    assert values == [1, 2]


def test_state_of_another_form_is_named(session: SparkSession) -> None:
    now = declaration(session, sessions)
    was = replace(now, operators=[{**each, "state": each["state"] + 1} for each in now.operators])
    assert differences(was, now) == ["session_aggregate: state was 2 and is 1"]


@long_only("test_state_of_another_form_is_named compares, and test_a_changed_pipeline_is_refused_… shows the way out")
def test_state_of_another_form_is_refused_with_the_way_out(run: Run, bench: OperatorBench, tmp_path: Path) -> None:
    run(visits, **VISITS)
    (file,) = tmp_path.rglob("declaration.json")
    declared = json.loads(file.read_bytes())
    declared["operators"][0]["state"] += 1
    file.write_text(json.dumps(declared))
    bench.write("people", [("b", {"city": "x", "age": 2}, 2)])
    with pytest.raises(TopologyError, match=r"session_aggregate: state was 2 and is 1.*to start over"):
        run(visits, **VISITS)


def test_what_spark_itself_refuses_to_go_on_from_is_a_mistake_with_a_way_out(run: Run, bench: OperatorBench) -> None:
    run(lambda people: people.groupBy("city").agg(F.count("*").alias("n")), "reads")
    bench.write("people", [("b", {"city": "x", "age": 2}, 2)])
    changes: list[Callable[[DataFrame], DataFrame]] = [
        lambda people: people.groupBy("city", "age").agg(F.count("*").alias("n")),
        lambda people: people.dropDuplicates(["city"]),
    ]
    for changed in long_or_short(changes, changes[:1]):
        with pytest.raises(TopologyError, match=r"'p' cannot go on from its checkpoint.*STATE.*old code back"):
            run(changed, "reads")
