"""Records of a pipeline's input that cannot be read, under ``deserialization.exception.handler=dead-letter``.

A streaming frame writes to one place only, so it leaves such records out. Before the sink writes a micro-batch, Spark
looks through the same offsets once more for nothing but them; they are read from the log as they are and written to
the dead-letter topic in the transaction of the rows: each exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import orjson

from stateline.config import Config
from stateline.log import Log
from stateline.log.interface import Record
from stateline.spark.checkpoint import checkpoint_end_offsets
from stateline.spark.embedded_offsets import OffsetsJson
from stateline.spark.frames import TopicFrames
from stateline.topology import Pipeline, Topic
from stateline.worker.failures import dead_letter
from stateline.worker.records import OutputRecord
from stateline_store import InvalidArgumentError, LogUnavailableError, TopicPartition

_POLL_RECORDS = 1_000
_TIMEOUT_S = 30.0


class DeadLetters:
    """The dead letters of one pipeline, for the topic `topic`. Use it on the thread that has the session."""

    def __init__(self, log: Log, frames: TopicFrames, pipeline: Pipeline, topic: str) -> None:
        self.topic = topic
        self._log = log
        self._frames = frames
        self._read = [(read, False) for read in pipeline.reads] + [(read, True) for read in pipeline.tables]

    def of_batch(self, checkpoint: Path, batch_id: int, ends: Sequence[str | None]) -> list[OutputRecord]:
        """Those of a micro-batch, which ends there in each source; it starts where the one before has ended.

        Raises `LogUnavailableError` when one of them cannot be read.
        """
        starts = checkpoint_end_offsets(checkpoint, batch_id - 1) if batch_id > 0 else (None,) * len(ends)
        begin, end = _by_topic(starts), _by_topic(ends)
        found: dict[TopicPartition, dict[int, str]] = {}
        for topic, table in self._read:
            if topic.name in end and begin.get(topic.name) != end[topic.name]:
                self._look(topic, begin, end, found, table=table)
        return [letter for place, problems in found.items() for letter in self._letters(place, problems)]

    def _look(
        self,
        topic: Topic,
        begin: OffsetsJson,
        end: OffsetsJson,
        found: dict[TopicPartition, dict[int, str]],
        *,
        table: bool,
    ) -> None:
        start = {topic.name: begin[topic.name]} if topic.name in begin else {}
        rows = self._frames.bad_records(topic, start, {topic.name: end[topic.name]}, table=table)
        for partition, offset, problem in rows.collect():
            found.setdefault(TopicPartition(topic.name, partition), {})[offset] = problem

    def _letters(self, place: TopicPartition, problems: Mapping[int, str]) -> Iterator[OutputRecord]:
        for record in _records(self._log, place, problems):
            yield dead_letter(self.topic, record, InvalidArgumentError(problems[record.offset]))


def dead_letters_of(config: Config, log: Log, frames: TopicFrames, pipeline: Pipeline) -> DeadLetters | None:
    """None unless the configuration asks for them."""
    topic = config.dead_letter_topic
    if config.deserialization_exception_handler != "dead-letter" or topic is None:
        return None
    return DeadLetters(log, frames, pipeline, topic)


def _by_topic(offsets: Sequence[str | None]) -> OffsetsJson:
    """Topic → offsets by partition, from what the sources wrote."""
    found: OffsetsJson = {}
    for text in offsets:
        found |= orjson.loads(text) if text else {}
    return found


def _records(log: Log, place: TopicPartition, offsets: Mapping[int, str]) -> Iterator[Record]:
    """The partition's records at these offsets, in order."""
    last = max(offsets)
    with closing(log.consumer()) as consumer:
        consumer.assign({place: min(offsets)})
        heard = time.monotonic()
        while (consumer.next_offset(place) or 0) <= last:
            records = consumer.poll(_POLL_RECORDS, 0.1)
            yield from (record for record in records if record.offset in offsets)
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > _TIMEOUT_S:
                raise LogUnavailableError(
                    f"{place} could not be read up to offset {last}, for records that go to the dead-letter topic: "
                    "start the pipeline again when the log answers."
                )
