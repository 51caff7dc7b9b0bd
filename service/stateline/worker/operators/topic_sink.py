"""Rows that leave to a topic: part of the task's next commit."""

from __future__ import annotations

from stateline.record_size import refuse_too_large
from stateline.topology import Topic
from stateline.windowed_serde import partition_key
from stateline.worker.operators.interface import OperatorContext
from stateline.worker.operators.rows import Rows
from stateline.worker.operators.stateless import written
from stateline.worker.records import OutputRecord


class TopicSink:
    """Writes each row to a topic, with the row's timestamp, and gives nothing on. Rows of windows and sessions go where
    their inner key belongs.

    Rows have been written by serdes of the same names, so their bytes are the topic's; others are written anew.
    """

    def __init__(self, name: str, topic: Topic, context: OperatorContext) -> None:
        self._name, self._topic, self._context = name, topic, context

    def process(self, rows: Rows) -> None:
        topic = self._topic
        same = (rows.keys.serde.name, rows.values.serde.name) == (topic.key.name, topic.value.name)
        if same:
            pairs = zip(rows.keys.raw, rows.values.raw, strict=True)
        else:
            pairs = zip(rows.keys.typed, rows.values.typed, strict=True)

        def checked(pair: tuple[object, object]) -> tuple[bytes | None, bytes | None]:
            key, value = pair if same else (written(topic.key, pair[0]), written(topic.value, pair[1]))
            refuse_too_large(key, value, self._context.max_record_bytes)  # type: ignore[arg-type]  # bytes by now
            return key, value  # type: ignore[return-value]

        for place, (key, value) in self._context.each(self._name, rows.records, pairs, checked):
            where = partition_key(topic.key, key)
            self._context.outputs.append(OutputRecord(topic.name, key, value, rows.timestamps[place], (), where))
