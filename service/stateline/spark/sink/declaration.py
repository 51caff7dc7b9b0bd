"""Compares a pipeline with the declaration in its checkpoint, at each start. Pure.

The declaration (`stateline.deployment.pipelines.declaration`) has what state and results depend on:

- The topics that are read and each stateful operator must not change.
- Key and windows must not change if the newest row of a key counts: rows under old keys would stay for ever.
- The output mode must not change to complete: rows that the earlier mode has forgotten would be deleted.
- Topics whose keys the pipeline keeps must not get partitions: tables, static topics, and results with
  ``result="table"``. If a key moved to another partition, its newest record would be unknown, and its old row would
  stay. While a pipeline runs, its results keep to the partitions of its start. The ends of a micro-batch show which
  partitions of tables Spark has read.

Other things may change: the trigger interval, timestamps, branches, steps without state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stateline.deployment.partition_counts import PartitionsChangedError, grown
from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.log.interface import TopicInfo
from stateline.model.pipeline import Pipeline
from stateline.spark.operators.declared import Declared
from stateline.spark.sink.result_records import topic_names
from stateline_store import TopicPartition

_SHOWN_CHARACTERS = 200  # of a value in an error
_SHOWN_BEFORE = 40  # of these, before the first difference


def declaration_of(pipeline: Pipeline, operators: Sequence[Declared]) -> PipelineDeclaration:
    """Return the pipeline's present declaration as a file has it, with no `topics`."""
    windowing = pipeline.windowing
    made = PipelineDeclaration(
        reads=[topic.name for topic in pipeline.reads],
        tables=[topic.name for topic in pipeline.tables],
        key=pipeline.key,
        windowing=None if windowing is None else (windowing.kind, windowing.size_ms),
        result=pipeline.result,
        output_mode=pipeline.output_mode,
        operators=operators,
        topics={},
    )
    return PipelineDeclaration.decode(made.encode())


def differences(was: PipelineDeclaration, now: PipelineDeclaration) -> list[str]:
    """Return the changes that are not allowed, for a message. Empty if `now` may continue."""
    compared = ["reads", "tables"]
    if now.output_mode == "complete":
        compared.append("output_mode")
    elif now.result == "table":
        compared += ["key", "windowing"]
    found = list(_changes(asdict(was), asdict(now), compared))
    before, after = was.operators, now.operators
    if _names(before) != _names(after):
        return [*found, f"its operators with state were {_names(before)} and are {_names(after)}"]
    for number, (one, other) in enumerate(zip(before, after, strict=True), 1):
        place = f" of operator {number}" if len(after) > 1 else ""
        found += (f"{one['operator']}{place}: {change}" for change in _changes(one, other, {**one, **other}))
    return found


def _changes(was: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if was.get(name) != now.get(name):
            before, after = _shown(was.get(name), now.get(name))
            yield f"{name} was {before} and is {after}"


def _names(operators: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(each["operator"] for each in operators) or "none"


def _shown(was: Any, now: Any) -> list[str]:
    texts = [json.dumps(value, ensure_ascii=False) for value in (was, now)]
    if max(map(len, texts)) <= _SHOWN_CHARACTERS:
        return texts
    differs = (at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    first = max(next(differs, 0) - _SHOWN_BEFORE, 0)
    end, before = first + _SHOWN_CHARACTERS, "…" if first else ""
    return [f"{before}{text[first:end]}{'…' if end < len(text) else ''}" for text in texts]


def counted_topics(
    pipeline: Pipeline, found: Mapping[str, TopicInfo], before: Mapping[str, TopicInfo]
) -> dict[str, TopicInfo]:
    """Return the topics that must keep their partitions, with the counts of `before` unless they were created again."""
    names = [topic.name for topic in (*pipeline.tables, *pipeline.static)]
    names += topic_names(pipeline) if pipeline.result == "table" else []
    known = {name: info for name, info in before.items() if name in found and found[name].topic_id == info.topic_id}
    return {name: known.get(name, found[name]) for name in names if name in found}


def as_read(counted: Mapping[str, TopicInfo], ends: Iterable[TopicPartition]) -> dict[str, TopicInfo]:
    """Return the topics of which a micro-batch has read further partitions, with those."""
    found: dict[str, TopicInfo] = {}
    for topic, partition in ends:
        if topic in counted and partition >= found.get(topic, counted[topic]).partitions:
            found[topic] = replace(counted[topic], partitions=partition + 1)
    return found


def refuse_grown(
    pipeline: Pipeline, counted: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo], start_over: str
) -> None:
    """Raise `PartitionsChangedError` if a counted topic has more partitions now. `start_over` says how to start
    over."""
    what = grown(counted, counted, found)
    if what is None:
        return
    why = (
        f"{what} when pipeline {pipeline.name!r} began: a key would be in two partitions. Partitions cannot be taken "
        "away again. If it is a table that the pipeline reads, write its records to a new topic, and read that one. "
        "Then start under a new application.id, with other names for the result topics; or, to start over under this "
        f"one, {start_over}."
    )
    raise PartitionsChangedError({pipeline.name: why})
