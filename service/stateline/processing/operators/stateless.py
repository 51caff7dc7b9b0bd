"""Operators without state. A function gets each row's key and value as their serdes read them. If it fails for a row,
``processing.exception.handler`` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stateline.processing.function_results import key_and_value, refuse_unrun, several, written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, LazyColumn, Rows
from stateline.serde.plain import Serde

_KeyValue = tuple[Any, Any]


class Filter:
    """Gives the rows for which the function answers `keep`."""

    def __init__(self, name: str, function: Callable[[Any, Any], object], keep: bool, context: OperatorContext) -> None:
        self._name, self._function, self._keep, self._context = name, function, keep, context

    def process(self, rows: Rows) -> Rows:
        def answered(pair: _KeyValue) -> bool:
            return bool(refuse_unrun(self._function(*pair)))

        answers = self._context.each(self._name, rows.records, rows.pairs, answered)
        return rows.pick([place for place, answer in answers if answer is self._keep])


class Peek:
    """Gives all rows unchanged, and calls the function for each."""

    def __init__(self, name: str, function: Callable[[Any, Any], object], context: OperatorContext) -> None:
        self._name, self._function, self._context = name, function, context

    def process(self, rows: Rows) -> Rows:
        def shown(pair: _KeyValue) -> None:
            refuse_unrun(self._function(*pair))

        seen = self._context.each(self._name, rows.records, rows.pairs, shown)
        return rows.pick([place for place, _ in seen])


class Merge:
    """Gives all rows of several streams unchanged."""

    def __init__(self, context: OperatorContext) -> None:
        del context

    def process(self, rows: Rows) -> Rows:
        return rows


class WithAggregator:
    """Gives all rows, each value as a pair of its stream's aggregator and the value. `clock` is the stream's number,
    from 1 on: as in Kafka Streams, each has a stream time of its own."""

    def __init__(self, aggregator: Callable[[Any, Any, Any], Any], clock: int, context: OperatorContext) -> None:
        del context
        self._aggregator, self._clock = aggregator, clock

    def process(self, rows: Rows) -> Rows:
        pairs = [(self._aggregator, value) for value in rows.values.typed]
        return rows._replace(values=LazyColumn(rows.values.serde, rows.values.raw, pairs), clock=self._clock)


class MapValues:
    """Gives each row with the function's value."""

    def __init__(self, name: str, function: Callable[[Any, Any], Any], value: Serde, context: OperatorContext) -> None:
        self._name, self._function, self._serde, self._context = name, function, value, context

    def process(self, rows: Rows) -> Rows:
        def mapped(pair: _KeyValue) -> tuple[bytes | None, Any]:
            value = self._function(*pair)
            return written(self._serde, value), value

        made = list(self._context.each(self._name, rows.records, rows.pairs, mapped))
        kept = rows.pick([place for place, _ in made])
        values = LazyColumn(self._serde, [raw for _, (raw, _) in made], [value for _, (_, value) in made])
        return kept._replace(values=values)


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Gives the (key, value) pairs of the function for each row, with the row's timestamp."""

    name: str
    function: Callable[[Any, Any], Iterable[_KeyValue]]
    key: Serde
    value: Serde
    context: OperatorContext

    def process(self, rows: Rows) -> Rows:
        def mapped(pair: _KeyValue) -> list[tuple[bytes | None, bytes | None, _KeyValue]]:
            given = several(self.function(*pair), self.function)
            made = [key_and_value(one, self.function) for one in given]
            return [(written(self.key, key), written(self.value, value), (key, value)) for key, value in made]

        found = [
            (place, one)
            for place, several in self.context.each(self.name, rows.records, rows.pairs, mapped)
            for one in several
        ]
        return Rows(
            LazyColumn(self.key, [key for _, (key, _, _) in found], [pair[0] for _, (_, _, pair) in found]),
            LazyColumn(self.value, [value for _, (_, value, _) in found], [pair[1] for _, (_, _, pair) in found]),
            [rows.timestamps[place] for place, _ in found],
            [rows.records[place] for place, _ in found],
        )


class ToStream:
    """Gives a table's changes as rows: the new values, None for deleted ones."""

    def __init__(self, key: Serde, value: Serde, context: OperatorContext) -> None:
        del context
        self._key, self._value = key, value

    def process(self, changes: Changes) -> Rows:
        keys, values = LazyColumn(self._key, list(changes.keys)), LazyColumn(self._value, list(changes.new))
        return Rows(keys, values, changes.timestamps, changes.records)
