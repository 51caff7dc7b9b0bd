"""The offsets of the embedded log that Spark has read, in its checkpoints. Pure.

Offsets are ``{"<topic>": {"<partition>": next offset, "id": "<topic id>"}}`` in this order, with partitions sorted,
because Spark compares text. An absent partition is at 0. A topic of which nothing was read is absent (on disk: never
change).
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline_store import TopicPartition

_ID = "id"  # on disk: never change

Offsets = dict[TopicPartition, int]
"""The next offset of each partition. An absent partition is at 0."""

OffsetsJson = dict[str, dict[str, int | str]]


def to_offsets(json: Mapping[str, Mapping[str, int | str]]) -> Offsets:
    """Return the offsets of a checkpoint's JSON."""
    return {TopicPartition(t, int(p)): int(n) for t, of_topic in json.items() for p, n in of_topic.items() if p != _ID}


def to_topic_ids(json: Mapping[str, Mapping[str, int | str]]) -> dict[str, str]:
    """Return topic → id of a checkpoint's JSON."""
    return {topic: str(of_topic.get(_ID)) for topic, of_topic in json.items()}


def to_json(offsets: Offsets, topic_ids: Mapping[str, str]) -> OffsetsJson:
    """Return a checkpoint's JSON. Equal offsets of the same topics give equal text."""
    json: OffsetsJson = {}
    for partition in sorted(offsets):
        if offsets[partition] > 0:
            json.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for topic, of_topic in json.items():
        of_topic[_ID] = topic_ids[topic]
    return json


def limited(start: Offsets, ends: Offsets, max_rows: int | None) -> Offsets:
    """Return the end of one micro-batch: every partition in proportion to its backlog, as in Spark's Kafka source, and
    at least one record of each, so that none starves."""
    waiting = {partition: end - start.get(partition, 0) for partition, end in ends.items()}
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return ends
    return {
        partition: start.get(partition, 0) + min(rows, max(1, rows * max_rows // total))
        for partition, rows in waiting.items()
    }
