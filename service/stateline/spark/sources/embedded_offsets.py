"""How far Spark has read the embedded log, as its checkpoints have it. Pure.

Offsets in a checkpoint are ``{"<topic>": {"<partition>": next offset, "id": "<topic id>"}}`` in this order,
partitions sorted, because Spark compares them as text; a partition that is absent stands at 0, and a topic of which
nothing was read is absent (on disk: never change).
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline_store import TopicPartition

_ID = "id"  # on disk: never change

Offsets = dict[TopicPartition, int]
"""Next offset of each partition; one that is absent stands at 0."""

OffsetsJson = dict[str, dict[str, int | str]]


def to_offsets(json: Mapping[str, Mapping[str, int | str]]) -> Offsets:
    """The offsets that this JSON of a checkpoint means."""
    return {TopicPartition(t, int(p)): int(n) for t, of_topic in json.items() for p, n in of_topic.items() if p != _ID}


def to_topic_ids(json: Mapping[str, Mapping[str, int | str]]) -> dict[str, str]:
    """Topic → id in this JSON of a checkpoint."""
    return {topic: str(of_topic.get(_ID)) for topic, of_topic in json.items()}


def to_json(offsets: Offsets, topic_ids: Mapping[str, str]) -> OffsetsJson:
    """The JSON of a checkpoint: equal offsets of the same topics give equal text."""
    json: OffsetsJson = {}
    for partition in sorted(offsets):
        if offsets[partition] > 0:
            json.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for topic, of_topic in json.items():
        of_topic[_ID] = topic_ids[topic]
    return json


def limited(start: Offsets, ends: Offsets, max_rows: int | None) -> Offsets:
    """How far one micro-batch reads: every partition in proportion to what waits there, as Spark's Kafka
    source does.

    At least one record of each partition that has any, so that none starves.
    """
    waiting = {partition: end - start.get(partition, 0) for partition, end in ends.items()}
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return ends
    return {
        partition: start.get(partition, 0) + min(rows, max(1, rows * max_rows // total))
        for partition, rows in waiting.items()
    }
