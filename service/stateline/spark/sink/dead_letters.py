"""Records of a pipeline's input that cannot be read, under ``deserialization.exception.handler=dead-letter``.

A streaming frame writes to one place only, so it leaves such records out. Before the sink writes a micro-batch, Spark
looks through the same offsets once more for nothing but them; they are read from the log as they are and written to
the dead-letter topic in the transaction of the rows: each exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from stateline.config.settings import Config
from stateline.log import Log
from stateline.log.committed_records import records_between
from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.processing.failures import dead_letter
from stateline.processing.records import OutputRecord
from stateline.spark.sink.checkpoint import ends_of_batch
from stateline.spark.sink.checkpoint_folder import CheckpointFolder
from stateline.spark.sources.embedded_offsets import OffsetsJson
from stateline.spark.sources.frames import TopicFrames
from stateline_store import InvalidArgumentError, TopicPartition

_WAY_OUT = "it has records for the dead-letter topic, so start the pipeline again when the log answers"


class DeadLetters:
    """The dead letters of one pipeline, for the topic `topic`. Use it on the thread that has the session."""

    def __init__(self, log: Log, frames: TopicFrames, pipeline: Pipeline, topic: str) -> None:
        self.topic = topic
        self._log = log
        self._frames = frames
        self._read = [(read, False) for read in pipeline.reads] + [(read, True) for read in pipeline.tables]

    def of_batch(self, checkpoint: CheckpointFolder, batch_id: int, ends: Sequence[str | None]) -> list[OutputRecord]:
        """Those of a micro-batch, which ends there in each source; it starts where the one before has ended.

        Raises `LogUnavailableError` when one of them cannot be read.
        """
        starts = ends_of_batch(checkpoint, batch_id - 1) if batch_id > 0 else (None,) * len(ends)
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
        bounds = {place: (min(problems), max(problems) + 1)}
        for record in records_between(self._log, bounds, _WAY_OUT):
            if record.offset in problems:
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
