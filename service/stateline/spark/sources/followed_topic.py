"""Spark's source for static topics: the format ``stateline-followed``, a batch of the newest record of each key.

The first batch reads the topic. Later ones of the same DataFrame read only new records, on executors that keep the
earlier ones in files (`newest_files`), in Spark's local directory, which is deleted with the executor. Spark 4.2 plans
a Python source once per DataFrame (`PythonDataSourceV2.readInfo`), so the plan has only the number of tasks. A local
property of Spark's (`as_of_now`) tells all tasks of a micro-batch, repeated ones too, where to stop. A task without it
looks at the log.

Options: `bootstrap.servers` and `state.dir` as in the configuration, `subscribe` (one topic), `tasks` (the most that
read it, by default one per partition), and settings of librdkafka's clients, ``consumer.…`` and ``admin.…``. The
columns are those of Spark's Kafka source.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stateline.log import Log, Record, open_log
from stateline.log.interface import Admin, TopicInfo
from stateline.spark.one_line import in_one_line
from stateline.spark.sources.embedded_source import SCHEMA
from stateline.spark.sources.newest_files import BatchSpan, newest_records, private_folder
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition

FORMAT = "stateline-followed"

_RECORDS_AT_ONCE = 10_000
_SILENCE_S = 60.0


AS_OF = "stateline.followed"
"""The local property that has the result of `as_of_now`."""


@dataclass(frozen=True, slots=True)
class PartitionShare(InputPartition):
    """The partitions that one task reads: each `of`-th, from `number` on."""

    number: int
    of: int


def as_of_now(log: Log, topics: Iterable[str]) -> str:
    """Return how far tasks must read these topics: to the last stable offset of each partition, as JSON. Raises
    `DoesNotExistError` for an absent topic."""
    with closing(log.admin()) as admin:
        return json.dumps({topic: [astuple(span) for span in _spans(admin, topic)] for topic in topics})


class FollowedTopicSource(DataSource):
    """The format ``stateline-followed``. Register it with ``session.dataSource.register(FollowedTopicSource)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> FollowedTopicReader:
        return FollowedTopicReader(self.options)


class FollowedTopicReader(DataSourceReader):
    """Plans beside the driver, once, and reads on executors, in each micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._topic = options["subscribe"]

    @in_one_line()
    def partitions(self) -> list[PartitionShare]:
        """Return one share per task. Raises `DoesNotExistError` for an absent topic."""
        with closing(self._log()) as log, closing(log.admin()) as admin:
            count = _known(admin, self._topic).partitions
        tasks = min(count, int(self._options.get("tasks", count)))
        return [PartitionShare(number, tasks) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PartitionShare)
        # Spark tells Python workers the local directory of their executor.
        local = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
        with in_one_line():
            kept = private_folder(Path(local) / f"stateline-followed-{os.geteuid()}")
            for span in self._now()[partition.number :: partition.of]:
                yield from newest_records(kept / span.topic_id, span, partial(self.changes, span))

    def _now(self) -> list[BatchSpan]:
        context = TaskContext.get()
        told = json.loads((context and context.getLocalProperty(AS_OF)) or "{}")
        if self._topic in told:
            return [BatchSpan(*each) for each in told[self._topic]]
        with closing(self._log()) as log, closing(log.admin()) as admin:
            return _spans(admin, self._topic)

    def changes(self, span: BatchSpan, since: int) -> Iterator[list[Record]]:
        """Yield the partition's records from `since` to the end of `span`. Raises `LogUnavailableError` if none
        come."""
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


def _known(admin: Admin, name: str) -> TopicInfo:
    topic = admin.topics([name]).get(name)
    if topic is None:
        raise DoesNotExistError(f"There is no topic {name!r}: create it, then start again.")
    return topic


def _spans(admin: Admin, name: str) -> list[BatchSpan]:
    topic = _known(admin, name)
    firsts, ends = admin.bounds(topic.places), admin.committed_ends(topic.places)
    return [BatchSpan(topic.topic_id, place.partition, firsts[place][0], ends[place]) for place in topic.places]


def _beginning(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
