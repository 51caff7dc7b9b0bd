"""A function with stores in the middle of a stream: Kafka Streams' `KStream.process` and `processValues`.

It is called for each row in the order of the partition, and sees its own writes for earlier rows. If it fails for a
row, its writes are undone and ``processing.exception.handler`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stateline.log.interface import Headers, Record
from stateline.log.timestamps import checked_timestamp
from stateline.model.record_size import refuse_too_large
from stateline.model.store_definition import StoreDefinition
from stateline.processing.function_results import key_and_value, several, written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import LazyColumn, Rows
from stateline.processing.records import InputRecord, check_headers
from stateline.processing.user_function import UserFunction
from stateline.serde.plain import Serde

_Row = tuple[bytes | None, bytes | None, int, Headers, Any, Any]  # as bytes, the timestamp, headers, and as objects


class ProcessRows:
    """Gives the rows that the function returns: (key, value), or a record with its timestamp and headers. With
    `values_only` it returns values. Parts that the function does not return stay as in the row."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        stores: Sequence[StoreDefinition],
        key: Serde,
        value: Serde,
        values_only: bool,
        context: OperatorContext,
    ) -> None:
        self._key, self._value, self._values_only = key, value, values_only
        self._most = context.max_record_bytes
        given = [(each, context.every_store[each.name]) for each in stores]
        self._function = UserFunction(name, function, given, (), context.failures, self._most, context.task)

    def process(self, rows: Rows) -> Rows:
        made: list[_Row] = []
        records: list[Record] = []
        typed = zip(rows.keys.typed, rows.values.typed, rows.keys.raw, rows.timestamps, rows.records, strict=True)
        for key, value, raw_key, at_ms, record in typed:
            given = InputRecord(record.topic, record.partition, record.offset, at_ms, key, value, record.headers)

            def taken(result: Any, given: InputRecord = given, raw_key: bytes | None = raw_key) -> list[_Row]:
                return self._taken(result, given, raw_key)

            called = self._function.call(given, at_ms, record, taken)
            if called is not None:
                made += called[0]
                records += [_with_headers(record, row[3]) for row in called[0]]
        return Rows(
            LazyColumn(self._key, [row[0] for row in made], [row[4] for row in made]),
            LazyColumn(self._value, [row[1] for row in made], [row[5] for row in made]),
            [row[2] for row in made],
            records,
        )

    def _taken(self, result: Iterable[Any] | None, given: InputRecord, raw_key: bytes | None) -> list[_Row]:
        """Return all rows of a result. A generator runs to its end here."""
        if result is None:
            return []
        several(result, self._function.function)
        if self._values_only:
            values = [(written(self._value, value), value) for value in result]
            return [(raw_key, raw, given.timestamp_ms, given.headers, given.key, value) for raw, value in values]
        rows = [result] if isinstance(result, tuple) else result  # one (key, value), or one record
        return [self._row(one, given) for one in rows]

    def _row(self, made: Any, given: InputRecord) -> _Row:
        timestamp_ms, headers = given.timestamp_ms, given.headers
        if isinstance(made, InputRecord):
            key, value, timestamp_ms, headers = made.key, made.value, checked_timestamp(made.timestamp_ms), made.headers
            check_headers(headers)
        else:
            key, value = key_and_value(made, self._function.function)
        raw_key, raw = written(self._key, key), written(self._value, value)
        refuse_too_large(raw_key, raw, self._most)
        return raw_key, raw, timestamp_ms, headers, key, value


def _with_headers(record: Record, headers: Headers) -> Record:
    return record if record.headers is headers else record._replace(headers=headers)
