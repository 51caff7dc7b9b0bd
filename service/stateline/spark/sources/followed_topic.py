"""Spark's source for static topics: the format ``stateline-followed``, a batch of the newest record of each key.

The first batch reads the topic; each further one of the same DataFrame what is new since, on executors that have done
so before: they keep what they have read in files of their own (`newest_files`), in Spark's local directory, which is
deleted with the executor. All tasks of a batch have the end that the planner found, the last stable offset.

Options: `bootstrap.servers` and `state.dir` as in the configuration, `subscribe` (one topic), `reader` (whose files),
`tasks` (the most that read it; by default one for each partition), and settings of librdkafka's clients, ``consumer.…``
and ``admin.…``. The columns are those of Spark's Kafka source.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stateline.log import Log, Record, open_log
from stateline.spark.one_line import in_one_line
from stateline.spark.sources.embedded_source import SCHEMA
from stateline.spark.sources.newest_files import Span, newest_records
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition

FORMAT = "stateline-followed"

_RECORDS_AT_ONCE = 10_000
_SILENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Spans(InputPartition):
    """What one task reads, one after the other."""

    spans: tuple[Span, ...]


class FollowedTopicSource(DataSource):
    """The format ``stateline-followed``; register it with ``session.dataSource.register(FollowedTopicSource)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> FollowedTopicReader:
        return FollowedTopicReader(self.options)


class FollowedTopicReader(DataSourceReader):
    """Plans beside the driver, anew for each micro-batch, and reads on executors."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._topic = options["subscribe"]

    @in_one_line()
    def partitions(self) -> list[Spans]:
        """As the topic is now. Raises `DoesNotExistError` when there is none."""
        with closing(self._log()) as log, closing(log.admin()) as admin:
            topic = admin.topics([self._topic]).get(self._topic)
            if topic is None:
                raise DoesNotExistError(f"There is no topic {self._topic!r}: create it, then start again.")
            places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            firsts, ends = admin.bounds(places), admin.committed_ends(places)
        spans = [Span(topic.topic_id, place.partition, firsts[place][0], ends[place]) for place in places]
        tasks = min(len(spans), int(self._options.get("tasks", len(spans))))
        return [Spans(tuple(spans[number::tasks])) for number in range(tasks)]

    @in_one_line()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Spans)
        # Which of Spark's directories is the executor's, Python workers are told; they have one each.
        local = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
        for span in partition.spans:
            folder = Path(local) / "stateline-followed" / self._options["reader"] / span.topic_id
            yield from newest_records(folder, span, partial(self.changes, span))

    def changes(self, span: Span, since: int) -> Iterator[list[Record]]:
        """The partition's records from `since` to the end of `span`. Raises `LogUnavailableError` when none come."""
        place = TopicPartition(self._topic, span.partition)
        with closing(self._log()) as log, closing(log.consumer()) as consumer:
            consumer.assign({place: since})
            deadline = time.monotonic() + _SILENCE_S
            while (at := consumer.next_offset(place)) is None or at < span.end:
                records = consumer.poll(_RECORDS_AT_ONCE, 1.0)
                wanted = [record for record in records if record.offset < span.end]
                if wanted:
                    yield wanted
                    deadline = time.monotonic() + _SILENCE_S
                if len(wanted) < len(records):
                    return
                if time.monotonic() > deadline:
                    raise LogUnavailableError(f"{place} should go on to offset {span.end}, and nothing comes of it.")

    def _log(self) -> Log:
        return open_log(
            self._options["bootstrap.servers"],
            Path(self._options["state.dir"]),
            consumer=_beginning(self._options, "consumer."),
            admin=_beginning(self._options, "admin."),
        )


def _beginning(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
