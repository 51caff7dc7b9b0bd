"""Where rows go out: to one topic, or to the topic that a function chooses for each row, and to which partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from stateline.model.record_size import refuse_too_large
from stateline.model.topic import Topic
from stateline.processing.function_results import refuse_unrun, written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Rows
from stateline.processing.records import InputRecord, OutputRecord
from stateline.serde.binding import writes_as
from stateline.serde.plain import Serde, shown
from stateline.serde.windowed import partition_key
from stateline_store import InvalidArgumentError, TopologyError

Partitioner: TypeAlias = Callable[[str, Any, Any, int], int | Iterable[int] | None]
"""Takes the topic, the key, the value and the number of partitions. Returns the partition, or several. None is that of
the key. With an empty list, the row is dropped and counted (Kafka Streams' `StreamPartitioner`, KIP-837)."""

_Chosen: TypeAlias = str | tuple[str, str, str]
"""The name of a topic, or its name and those of its types."""


class _Target:
    """Makes records of rows for one topic. Rows of windows and sessions go to their inner key's partition, unless there
    is a partitioner. Bytes that serdes of the same names have written are copied. Others are serialized again."""

    def __init__(self, topic: Topic, partitioner: Partitioner | None, context: OperatorContext) -> None:
        self._topic, self._partitioner, self._context = topic, partitioner, context
        self._count: int | None = None
        self._serdes: tuple[Serde, Serde] | None = None
        self._same = False

    def maker(self, rows: Rows) -> Callable[[int], list[OutputRecord]]:
        """Return a function that makes the records of the row at a place. It raises what a serde or the partitioner
        raises. Raises what the log raises, if it is asked for the topic's partitions: no record is at fault then."""
        topic, partitioner, most, serdes = self._topic, self._partitioner, self._context.max_record_bytes, self._serdes
        if serdes is None or rows.keys.serde is not serdes[0] or rows.values.serde is not serdes[1]:
            self._serdes = rows.keys.serde, rows.values.serde
            self._same = writes_as(rows.keys.serde, topic.key) and writes_as(rows.values.serde, topic.value)
        if partitioner is not None and self._count is None:
            self._count = self._context.partitions_of(topic.name)
        same = self._same

        def records(place: int) -> list[OutputRecord]:
            if same:
                key, value = rows.keys.raw[place], rows.values.raw[place]
            else:
                key, value = written(topic.key, rows.keys.typed[place]), written(topic.value, rows.values.typed[place])
            refuse_too_large(key, value, most)
            at_ms, headers = rows.timestamps[place], rows.records[place].headers
            made = OutputRecord(topic.name, key, value, at_ms, headers, partition_key(topic.key, key))
            if partitioner is None:
                return [made]
            return [made._replace(partition=each) for each in self._partitions(partitioner, rows, place)]

        return records

    def _partitions(self, partitioner: Partitioner, rows: Rows, place: int) -> list[int | None]:
        name = self._topic.name
        if self._count is None:
            return [None]  # there is no such topic, which the producer will say
        given = refuse_unrun(partitioner(name, rows.keys.typed[place], rows.values.typed[place], self._count))
        if given is None:
            return [None]
        partitions = list(given) if isinstance(given, Iterable) else [given]
        if any(type(each) is not int or not 0 <= each < self._count for each in partitions):
            raise InvalidArgumentError(
                f"The partitioner gave {shown(given)} for {name!r}: give a whole number from 0 to {self._count - 1}, a "
                "list of such numbers, or None for the partition of the key."
            )
        return [*partitions]


def _write_each(name: str, rows: Rows, make: Callable[[int], list[OutputRecord]], context: OperatorContext) -> None:
    dropped = 0
    for _, made in context.each(name, rows.records, range(len(rows.records)), make):
        context.outputs += made
        dropped += not made
    context.failures.drop(dropped, "no_partition")


class TopicSink:
    """Writes each row with its timestamp and its record's headers to one topic."""

    def __init__(self, name: str, topic: Topic, partitioner: Partitioner | None, context: OperatorContext) -> None:
        self._name, self._context = name, context
        self._target = _Target(topic, partitioner, context)

    def process(self, rows: Rows) -> None:
        _write_each(self._name, rows, self._target.maker(rows), self._context)


class ChosenTopicSink:
    """Writes each row to the topic that `choose` names for its key, value and record (`InputRecord`, with the row's
    timestamp). `topic_of` returns the topic with its serdes, from what `choose` returns."""

    def __init__(
        self,
        name: str,
        choose: Callable[[Any, Any, InputRecord], object],
        topic_of: Callable[[str | Topic], Topic],
        partitioner: Partitioner | None,
        context: OperatorContext,
    ) -> None:
        self._name, self._choose, self._topic_of = name, choose, topic_of
        self._partitioner, self._context = partitioner, context
        self._targets: dict[_Chosen, _Target] = {}

    def process(self, rows: Rows) -> None:
        makers = {name: target.maker(rows) for name, target in self._targets.items()}

        def made(place: int) -> list[OutputRecord]:
            chosen = self._chosen(rows, place)
            name: _Chosen = chosen if isinstance(chosen, str) else (chosen.name, chosen.key.name, chosen.value.name)
            if name not in makers:
                target = self._targets[name] = _Target(self._topic_of(chosen), self._partitioner, self._context)
                makers[name] = target.maker(rows)
            return makers[name](place)

        _write_each(self._name, rows, made, self._context)

    def _chosen(self, rows: Rows, place: int) -> str | Topic:
        record, key, value = rows.records[place], rows.keys.typed[place], rows.values.typed[place]
        given = InputRecord(
            record.topic, record.partition, record.offset, rows.timestamps[place], key, value, record.headers
        )
        chosen = refuse_unrun(self._choose(key, value, given))
        if not isinstance(chosen, str | Topic):
            raise TopologyError(f"The function gave {shown(chosen)} as the topic of a row: give a topic, or its name.")
        return chosen
