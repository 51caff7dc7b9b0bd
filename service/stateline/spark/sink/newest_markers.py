"""The newest markers of a pipeline, as its topic has them (`stateline.deployment.pipelines.epoch_marker`)."""

from __future__ import annotations

from contextlib import closing

from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log
from stateline.log.committed_records import records_between
from stateline_store import TopicPartition

LOOK_BACK = 64  # offsets: the newest marker is among the last ones, unless many transactions were aborted


def newest_markers(log: Log, topic: str) -> list[EpochMarker]:
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
            return [EpochMarker.decode(value) for value in values]
        span *= 16
    return []


def _values(log: Log, partition: TopicPartition, start: int, end: int) -> list[bytes]:
    """The values of the partition's committed records between these offsets."""
    records = records_between(log, {partition: (start, end)}, "try again when the log answers")
    return [record.value for record in records if record.value is not None]
