"""How far Spark has read the changes of a store, as its checkpoints have it. Pure.

Offsets in a checkpoint (on disk: never change), keys sorted as text, because Spark compares them as text:

    {"begin": {"<partition>": offset}, "id": "<topic id>", "next": {"<partition>": offset}, "topic": "<topic>"}

`next` is the offset of the next change of each partition. `begin` stands in the end of the first micro-batch alone.
Where a query begins, which Spark asks for again after a crash in that batch and does not keep, has `"initial": true`
instead; the first batch is therefore read from its end's `begin`, and made even when there is nothing to read, so that
`latest` is kept from the first moment on.
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
    """What the server says: the topic, where a reader begins if it was asked, and the ends of what is committed.

    `columns` are those of the changes, each with its `name` and Arrow's name of its `type`.
    """

    topic: str
    topic_id: str
    partitions: int
    begin: Offsets | None
    end: Offsets
    value_type: str = "string"
    columns: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> TopicEnds:
        """From the JSON of `GET …/changes/offsets`. Raises `KeyError` or `TypeError` for what is none."""
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
        """The columns as `row_types` takes them."""
        return {"store": store, "value_type": self.value_type, "columns": self.columns}


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Changes of one partition from `first` to `end`, which is not included any more."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int


def initial(topic_ends: TopicEnds) -> OffsetsJson:
    """Where a query begins, of an answer that was asked for that."""
    begin = topic_ends.begin or {}
    every = {str(p): begin.get(p, 0) for p in range(topic_ends.partitions)}
    return {"id": topic_ends.topic_id, "initial": True, "next": _sorted(every), "topic": topic_ends.topic}


def reached(start: OffsetsJson, topic_ends: TopicEnds, max_changes: int | None) -> OffsetsJson:
    """As far as the micro-batch reads that begins at `start`; `start` itself when there is nothing to do.

    `max_changes` bounds the number of offsets; there are more only so that no partition starves. Raises
    `CursorExpiredError` when the topic is another one since.
    """
    refuse_another(start, topic_ends.topic, topic_ends.topic_id)
    # Partitions that were added since begin at their beginning.
    since = {**dict.fromkeys(range(topic_ends.partitions), 0), **_by_partition(start["next"])}
    # A server that was restarted may know of less for a while; what was committed once is so for ever.
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
    """The ends of what is committed, as the end of a micro-batch has them: equal when nothing is left to be read."""
    ends = {str(p): topic_ends.end.get(p, 0) for p in range(topic_ends.partitions)}
    return {"id": topic_ends.topic_id, "next": _sorted(ends), "topic": topic_ends.topic}


def spans(start: OffsetsJson, end: OffsetsJson) -> list[OffsetSpan]:
    """What the micro-batch between these offsets reads: a span per partition that has anything."""
    first = _by_partition(end["begin"] if "begin" in end else start["next"])
    return [
        OffsetSpan(end["topic"], end["id"], partition, first.get(partition, 0), until)
        for partition, until in sorted(_by_partition(end["next"]).items())
        if until > first.get(partition, 0)
    ]


def refuse_another(read: OffsetsJson, topic: str, topic_id: str) -> None:
    """Raise `CursorExpiredError` unless these offsets are of this topic: going on would leave out or repeat changes."""
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
