"""Writes rows to a topic, as part of the task's next commit."""

from __future__ import annotations

from stateline.model.record_size import refuse_too_large
from stateline.model.topic import Topic
from stateline.processing.function_results import written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Rows
from stateline.processing.records import OutputRecord
from stateline.serde.binding import writes_as
from stateline.serde.windowed import partition_key


class TopicSink:
    """Writes each row with its timestamp. Rows of windows and sessions go to their inner key's partition. Bytes that
    serdes of the same names have written are copied. Others are serialized again."""

    def __init__(self, name: str, topic: Topic, context: OperatorContext) -> None:
        self._name, self._topic, self._context = name, topic, context

    def process(self, rows: Rows) -> None:
        topic = self._topic
        same = writes_as(rows.keys.serde, topic.key) and writes_as(rows.values.serde, topic.value)

        def checked(place: int) -> tuple[bytes | None, bytes | None]:
            if same:
                key, value = rows.keys.raw[place], rows.values.raw[place]
            else:
                key = written(topic.key, rows.keys.typed[place])
                value = written(topic.value, rows.values.typed[place])
            refuse_too_large(key, value, self._context.max_record_bytes)
            return key, value

        places = range(len(rows.records))
        for place, (key, value) in self._context.each(self._name, rows.records, places, checked):
            where = partition_key(topic.key, key)
            self._context.outputs.append(OutputRecord(topic.name, key, value, rows.timestamps[place], (), where))
