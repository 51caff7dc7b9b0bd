"""The offsets of a store's changes that Spark has read, in its checkpoints. Pure.

JSON in a checkpoint (on disk: never change), with keys sorted as text, because Spark compares text:

    {"begin": {"<partition>": offset}, "id": "<topic id>", "next": {"<partition>": offset}, "topic": "<topic>"}

`next` has the next offset of each partition. Only the end of the first micro-batch has `begin`. The start of a query
has `"initial": true` instead. Spark does not keep it, and asks again after a crash in the first batch. The first batch
therefore starts at its end's `begin`. It exists even if there is nothing to read, so that `latest` is kept at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateline.spark.sources.embedded_offsets import limited
from stateline_store import CursorExpiredError, TopicPartition

OffsetsJson = dict[str, Any]
Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """The server's answer: the topic, the start if it was asked for, and the committed ends. `columns` have a `name`
    and an Arrow `type` each."""

    topic: str
    topic_id: str
    partitions: int
    begin: Offsets | None
    end: Offsets
    value_type: str = "string"
    columns: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> TopicEnds:
        """Read the JSON of `GET …/changes/offsets`. Raises `KeyError` or `TypeError` for other JSON."""
        begin = document.get("begin")
        return cls(
            document["topic"],
            document["topic_id"],
            document["partitions"],
            None if begin is None else _by_partition(begin),
            _by_partition(document["end"]),
            document["value_type"],
            document["columns"],
        )

    def described(self, store: str) -> dict[str, Any]:
        return {"store": store, "value_type": self.value_type, "columns": self.columns}


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Changes of one partition from `first` to before `end`."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int


def initial(topic_ends: TopicEnds) -> OffsetsJson:
    """Return the start of a query, from an answer that has `begin`."""
    begin = topic_ends.begin or {}
    every = {str(p): begin.get(p, 0) for p in range(topic_ends.partitions)}
    return {"id": topic_ends.topic_id, "initial": True, "next": _sorted(every), "topic": topic_ends.topic}


def reached(start: OffsetsJson, topic_ends: TopicEnds, max_changes: int | None) -> OffsetsJson:
    """Return the end of the micro-batch that starts at `start`, or `start` itself if there is nothing to do.
    `max_changes` bounds the number of offsets, but each partition may advance. Raises `CursorExpiredError` if the topic
    was created again."""
    refuse_another(start, topic_ends.topic, topic_ends.topic_id)
    # New partitions start at their beginning.
    since = {**dict.fromkeys(range(topic_ends.partitions), 0), **_by_partition(start["next"])}
    # A restarted server may know less for a while, but commits stay.
    ends = {p: max(topic_ends.end.get(p, 0), at) for p, at in since.items()}
    begins, wanted = _placed(topic_ends.topic, since), _placed(topic_ends.topic, ends)
    found = limited(begins, wanted, max_changes)
    is_first = "initial" in start
    if found == begins and not is_first:
        return start
    json = {"id": topic_ends.topic_id, "next": _sorted({str(p.partition): at for p, at in found.items()})}
    begin = {"begin": _sorted(start["next"])} if is_first else {}
    return {**begin, **json, "topic": topic_ends.topic}


def latest(topic_ends: TopicEnds) -> OffsetsJson:
    """Return the committed ends in the form of a micro-batch's end. They are equal if nothing is left to read."""
    ends = {str(p): topic_ends.end.get(p, 0) for p in range(topic_ends.partitions)}
    return {"id": topic_ends.topic_id, "next": _sorted(ends), "topic": topic_ends.topic}


def spans(start: OffsetsJson, end: OffsetsJson) -> list[OffsetSpan]:
    """Return a span for each partition that has changes between these offsets."""
    first = _by_partition(end["begin"] if "begin" in end else start["next"])
    return [
        OffsetSpan(end["topic"], end["id"], partition, first.get(partition, 0), until)
        for partition, until in sorted(_by_partition(end["next"]).items())
        if until > first.get(partition, 0)
    ]


def refuse_another(read: OffsetsJson, topic: str, topic_id: str) -> None:
    """Raise `CursorExpiredError` if these offsets are of another topic: continuing would skip or repeat changes."""
    if (read["topic"], read["id"]) != (topic, topic_id):
        raise CursorExpiredError(
            f"The checkpoint is of the topic {read['topic']!r} with the id {read['id']}, and the store's changes are "
            f"in {topic!r} with the id {topic_id} now. It was created again, or the query asks for another store. "
            "Start over with a new checkpoint, from a snapshot and the changes after its position."
        )


def _by_partition(json: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.items()}


def _placed(topic: str, offsets: Offsets) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}


def _sorted(offsets: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(offsets.items()))
