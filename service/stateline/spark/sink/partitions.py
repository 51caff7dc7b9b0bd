"""How many partitions the topics had whose keys a pipeline keeps, when it began. Pure.

Its tables, static ones too, and its results with ``result="table"``: of a key that moves to another partition nobody
could tell which of its records is the newest, and its old row would stay. The counts are in the checkpoint's
``declaration.json`` under ``topics``, as in ``topology.json``. While a pipeline runs, its results go to as many
partitions as they had at its start, and where a micro-batch ends tells which partitions Spark has read of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stateline.deployment.partition_counts import PartitionsChangedError, grown
from stateline.log.interface import TopicInfo
from stateline.model.pipeline import Pipeline
from stateline.spark.sink.result_records import topic_names
from stateline_store import TopicPartition


def counted_topics(
    pipeline: Pipeline, found: Mapping[str, TopicInfo], before: Mapping[str, TopicInfo]
) -> dict[str, TopicInfo]:
    """Those of these topics whose number of partitions must stay: as they were counted `before`, unless they were made
    anew since."""
    names = [topic.name for topic in (*pipeline.tables, *pipeline.static)]
    names += topic_names(pipeline) if pipeline.result == "table" else []
    known = {name: info for name, info in before.items() if name in found and found[name].topic_id == info.topic_id}
    return {name: known.get(name, found[name]) for name in names if name in found}


def as_read(counted: Mapping[str, TopicInfo], ends: Iterable[TopicPartition]) -> dict[str, TopicInfo]:
    """These topics with the partitions that are among those where a micro-batch ends."""
    found: dict[str, TopicInfo] = {}
    for topic, partition in ends:
        if topic in counted and partition >= found.get(topic, counted[topic]).partitions:
            found[topic] = replace(counted[topic], partitions=partition + 1)
    return found


def refuse_grown(
    pipeline: Pipeline, counted: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo], start_over: str
) -> None:
    """Raise `PartitionsChangedError` if one of the topics that were counted has more partitions now. `start_over` says
    how the pipeline begins anew."""
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
