"""Runs a pipeline once, on given rows: the real sources, function and sink, on Spark, over an embedded log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from stateline.config.extras import need_extra
from stateline.dsl.app import App
from stateline.model.pipeline import Pipeline
from stateline.testing.place import DriverFolder
from stateline.testing.records import Record, TopicReader, write
from stateline_store import DoesNotExistError
from stateline_store.clock import now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    app: App,
    name: str,
    rows: Mapping[str, Sequence[Record]],
    *,
    config: Mapping[str, Any] | None = None,
    session: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that this pipeline writes for these records, in the order of writing. A row has its value's
    members, `_key` and `_timestamp` (milliseconds since the epoch). A tombstone has `_deleted` True. With `branches`,
    `_topic` is the row's topic.

    `rows` are by topic. Unnamed topics are empty. A record without a timestamp gets the time now. All records are read,
    in one micro-batch unless they exceed ``pipeline.max.offsets.per.trigger``. `session` is used and stays. Without it,
    this process's session is used, or started within seconds. `config` has settings over those of the `App`.

    Raises `ConfigurationError` if Spark is not installed, `DoesNotExistError` for an unknown pipeline or a topic that
    it does not read, `InvalidArgumentError` for a record of other types than its topic's, and errors that end the
    pipeline.
    """
    need_extra("spark", "Pipelines")
    from pyspark.sql import SparkSession

    from stateline.spark.drivers.one_pipeline import pipeline_of
    from stateline.spark.drivers.several_pipelines import run_pipelines
    from stateline.spark.session import spark_session

    with closing(DriverFolder(app, config or {})) as place:
        pipeline, topology = pipeline_of(app, name), app.topology()
        inputs = {topic.name: topic for topic in pipeline.inputs}
        if unread := sorted(rows.keys() - inputs.keys()):
            raise DoesNotExistError(f"Pipeline {name!r} does not read {unread[0]!r}; it reads {', '.join(inputs)}.")
        place.create_topics(topology, 1)
        for topic, records in rows.items():
            write(place.log, inputs[topic], records, now_ms())
        running = session or SparkSession.getActiveSession() or spark_session(place.config)
        run_pipelines(app, [name], place.config, place.log, available_now=True, session=running)
        reader = TopicReader(topology)
        return [_row(pipeline, topic.name, r) for topic in pipeline.results for r in reader.read(place.log, topic)]


def _row(pipeline: Pipeline, topic: str, record: Record) -> dict[str, Any]:
    row = {"_key": record.key, "_timestamp": record.timestamp_ms}
    row |= {"_topic": topic} if pipeline.branches else {}
    return row | ({"_deleted": True} if record.value is None else record.value)
