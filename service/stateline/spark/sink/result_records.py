"""The records of a micro-batch, from its encoded rows. Pure.

Encoded rows are what `stateline.spark.sink.encoding` makes:

| column         | type   |                                                                                         |
|----------------|--------|-----------------------------------------------------------------------------------------|
| `key`          | binary | the record's key, that of a window or a session whole                                   |
| `value`        | binary | its value; null: a tombstone                                                            |
| `timestamp_ms` | int64  | null: the time of the micro-batch                                                       |
| `topic`        | int32  | index into the pipeline's `writes` and `branches`                                       |
| `order`        | int64  | of rows of one key; null throughout: by their time                                      |
| `bad`          | string | why the row cannot become a record, with the row; null: it can. The rest is void then   |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import murmur2

from stateline.model.pipeline import Pipeline
from stateline.serde.windowed import WindowedSerde
from stateline_store import RecordError

ENCODED = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp_ms", pa.int64()),
        ("topic", pa.int32()),
        ("order", pa.int64()),
        ("bad", pa.string()),
    ]
)
_FIRST = -(1 << 63)
_SHOWN_BYTES = 200  # of a row in an error


class ResultRecord(NamedTuple):
    """One record to produce. `value` None is a tombstone. `partition` None leaves the choice to the producer."""

    topic: str
    key: bytes
    value: bytes | None
    timestamp_ms: int
    partition: int | None = None


RecordParts = tuple[str, bytes, bytes | None, int, int | None]
"""A `ResultRecord`, or a tuple of its parts in their order."""


class ResultRecords(Collection[RecordParts]):
    """The records of a micro-batch, kept as columns, so that iteration leaves no object per record behind. Measured: as
    a list, which the garbage collector scans repeatedly, the way from Arrow to the producer takes twice as long."""

    def __init__(
        self,
        topics: Sequence[str],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        partitions: Sequence[int | None],
    ) -> None:
        self._columns = topics, keys, values, timestamps_ms, partitions

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[RecordParts]:
        return zip(*self._columns, strict=True)

    def __contains__(self, record: object) -> bool:
        return any(parts == record for parts in self)


def result_records(
    table: pa.Table, pipeline: Pipeline, batch_time_ms: int, partitions: Mapping[str, int]
) -> ResultRecords:
    """Return one record per encoded row, sorted by `order`. A table's newest row of a key comes last.
    `partitions` has the counts of the pipeline's topics: records of windows and sessions go to the partition of the
    inner key. Raises `RecordError` for the first row that cannot become a record, and for a key with two newest rows of
    a table."""
    if table["bad"].null_count < len(table):
        refuse_bad(table["bad"].drop_null()[0].as_py(), pipeline)
    return as_records(arranged(table, pipeline, batch_time_ms), pipeline, batch_time_ms, partitions)


def arranged(table: pa.Table, pipeline: Pipeline, batch_time_ms: int) -> pa.Table:
    """Return the rows in the order of `result_records`. Raises `RecordError` for two newest rows of one key."""
    if is_table(pipeline) and pc.count_distinct(table["key"]).as_py() < len(table):
        return _newest_last(table, pipeline, batch_time_ms)
    if table["order"].null_count < len(table):
        return table.take(pc.sort_indices(pc.fill_null(table["order"], _FIRST)))  # stable
    return table


def as_records(table: pa.Table, pipeline: Pipeline, batch_time_ms: int, partitions: Mapping[str, int]) -> ResultRecords:
    names = topic_names(pipeline)
    keys: list[bytes] = table["key"].to_pylist()
    topics = [names[at] for at in table["topic"].to_pylist()] if pipeline.branches else [names[0]] * len(keys)
    timestamps: list[int] = pc.fill_null(table["timestamp_ms"], batch_time_ms).to_pylist()
    homes: Sequence[int | None] = [None] * len(keys)
    if isinstance(serde := pipeline.writes.key, WindowedSerde):
        inner = -serde.suffix_bytes
        homes = [murmur2(key[:inner], partitions[topic]) for key, topic in zip(keys, topics, strict=True)]
    return ResultRecords(topics, keys, table["value"].to_pylist(), timestamps, homes)


def topic_names(pipeline: Pipeline) -> list[str]:
    """Return the topics that a pipeline writes, in the order of the encoded rows' index."""
    return [topic.name for topic in (pipeline.writes, *pipeline.branches)]


def home(key: bytes, topic: str, pipeline: Pipeline, partitions: Mapping[str, int]) -> int | None:
    """Return the partition of a window's or session's key: that of the inner key, where servers look for its windows.
    None for other keys: the producer chooses."""
    serde = pipeline.writes.key
    return murmur2(key[: -serde.suffix_bytes], partitions[topic]) if isinstance(serde, WindowedSerde) else None


def two_rows_of(pipeline: Pipeline, key: bytes, topic: str, values: Sequence[bytes | None], advice: str) -> RecordError:
    """Return the error for several rows with one key, these values among them."""
    shown = "; ".join("a tombstone" if value is None else repr(value[:_SHOWN_BYTES]) for value in values)
    return RecordError(
        f"Pipeline {pipeline.name!r}: two rows of one micro-batch have the key {key[:100]!r} of {topic!r} ({shown}): "
        f"name the column that tells them apart in key= (one that is grouped by, say){advice}."
    )


def is_table(pipeline: Pipeline) -> bool:
    """Return whether a row replaces an earlier row of its key. In complete mode `result_table` handles that."""
    return pipeline.result == "table" and pipeline.output_mode != "complete"


def _newest_last(table: pa.Table, pipeline: Pipeline, batch_time_ms: int) -> pa.Table:
    for name, default in (("order", _FIRST), ("timestamp_ms", batch_time_ms)):
        table = table.set_column(table.schema.get_field_index(name), name, pc.fill_null(table[name], default))
    same = table.group_by(["topic", "key", "order", "timestamp_ms"], use_threads=False).aggregate([([], "count_all")])
    for first in same.filter(pc.greater(same["count_all"], 1)).slice(0, 1).to_pylist():
        alike = pc.and_(pc.equal(table["key"], first["key"]), pc.equal(table["topic"], first["topic"]))
        values = table.filter(alike)["value"].slice(0, 2).to_pylist()
        advice = ", or in timestamp=, or give the rows an _order; with result='stream' every row counts"
        raise two_rows_of(pipeline, first["key"], topic_names(pipeline)[first["topic"]], values, advice)
    return table.take(pc.sort_indices(table, [("order", "ascending"), ("timestamp_ms", "ascending")]))


def refuse_bad(bad: str | None, pipeline: Pipeline) -> None:
    """Raise `RecordError` if a row cannot become a record for this reason."""
    if bad is not None:
        raise RecordError(
            f"Pipeline {pipeline.name!r}: {bad}: filter such rows, or fill the column, in the pipeline's function."
        )
