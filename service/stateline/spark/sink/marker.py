"""The marker of a pipeline: which micro-batch its result topic holds, as the sink writes and reads it.

A record of the topic ``<application.id>-<pipeline>-epochs`` (one partition, compacted; on disk: never change):

    key    := the pipeline's name
    value  := {"queryId": …, "batchId": …, "endOffsets": [one text per source, or null],
               "rows": result rows of the batch, "resultTopicIds": {topic: id},
               "resultEnds": {topic: {"<partition>": last offset}}}

`rows` and `resultTopicIds` are absent in markers of earlier versions. `resultEnds` is there when the pipeline's
micro-batches are to be seen whole: where all of them so far end, in every partition that has records.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

import orjson

from stateline.log import Log
from stateline.spark.sink.topic_records import records_between
from stateline_store import DamagedDataError, TopicPartition

LOOK_BACK = 64  # offsets: the newest marker is among the last ones, unless many transactions were aborted
# Markers that are compacted away are missed by none but a driver that looks a day later.
EPOCHS_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}

ResultEnds = Mapping[str, Mapping[str, int]]
"""Topic → partition, as text → the last offset."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A micro-batch that the result topics hold. `topic_ids` are theirs; empty, and `rows` None, where an earlier
    version has written the marker. `result_ends` is None unless micro-batches are to be seen whole."""

    query_id: str
    batch_id: int
    end_offsets: tuple[str | None, ...]
    rows: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    result_ends: ResultEnds | None = None

    def encode(self) -> bytes:
        """The marker record's value."""
        tree = {
            "queryId": self.query_id,
            "batchId": self.batch_id,
            "endOffsets": self.end_offsets,
            "rows": self.rows,
            "resultTopicIds": self.topic_ids,
        }
        return orjson.dumps(tree if self.result_ends is None else tree | {"resultEnds": self.result_ends})

    @classmethod
    def decode(cls, data: bytes) -> Marker:
        """The marker in these bytes. Raises `DamagedDataError` when there is none."""
        try:
            tree = orjson.loads(data)
            ends = tuple(tree["endOffsets"])
            ids, result_ends = tree.get("resultTopicIds") or {}, tree.get("resultEnds")
            return cls(tree["queryId"], tree["batchId"], ends, tree.get("rows"), ids, result_ends)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DamagedDataError(
                f"{data[:100]!r} is not a pipeline's marker: something else wrote to the epochs topic. Delete it "
                "together with the pipeline's checkpoint and its result topic, and start again."
            ) from error


def newest_markers(log: Log, topic: str) -> list[Marker]:
    """The newest committed markers, in order: some dozens, where so many are kept; empty when there is none.

    Unless every older producer is fenced by now, one may commit another after it.
    """
    partition = TopicPartition(topic, 0)
    with closing(log.admin()) as admin:
        first, end = admin.watermarks(partition)
    span = LOOK_BACK
    while first < end:
        start = max(first, end - span)
        values = _values(log, partition, start, end)
        if values or start == first:
            return [Marker.decode(value) for value in values]
        span *= 16
    return []


def _values(log: Log, partition: TopicPartition, start: int, end: int) -> list[bytes]:
    """The values of the partition's committed records between these offsets."""
    records = records_between(log, {partition: (start, end)}, "try again when the log answers")
    return [record.value for record in records if record.value is not None]
