"""Copies unreadable input records to the dead-letter topic (``deserialization.exception.handler=dead-letter``).

A streaming frame has one output, so it leaves such records out. Before the sink writes a micro-batch, Spark reads the
same offsets again, for these records only. Their bytes are read from the log and written in the transaction of the
rows, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from stateline.config.settings import Config
from stateline.log import Log
from stateline.log.committed_records import records_between
from stateline.model.pipeline import Pipeline
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
        """Return the dead letters of a micro-batch with these ends. It starts at the ends of the batch before. Raises
        `LogUnavailableError` if one cannot be read."""
        starts = ends_of_batch(checkpoint, batch_id - 1) if batch_id > 0 else (None,) * len(ends)
        begin, end = _by_topic(starts), _by_topic(ends)
        found: dict[TopicPartition, dict[int, str]] = {}
        for topic, table in self._read:
            name = topic.name
            if name not in end or begin.get(name) == end[name]:
                continue
            start = {name: begin[name]} if name in begin else {}
            rows = self._frames.bad_records(topic, start, {name: end[name]}, table=table)
            for partition, offset, problem in rows.collect():
                found.setdefault(TopicPartition(name, partition), {})[offset] = problem
        return [letter for place, problems in found.items() for letter in self._letters(place, problems)]

    def _letters(self, place: TopicPartition, problems: Mapping[int, str]) -> Iterator[OutputRecord]:
        bounds = {place: (min(problems), max(problems) + 1)}
        for record in records_between(self._log, bounds, _WAY_OUT):
            if record.offset in problems:
                yield dead_letter(self.topic, record, InvalidArgumentError(problems[record.offset]))


def dead_letters_of(config: Config, log: Log, frames: TopicFrames, pipeline: Pipeline) -> DeadLetters | None:
    """Return the pipeline's dead letters, or None unless the configuration asks for them."""
    topic = config.dead_letter_topic
    if config.deserialization_exception_handler != "dead-letter" or topic is None:
        return None
    return DeadLetters(log, frames, pipeline, topic)


def _by_topic(offsets: Sequence[str | None]) -> OffsetsJson:
    """Return topic → offsets by partition, from the sources' texts."""
    found: OffsetsJson = {}
    for text in offsets:
        found |= orjson.loads(text) if text else {}
    return found
