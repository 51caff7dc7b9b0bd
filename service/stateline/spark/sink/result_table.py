"""The written result of a pipeline in complete mode. Each micro-batch has the whole result, but only changes are
written, and missing rows as tombstones.

The topics are read to their ends at the start. From then on the driver keeps a 64-bit digest of each key: about 150 MB
per million keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from stateline.log import Record
from stateline.model.pipeline import Pipeline
from stateline.spark.sink.result_records import RecordParts, ResultRecord, home, topic_names, two_rows_of

# Topic → key → digest: Python's hash of bytes, 64 bits. It differs between processes, so it is never stored.
_Digests = dict[str, dict[bytes, int]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The records that turn the previous result into a new one, and the new digests."""

    records: list[RecordParts]
    digests: _Digests

    @property
    def tombstones(self) -> int:
        """Return the number of tombstones among the records."""
        return sum(parts[2] is None for parts in self.records)


class ResultTable:
    """The newest result of one pipeline. One thread uses it."""

    def __init__(self, pipeline: Pipeline, partitions: Mapping[str, int], written: Iterator[Record]) -> None:
        """`written` has all records of the pipeline's topics, each partition's in order."""
        self._pipeline = pipeline
        self._partitions = partitions
        self._digests: _Digests = {name: {} for name in topic_names(pipeline)}
        for record in written:
            if record.key is None:
                continue
            if record.value is None:
                self._digests[record.topic].pop(record.key, None)
            else:
                self._digests[record.topic][record.key] = self._digest(record.value, record.timestamp_ms)

    def difference(self, result: Collection[RecordParts], batch_time_ms: int) -> Difference:
        """Return what must be written so that the topics hold this result. Changes nothing: see `moved`. Raises
        `RecordError` for a key that two rows have."""
        digests: _Digests = {name: {} for name in self._digests}
        changed: list[RecordParts] = []
        for record in result:
            topic, key, value, at, _ = record
            if value is None:
                continue  # the same as an absent row
            # The time of the micro-batch means no timestamp, and does not change a row.
            digest = self._digest(value, None if at == batch_time_ms else at)
            if digests[topic].setdefault(key, digest) is not digest:
                raise two_rows_of(self._pipeline, key, topic, [value], "")
            if self._digests[topic].get(key) != digest:
                changed.append(record)
        return Difference([*changed, *self._gone(digests, batch_time_ms)], digests)

    def moved(self, difference: Difference) -> None:
        """Note that the difference is written."""
        self._digests = difference.digests

    def _gone(self, digests: _Digests, now_ms: int) -> Iterator[ResultRecord]:
        for topic, before in self._digests.items():
            for key in before.keys() - digests[topic].keys():
                yield ResultRecord(topic, key, None, now_ms, home(key, topic, self._pipeline, self._partitions))

    def _digest(self, value: bytes, timestamp_ms: int | None) -> int:
        return hash((value, timestamp_ms)) if self._pipeline.timestamp else hash(value)
