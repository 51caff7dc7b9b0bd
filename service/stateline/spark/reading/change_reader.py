"""Reads committed changes of a store as a Spark stream, over HTTP.

A micro-batch is a span of offsets of each partition, all committed when it was planned. A repeated batch therefore has
the same changes, also if servers, workers or drivers die in between. docs/http/changes.md has the columns
(`…/changes/rows`), `row_types` their types in Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stateline.client.lean.client import LOST, PLANNING_S, PassingError
from stateline.spark.one_line import in_one_line
from stateline.spark.reading.change_offsets import OffsetsJson, OffsetSpan, TopicEnds, initial, latest, reached, spans
from stateline.spark.reading.change_requests import ChangeOptions, batches, offsets, offsets_now
from stateline.spark.reading.executor import spare_loaded_code
from stateline.spark.reading.row_types import RowShape, default_schema

# Spark looks every 10 ms. Servers need not be asked so often.
_IDLE_S = 0.2
_LONGEST_PAUSE_S = 5.0

_log = logging.getLogger(__name__)


@dataclass
class ChangeSpan(InputPartition):
    """The changes of one Spark task."""

    span: OffsetSpan


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches. Spark calls `read` on executors, and the rest in one Python process beside the
    driver. Temporary failures are retried for the option `retry_s`. `latestOffset` does not wait, since Spark calls it
    again. Other failures end the query: `CursorExpiredError` if the log has lost the next changes or is another one."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Do not read options: in place of an error in here, Spark 4.2 shows its own `UnboundLocalError`."""
        self._given = dict(options)
        self._schema = schema
        self._initial: OffsetsJson | None = None
        self._target: TopicEnds | None = None
        self._seen: TopicEnds | None = None
        self._failed = 0
        self._not_before_s = 0.0

    @cached_property
    def _options(self) -> ChangeOptions:
        return ChangeOptions.read(self._given)

    @in_one_line()
    def initialOffset(self) -> OffsetsJson:  # noqa: N802  # Spark's name
        """Return the start that the options name. Once: Spark asks again before the first batch, and latest would
        move."""
        if self._initial is None:
            self._initial = initial(self._checked(offsets(self._options, self._options.begin)))
        return self._initial

    @in_one_line()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        limit = self._options.max_changes
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Wait until the end of every partition is known."""
        self._target = self._checked(offsets(self._options, "latest"))

    @in_one_line()
    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch, or `start` if there is nothing new or no server answers."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._target is not None:
            return reached(start, self._target, most)  # the target is known, even without a server
        if time.monotonic() < self._not_before_s:
            return start
        try:
            topic_ends = self._checked(offsets_now(self._options))
        except LOST as error:  # an exception would end the query; the next trigger looks again
            self._put_off(error)
            return start
        self._seen, self._failed = topic_ends, 0
        end = reached(start, topic_ends, most)
        if end is start:
            self._not_before_s = time.monotonic() + _IDLE_S
        return end

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802  # Spark's name
        """Return the last ends seen, or None."""
        seen = self._target or self._seen
        return None if seen is None else latest(seen)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[ChangeSpan]:
        return [ChangeSpan(span) for span in spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangeSpan)
        return _recast(self._options, self._schema, partition.span)

    def _checked(self, topic_ends: TopicEnds) -> TopicEnds:
        RowShape(self._schema, topic_ends.described(self._options.store))  # raises for absent columns
        return topic_ends

    def _put_off(self, error: Exception) -> None:
        """Delay the next look, longer each time, and at least as long as the server asks for."""
        if not self._failed:
            _log.warning("Changes of %s are not read at the moment: %s", self._options.store, error)
        self._failed = min(self._failed + 1, 10)
        asked_s = error.retry_after_s if isinstance(error, PassingError) else 0.0
        self._not_before_s = time.monotonic() + max(asked_s, min(_IDLE_S * 2**self._failed, _LONGEST_PAUSE_S))


def change_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of this store's changes, with all columns or those of the option `columns`. Raises
    `InvalidArgumentError` for wrong options, `UnknownQueryTypeError` for a store without changes, and other errors of
    the server."""
    read = ChangeOptions.read(options)
    topic_ends = offsets(read, patience_s=min(PLANNING_S, read.server.retry_s))
    return default_schema(topic_ends.described(read.store), read.columns)


def _recast(options: ChangeOptions, schema: StructType, span: OffsetSpan) -> Iterator[pa.RecordBatch]:
    spare_loaded_code()
    columns = tuple(dict.fromkeys([*schema.fieldNames(), "offset"]))
    shape: RowShape | None = None
    with in_one_line(), closing(batches(options, span, columns)) as found:
        for batch in found:
            shape = shape or RowShape(schema, _described(batch.schema, options.store))
            yield shape.recast(batch)


def _described(schema: pa.Schema, store: str) -> dict[str, Any]:
    columns = [{"name": field.name, "type": str(field.type)} for field in schema]
    return {"store": store, "value_type": schema.metadata[b"stateline.value_type"].decode(), "columns": columns}
