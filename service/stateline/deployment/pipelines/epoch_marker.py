"""The marker of a micro-batch in a pipeline's result topics, for its sink and for workers.

A record of the topic ``<application.id>-<pipeline>-epochs`` (one partition, compacted; on disk: never change), written
in the transaction of the micro-batch's rows:

    key    := the pipeline's name
    value  := {"queryId": …, "batchId": …, "endOffsets": [one text per source, or null],
               "rows": result rows of the batch, "resultTopicIds": {topic: id},
               "resultEnds": {topic: {"<partition>": last offset}}}

`resultEnds` is there if the pipeline's micro-batches are to be seen whole. It has the ends of all micro-batches so far,
in every partition with records.

A worker keeps an epoch's number (its marker's next offset) in the `offsets` of each store with the epoch, under
``<epochs topic>-0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from stateline_store import DamagedDataError, TopicPartition

LOADING = -1
"""In `offsets` instead of an epoch's number, for stores whose rows are of no whole epoch. On disk: never change."""

# Only a driver that looks a day later misses compacted markers.
EPOCHS_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}

ResultEnds = Mapping[str, Mapping[str, int]]
"""Topic → partition, as text → the last offset."""


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """A micro-batch in the result topics. `topic_ids` are those of the result topics. `result_ends` is None unless
    micro-batches are to be seen whole."""

    query_id: str
    batch_id: int
    end_offsets: tuple[str | None, ...]
    rows: int
    topic_ids: Mapping[str, str]
    result_ends: ResultEnds | None = None

    def encode(self) -> bytes:
        tree = {
            "queryId": self.query_id,
            "batchId": self.batch_id,
            "endOffsets": self.end_offsets,
            "rows": self.rows,
            "resultTopicIds": self.topic_ids,
        }
        return orjson.dumps(tree if self.result_ends is None else tree | {"resultEnds": self.result_ends})

    @classmethod
    def decode(cls, value: bytes, where: str = "") -> EpochMarker:
        """Raises `DamagedDataError` with `where` if this is no marker."""
        try:
            tree = orjson.loads(value)
            required = tree["queryId"], tree["batchId"], tuple(tree["endOffsets"]), tree["rows"], tree["resultTopicIds"]
            marker = cls(*required, tree.get("resultEnds"))
            marker.last_offsets()
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedDataError(
                f"{where or repr(value[:100])} is not a pipeline's marker: something else wrote to that topic. Delete "
                "it together with the pipeline's checkpoint and its result topics, and start again."
            ) from error
        return marker

    def last_offsets(self) -> dict[TopicPartition, int] | None:
        if self.result_ends is None:
            return None
        return {
            TopicPartition(topic, int(p)): int(end) for topic, of in self.result_ends.items() for p, end in of.items()
        }
