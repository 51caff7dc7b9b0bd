"""Checks the arguments of `App.pipeline` when it is declared, before Spark starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args, get_type_hints

from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.topic import Topic
from stateline.serde.shown_as_json import SHOWN_AS_JSON
from stateline_store import InvalidArgumentError, TopologyError


def check_declared(pipeline: Pipeline) -> None:
    """Raise `InvalidArgumentError` naming the argument and its value unless the pipeline can be run."""
    if not (pipeline.reads or pipeline.tables):
        raise _wrong(pipeline, "reads=[] and tables=[]", "name a topic: without one it never gets a row")
    if not pipeline.key:
        raise _wrong(pipeline, "key=[]", "name the columns that make the key of a result row")
    columns = [*pipeline.key, *([] if pipeline.timestamp is None else [pipeline.timestamp])]
    if strange := [column for column in columns if not isinstance(column, str) or not column]:
        raise _wrong(pipeline, f"the column {strange[0]!r}", "a column is named by a text")
    hints = get_type_hints(Pipeline)
    for argument in ("output_mode", "result"):
        allowed = get_args(hints[argument])
        if getattr(pipeline, argument) not in allowed:
            raise _wrong(pipeline, f"{argument}={getattr(pipeline, argument)!r}", f"use one of {', '.join(allowed)}")
    trigger_ms = pipeline.trigger_ms
    if trigger_ms is not None and (type(trigger_ms) is not int or trigger_ms < 0):
        raise _wrong(pipeline, f"trigger_ms={trigger_ms!r}", "give whole milliseconds, 0 for without a pause")
    names = [topic.name for topic in pipeline.results]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _wrong(pipeline, f"the result topic {min(twice)!r} twice", "name each once, in `writes` or in `branches`")
    if loop := {topic.name for topic in pipeline.inputs}.intersection(names):
        raise _wrong(pipeline, f"{min(loop)!r} as input and as result", "it would read what it writes for ever")


def refuse_shared_results(pipeline: Pipeline, others: Mapping[str, Pipeline]) -> None:
    """Raise `TopologyError` if one of these pipelines, by their names in messages, writes to a result topic of this
    one. In complete mode each would delete the other's rows, and neither could be started over alone."""
    results = {topic.name for topic in pipeline.results}
    for described, other in others.items():
        if shared := sorted(results.intersection(topic.name for topic in other.results)):
            raise TopologyError(
                f"{described} and {pipeline.name!r} both write to {shared[0]!r}. Give each its own result topic. "
                "To have the rows of both in one place, merge them: app.stream(…).merge(…)."
            )


def refuse_other_writers(pipeline: Pipeline, described: str, writers: Mapping[str, str]) -> None:
    """Raise `TopologyError` if one of `writers`, by topic, writes to a topic of this pipeline that must have one
    writer. `described` is the pipeline's name in messages.

    A table must: in complete mode the driver deletes rows that it did not write, and in other modes the newest row of a
    key could be either writer's. Whole epochs must, too: another writer's rows stay invisible until the next epoch.
    Rows of a stream are independent."""
    if pipeline.result == "stream" and not pipeline.whole_epochs:
        return
    whose = "whole_epochs=True" if pipeline.result == "stream" else "result='table'"
    advice = "" if pipeline.whole_epochs else ", or declare the pipeline with result='stream'"
    for name in sorted(topic.name for topic in pipeline.results if topic.name in writers):
        raise TopologyError(
            f"{described} and {writers[name]} both write to {name!r}, which with {whose} is the pipeline's alone: give "
            f"each a topic of its own{advice}."
        )


def check_windowing(windowing: Windowing) -> None:
    """Raise `InvalidArgumentError` unless the arguments of windows agree."""
    if not isinstance(windowing, Windowing):
        raise InvalidArgumentError(f"windowing={windowing!r}: give a stateline.Windowing.")
    kinds = get_args(get_type_hints(Windowing)["kind"])
    if windowing.kind not in kinds:
        raise InvalidArgumentError(f"{windowing}: its kind is one of {', '.join(kinds)}.")
    if type(windowing.size_ms) is not int or windowing.size_ms <= 0:
        raise InvalidArgumentError(f"{windowing}: its size is whole milliseconds, 1 or more.")


def _wrong(pipeline: Pipeline, what: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Pipeline {pipeline.name!r} was given {what}: {advice}.")


def refuse_unparsable(pipeline: str, topic: Topic) -> None:
    """Raise `TopologyError` for a topic with a `schema` whose values are not JSON: Spark would refuse each record."""
    if topic.schema is not None and isinstance(topic.value, SHOWN_AS_JSON):
        raise TopologyError(
            f"Pipeline {pipeline!r} reads {topic.name!r} with a schema=, by which Spark parses "
            f"JSON, and its values are {topic.value.name}: leave schema= out, and decode the column `value`, which is "
            "binary then, in a udf (docs/serdes.md)."
        )
