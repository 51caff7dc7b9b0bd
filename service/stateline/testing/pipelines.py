"""A pipeline run once, on rows: the real sources, function and sink, on Spark, over an embedded log of its own."""

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
    """The rows that this pipeline writes when its topics hold these records, in the order in which they are written.
    A row has the members of its record's value, `_key` and `_timestamp` (milliseconds since the epoch); of a tombstone
    `_deleted` is True, and with `branches` `_topic` says where it went.

    `rows` are by topic; one that is not named is empty. A record without a timestamp has the time of now. All that is
    given is read, in one micro-batch unless there is more than ``pipeline.max.offsets.per.trigger``. `session` is the
    one to run in, which stays; without it that of this process, which is started if there is none, and then takes some
    seconds. `config` are settings over those of the `App`.

    Raises `ConfigurationError` where Spark is not installed, `DoesNotExistError` for a pipeline that there is not, or a
    topic that it does not read, `InvalidArgumentError` for a record that is not of its topic's types, and whatever ends
    the pipeline.
    """
    need_extra("spark", "Pipelines")
    from pyspark.sql import SparkSession

    from stateline.spark.drivers.one_pipeline import pipeline_of
    from stateline.spark.drivers.several_pipelines import run_pipelines
    from stateline.spark.session import spark_session

    pipeline = pipeline_of(app, name)
    inputs = {topic.name: topic for topic in pipeline.inputs}
    if unread := sorted(rows.keys() - inputs.keys()):
        raise DoesNotExistError(f"Pipeline {name!r} does not read {unread[0]!r}; it reads {', '.join(inputs)}.")
    topology = app.topology()
    with closing(DriverFolder(app, config or {})) as place:
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
