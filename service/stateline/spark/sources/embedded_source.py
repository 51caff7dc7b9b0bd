"""Spark's source for topics of the embedded log: the format ``stateline-log``, with the columns of the Kafka source.

Options: `path` (the log's file), `subscribe` (topics, separated by commas), `maxOffsetsPerTrigger` (the most records of
a micro-batch), and for batch reads `startingOffsets` and `endingOffsets` (exclusive), in JSON as in a checkpoint.
Streams start with the earliest record. `embedded_offsets` describes the checkpoint. A Spark task reads one partition,
or several small ones, in the executors' Python, through its own read-only connection.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateline.log.embedded_file import OFFSET_BITS, OFFSET_MASK, LogFile
from stateline.log.embedded_transactions import visible_ends
from stateline.spark.one_line import in_one_line
from stateline.spark.sources.embedded_offsets import Offsets, OffsetsJson, limited, to_json, to_offsets, to_topic_ids
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition

FORMAT = "stateline-log"
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"

_ROWS_PER_BATCH = 10_000  # Arrow batches of this size cost little per row and stay in a CPU's cache
_ROWS_PER_TASK = 10_000  # a task costs some 20 ms in Spark and Python, as much as reading so many rows
_BUSY_TIMEOUT_MS = 10_000
ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)

_Row = tuple[int, int, bytes | None, bytes | None]  # record id, timestamp_ms, key, value


@dataclass(frozen=True)
class Slice(InputPartition):
    """The offsets `first` to before `end` of one partition."""

    topic: str
    partition: int
    partition_id: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Slices(InputPartition):
    """The slices that one Spark task reads, in this order."""

    pieces: tuple[Slice, ...]


class EmbeddedLogSource(DataSource):
    """The format ``stateline-log``. Register it with ``session.dataSource.register(EmbeddedLogSource)``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> EmbeddedLogReader:
        return EmbeddedLogReader(self.options)

    def streamReader(self, schema: StructType) -> EmbeddedLogStreamReader:  # noqa: N802  # Spark's name
        return EmbeddedLogStreamReader(self.options)


@dataclass(frozen=True, slots=True)
class _Found:
    """The subscribed topics in the file: visible end and id of each partition, id of each topic."""

    ends: Offsets
    partition_ids: dict[TopicPartition, int]
    topic_ids: dict[str, str]


class _Topics:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.path = Path(options["path"])
        self._topics = [name.strip() for name in options["subscribe"].split(",")]

    def look(self) -> _Found:
        """Return the present state. Raises `DoesNotExistError` for an absent topic."""
        with closing(LogFile(self.path, _BUSY_TIMEOUT_MS)) as file:
            marks = ",".join("?" * len(self._topics))
            rows = file.rows(
                "SELECT topic, partition, id, topic_id FROM partitions JOIN topics ON name = topic "
                f"WHERE topic IN ({marks})",
                self._topics,
            )
            visible = visible_ends(file, [id_ for _, _, id_, _ in rows])
        rows = [row for row in rows if row[2] in visible]  # the rest was deleted between the two queries
        topic_ids = {topic: topic_id for topic, _, _, topic_id in rows}
        for topic in self._topics:
            if topic not in topic_ids:
                raise DoesNotExistError(f"{self.path} has no topic {topic!r}: create it, then start again.")
        ids = {TopicPartition(topic, partition): id_ for topic, partition, id_, _ in rows}
        return _Found({partition: visible[id_][0] for partition, id_ in ids.items()}, ids, topic_ids)

    def refuse_others(self, read: OffsetsJson, found: _Found) -> None:
        """Raise `DoesNotExistError` if the offsets read are of other topics than found: continuing would skip or repeat
        records."""
        ids = to_topic_ids(read)
        for partition, offset in to_offsets(read).items():
            end, now = found.ends.get(partition, -1), found.topic_ids.get(partition.topic)
            known = ids[partition.topic]
            if end < offset:
                seen = f"ends at {end}" if end >= 0 else "is not there"
            elif known != now:
                seen = f"has the id {now}, not {known}"
            else:
                continue
            raise DoesNotExistError(
                f"{partition} was read up to offset {offset}, and in {self.path} it now {seen}: the topic was deleted "
                "or created again. Restore it; or, to start over with the new one, delete the pipeline's checkpoint "
                "together with its result and epochs topics."
            )


class EmbeddedLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches. Spark calls all but `read` in one Python process beside the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._topics = _Topics(options)
        limit = options.get("maxOffsetsPerTrigger")
        self._max_rows = int(limit) if limit else None
        self._target: Offsets | None = None

    def initialOffset(self) -> OffsetsJson:  # noqa: N802  # Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = self._topics.look().ends

    @in_one_line()
    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch, or `start` if there is nothing new or the log is busy. Raises
        `DoesNotExistError` if a topic of the checkpoint was deleted or created again."""
        since = to_offsets(start)
        try:
            found = self._topics.look()
        except LogUnavailableError:
            return start  # an exception would end the query; the next trigger looks again
        self._topics.refuse_others(start, found)
        ends = found.ends
        if self._target is not None:
            # The checkpoint may be beyond the target of this run. Never go back.
            ends = {p: min(end, max(self._target.get(p, 0), since.get(p, 0))) for p, end in ends.items()}
        reached = limited(since, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if all(offset == since.get(partition, 0) for partition, offset in reached.items()):
            return start  # Spark would make a micro-batch of other text
        return to_json(reached, found.topic_ids)

    @in_one_line()
    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802  # Spark's name
        try:
            found = self._topics.look()
        except LogUnavailableError:
            return None  # the report lacks this figure
        return to_json(found.ends, found.topic_ids)

    @in_one_line()
    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[Slices]:
        """Return the slices of each task. Raises `DoesNotExistError` as `latestOffset` does: after a restart Spark
        calls this first, for a batch that it planned before."""
        since, until = to_offsets(start), to_offsets(end)
        if since == until:
            return []
        found = self._topics.look()
        self._topics.refuse_others(end, found)
        return shared_out(
            Slice(*partition, found.partition_ids[partition], since.get(partition, 0), offset)
            for partition, offset in until.items()
            if offset > since.get(partition, 0)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slices)
        for piece in partition.pieces:
            yield from read_slice(self._topics.path, piece)


def shared_out(pieces: Iterable[Slice]) -> list[Slices]:
    """Return the slices as tasks: one each, or several small ones of at most `_ROWS_PER_TASK` records together."""
    tasks: list[list[Slice]] = []
    room = 0
    for piece in pieces:
        size = piece.end - piece.first
        if size > room:
            tasks.append([])
            room = _ROWS_PER_TASK
        tasks[-1].append(piece)
        room -= size
    return [Slices(tuple(task)) for task in tasks]


class EmbeddedLogReader(DataSourceReader):
    """Reads what is visible when Spark plans the query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._topics = _Topics(options)
        self._start: OffsetsJson = json.loads(options.get("startingOffsets", "{}"))
        self._end: OffsetsJson | None = json.loads(options.get("endingOffsets", "null"))

    @in_one_line()
    def partitions(self) -> list[Slice]:
        found = self._topics.look()
        ids, since, ends = found.partition_ids, to_offsets(self._start), found.ends
        if self._end is not None:
            self._topics.refuse_others(self._end, found)
            ends = to_offsets(self._end)
        bounds = [(p, since.get(p, 0), end) for p, end in sorted(ends.items())]
        slices = [Slice(*p, ids[p], first, end) for p, first, end in bounds if first < end]
        # For an empty list Spark would call `read(None)`.
        return slices or [Slice("", 0, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return read_slice(self._topics.path, partition)


def read_slice(path: Path, piece: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the records of one slice, in offset order."""
    # Not `immutable`, since others write. No read transaction, since visible records never change.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        for rows in _pages(connection, piece):
            yield _record_batch(rows, piece)


def _pages(connection: sqlite3.Connection, piece: Slice) -> Iterator[list[_Row]]:
    base = piece.partition_id << OFFSET_BITS
    first, end = base + piece.first, base + piece.end
    query = (
        f"SELECT id, timestamp_ms, key, value FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT {_ROWS_PER_BATCH}"
    )
    while rows := connection.execute(query, (first, end)).fetchall():
        yield rows
        first = rows[-1][0] + 1


def _record_batch(rows: list[_Row], piece: Slice) -> pa.RecordBatch:
    ids, timestamps, keys, values = zip(*rows, strict=True)
    columns: list[Any] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(piece.topic, pa.string()), len(rows)),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), len(rows)),
        pc.bit_wise_and(pa.array(ids, pa.int64()), OFFSET_MASK),
        pa.array(timestamps, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
