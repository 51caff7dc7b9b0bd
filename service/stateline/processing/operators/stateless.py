"""Operators without state: a user's function for each row. A function gets the row's key and value, as their serdes
read them; a row for which it fails is handled by ``processing.exception.handler``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stateline.processing.given_rows import key_and_value, several
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, LazyColumn, Rows
from stateline.processing.unrun import refuse_unrun, written
from stateline.serde.plain import Serde

_KeyValue = tuple[Any, Any]


class Filter:
    """Rows for which the function answers `keep`."""

    def __init__(self, name: str, function: Callable[[Any, Any], object], keep: bool, context: OperatorContext) -> None:
        self._name, self._function, self._keep, self._context = name, function, keep, context

    def process(self, rows: Rows) -> Rows:
        def answered(pair: _KeyValue) -> bool:
            return bool(refuse_unrun(self._function(*pair)))

        answers = self._context.each(self._name, rows.records, rows.pairs, answered)
        return rows.pick([place for place, answer in answers if answer is self._keep])


class Peek:
    """All rows, as they are; the function is called for each."""

    def __init__(self, name: str, function: Callable[[Any, Any], object], context: OperatorContext) -> None:
        self._name, self._function, self._context = name, function, context

    def process(self, rows: Rows) -> Rows:
        def shown(pair: _KeyValue) -> None:
            refuse_unrun(self._function(*pair))

        seen = self._context.each(self._name, rows.records, rows.pairs, shown)
        return rows.pick([place for place, _ in seen])


class Merge:
    """All rows, as they are, of several streams."""

    def __init__(self, context: OperatorContext) -> None:
        del context

    def process(self, rows: Rows) -> Rows:
        return rows


class MapValues:
    """Each row with the value that the function makes of it."""

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


class FlatMap:
    """For each row those (key, value) that the function gives, with its timestamp."""

    def __init__(
        self,
        name: str,
        function: Callable[[Any, Any], Iterable[_KeyValue]],
        key: Serde,
        value: Serde,
        context: OperatorContext,
    ) -> None:
        self._name, self._function, self._context = name, function, context
        self._key, self._value = key, value

    def process(self, rows: Rows) -> Rows:
        def mapped(pair: _KeyValue) -> list[tuple[bytes | None, bytes | None, _KeyValue]]:
            given = several(self._function(*pair), self._function)
            made = [key_and_value(one, self._function) for one in given]
            return [(written(self._key, key), written(self._value, value), (key, value)) for key, value in made]

        found = [
            (place, one)
            for place, several in self._context.each(self._name, rows.records, rows.pairs, mapped)
            for one in several
        ]
        return Rows(
            LazyColumn(self._key, [key for _, (key, _, _) in found], [pair[0] for _, (_, _, pair) in found]),
            LazyColumn(self._value, [value for _, (_, value, _) in found], [pair[1] for _, (_, _, pair) in found]),
            [rows.timestamps[place] for place, _ in found],
            [rows.records[place] for place, _ in found],
        )


class ToStream:
    """The changes of a table as rows: the new values, None for what was deleted."""

    def __init__(self, key: Serde, value: Serde, context: OperatorContext) -> None:
        del context
        self._key, self._value = key, value

    def process(self, changes: Changes) -> Rows:
        keys, values = LazyColumn(self._key, list(changes.keys)), LazyColumn(self._value, list(changes.new))
        return Rows(keys, values, changes.timestamps, changes.records)
