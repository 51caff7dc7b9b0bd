"""Where records come in, as a stream or as changes of a topic's table."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.topic import Topic
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, LazyColumn, Rows, plain
from stateline.processing.operators.stored_rows import bare_row, rows_of
from stateline_store import ExpiringKeyValueStore


class StreamSource:
    """Each record is a row."""

    def __init__(self, topic: Topic, context: OperatorContext) -> None:
        del context
        self._topic = topic

    def before(self, records: Sequence[Record]) -> None:
        del records

    def read(self, records: Sequence[Record]) -> Rows:
        return Rows(
            LazyColumn(self._topic.key, [record.key for record in records]),
            LazyColumn(self._topic.value, [record.value for record in records]),
            [record.timestamp_ms for record in records],
            records,
        )


class TableSource:
    """The newest record of each key is a change, also with an unchanged value. So is each key that has expired. If the
    group's offsets were lost, a table is ahead of the records and has the newer value before and after."""

    def __init__(self, table: str, context: OperatorContext) -> None:
        self._store = context.stores[table]
        self._timestamped = self._store.timestamped
        self._old: dict[bytes, bytes | None] = {}
        self._expiring = self._store if isinstance(self._store, ExpiringKeyValueStore) else None
        if self._expiring is not None:
            self._expiring.watch_expired()

    def before(self, records: Sequence[Record]) -> None:
        keys = list(dict.fromkeys(record.key for record in records if record.key is not None))
        self._old = dict(zip(keys, rows_of(self._store, keys), strict=True))

    def read(self, records: Sequence[Record]) -> Changes:
        newest = {record.key: record for record in records if record.key is not None}
        new = rows_of(self._store, list(newest))
        old = [self._old[key] for key in newest]
        self._old = {}
        if self._timestamped:
            new, old = plain(new), plain(old)
        changes = Changes(list(newest), old, new, [r.timestamp_ms for r in newest.values()], list(newest.values()))
        return changes if self._expiring is None or not records else _with_expired(changes, self._expiring, records[-1])


def _with_expired(changes: Changes, store: ExpiringKeyValueStore, record: Record) -> Changes:
    """Add keys that the table let expire, as deletions at stream time. `record` is the last one that it took."""
    expired, changed, at_ms = store.take_expired(), set(changes.keys), store.stream_time_ms
    gone = [key for key in expired if key not in changed]
    each = zip(changes.keys, changes.new, changes.timestamps, strict=True)
    bare = record._replace(headers=())  # another key's
    timestamps = [at_ms if new is None and key in expired else own_ms for key, new, own_ms in each]
    return Changes(
        [*changes.keys, *gone],
        [*changes.old, *plain(bare_row(expired[key]) if store.headers else expired[key] for key in gone)],
        [*changes.new, *[None] * len(gone)],
        [*timestamps, *[at_ms] * len(gone)],
        [*changes.records, *[bare] * len(gone)],
    )
