"""A function with stores that makes the values of a table: Kafka Streams' `KTable.transformValues`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateline.model.record_size import refuse_too_large
from stateline.model.store_definition import StoreDefinition
from stateline.processing.function_results import written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes
from stateline.processing.operators.table_steps import changed
from stateline.processing.records import InputRecord
from stateline.processing.user_function import UserFunction
from stateline.serde.plain import Serde


class TransformTable:
    """Gives changes with the function's result for each, deletes included. None deletes. `table` has the serdes of the
    incoming changes. If the function fails, its writes are undone and the change is left out."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        stores: Sequence[StoreDefinition],
        table: StoreDefinition,
        value: Serde,
        context: OperatorContext,
    ) -> None:
        self._table, self._value, self._most = table, value, context.max_record_bytes
        given = [(each, context.every_store[each.name]) for each in stores]
        self._function = UserFunction(name, function, given, (), context.failures, self._most, context.task)

    def process(self, changes: Changes) -> Changes:
        made: list[tuple[int, bytes | None]] = []
        rows = zip(changes.keys, changes.new, changes.timestamps, changes.records, strict=True)
        for place, (key, data, at_ms, record) in enumerate(rows):
            old = None if data is None else self._table.value.deserialize(data)
            typed = self._table.key.deserialize(key)
            given = InputRecord(record.topic, record.partition, record.offset, at_ms, typed, old, record.headers)

            def taken(result: Any, key: bytes = key) -> bytes | None:
                new = written(self._value, result)
                refuse_too_large(key, new, self._most)
                return new

            called = self._function.call(given, at_ms, record, taken)
            if called is not None:
                made.append((place, called[0]))
        return changed(changes, made)
