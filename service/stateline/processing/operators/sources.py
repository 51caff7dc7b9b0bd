"""Where records come in: as a stream, or as changes of a table that is kept of the topic."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.topic import Topic
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Column, Rows, plain


class StreamSource:
    """Each record is a row."""

    def __init__(self, topic: Topic, context: OperatorContext) -> None:
        del context
        self._topic = topic

    def before(self, records: Sequence[Record]) -> None:
        del records

    def read(self, records: Sequence[Record]) -> Rows:
        return Rows(
            Column(self._topic.key, [record.key for record in records]),
            Column(self._topic.value, [record.value for record in records]),
            [record.timestamp_ms for record in records],
            records,
        )


class TableSource:
    """The newest record of each key is a change, also when the value stayed as it was.

    A table that is ahead of the records, because the group's offsets were lost, has the newer value before and after.
    """

    def __init__(self, table: str, context: OperatorContext) -> None:
        self._store = context.stores[table]
        self._timestamped = self._store.timestamped
        self._old: dict[bytes, bytes | None] = {}

    def before(self, records: Sequence[Record]) -> None:
        keys = list(dict.fromkeys(record.key for record in records if record.key is not None))
        self._old = dict(zip(keys, self._store.get_rows(keys), strict=True))

    def read(self, records: Sequence[Record]) -> Changes:
        newest = {record.key: record for record in records if record.key is not None}
        new = self._store.get_rows(list(newest))
        old = [self._old[key] for key in newest]
        self._old = {}
        if self._timestamped:
            new, old = plain(new), plain(old)
        return Changes(list(newest), old, new, [r.timestamp_ms for r in newest.values()], list(newest.values()))
