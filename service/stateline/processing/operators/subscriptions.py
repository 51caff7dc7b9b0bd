"""The right side of joins by foreign key: subscriptions of left rows, and answers to them (`foreign_keys.py`)."""

from __future__ import annotations

from typing import Any

from stateline.model.record_size import refuse_too_large
from stateline.processing.changelog import origin
from stateline.processing.operators.foreign_keys import ForeignKeyJoin, rewriting
from stateline.processing.operators.grouping import with_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows
from stateline.processing.operators.stored_rows import bare_value, keep_rows, rows_of
from stateline.processing.records import OutputRecord
from stateline.serde.subscription import (
    DROP,
    DROP_AND_ANSWER,
    SUBSCRIBE,
    SUBSCRIBE_IF_THERE,
    Subscription,
    read_subscription,
    subscribers_of,
    write_answer,
)
from stateline.serde.windowed import partition_key
from stateline_store import KeyValueStore, TransactionalStore
from stateline_store.rows.timestamped_rows import TIMESTAMP


class _Answers:
    """Writes answers to subscriptions, each to the partition that it names."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._topic, self._most = join.response, context.max_record_bytes
        self._key, self._value = rewriting(join.primary, join.response.key), rewriting(join.right.value, join.answer)

    def written(self, to: Subscription, right: bytes | None, at_ms: int, headers: Any) -> OutputRecord:
        key = self._key(to.primary_key)
        value = write_answer(to.hash, None if right is None else self._value(right))
        refuse_too_large(key, value, self._most)
        where = partition_key(self._topic.key, key)
        return OutputRecord(self._topic.name, key, value, at_ms, headers, where, to.partition)


class Register:
    """Takes registrations, keeps the subscriptions and answers them. A registration without a foreign key is answered,
    and not kept."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._name, self._context, self._answers = join.name, context, _Answers(join, context)
        self._kept, self._right = context.stores[join.subscriptions.name], context.stores[join.right.name]
        self._foreign = rewriting(join.registration.key, join.right.key)

    def process(self, rows: Rows) -> None:
        rows = with_value(rows, self._context.failures)
        keys = [None if key is None else self._foreign(key) for key in rows.keys.raw]
        wanted = list(dict.fromkeys(key for key in keys if key is not None))
        found: dict[bytes | None, bytes | None] = dict(zip(wanted, rows_of(self._right, wanted), strict=True))

        def answered(place: int) -> tuple[bytes | None, bytes | None, OutputRecord | None]:
            foreign, data = rows.keys.raw[place], rows.values.raw[place] or b""
            given = read_subscription(data)
            entry = None if foreign is None else subscribers_of(foreign) + given.primary_key
            kept = None if given.instruction < SUBSCRIBE else data
            if entry is not None:
                self._context.refuse_too_large(entry, kept, self._kept)
            return entry, kept, self._answer(given, found.get(keys[place]), rows, place)

        kept: dict[bytes, tuple[int, bytes | None]] = {}
        places = range(len(rows.records))
        for place, (entry, data, answer) in self._context.each(self._name, rows.records, places, answered):
            if entry is not None:
                kept[entry] = place, data
            if answer is not None:
                self._context.outputs.append(answer)
        self._keep(kept, rows)

    def _answer(self, given: Subscription, right: bytes | None, rows: Rows, place: int) -> OutputRecord | None:
        if given.instruction == DROP or (given.instruction == SUBSCRIBE_IF_THERE and right is None):
            return None
        at_ms, value = rows.timestamps[place], None
        if right is not None:
            at_ms = max(at_ms, TIMESTAMP.unpack_from(right)[0])
            value = None if given.instruction == DROP_AND_ANSWER else right[TIMESTAMP.size :]
        return self._answers.written(given, value, at_ms, rows.records[place].headers)

    def _keep(self, kept: dict[bytes, tuple[int, bytes | None]], rows: Rows) -> None:
        """Kafka Streams' changelog has the registrations' headers, in each format of the store."""
        stamps = [rows.timestamps[place] for place, _ in kept.values()]
        records = [rows.records[place] for place, _ in kept.values()]
        new = [
            None if data is None else TIMESTAMP.pack(at_ms) + data
            for at_ms, (_, data) in zip(stamps, kept.values(), strict=True)
        ]
        keep_rows(self._kept, kept, new, stamps, records)
        if not self._kept.headers:
            each = zip(kept, stamps, records, strict=True)
            self._kept.keep_origins({self._kept.changelog_key(k): origin(at, r.headers) for k, at, r in each})


class AnswerSubscribers:
    """Takes changes of the right table, and answers all subscriptions to these rows."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._name, self._context, self._answers = join.name, context, _Answers(join, context)
        self._kept = _key_value(context.stores[join.subscriptions.name])
        self._foreign = rewriting(join.right.key, join.registration.key)

    def process(self, changes: Changes) -> None:
        def answers(place: int) -> list[OutputRecord]:
            prefix = subscribers_of(self._foreign(changes.keys[place]))
            at_ms, headers = changes.timestamps[place], changes.records[place].headers
            with self._kept.prefix_scan(prefix) as entries:
                subscriptions = [read_subscription(bare_value(self._kept, data)) for _, data in entries]
            return [self._answers.written(each, changes.new[place], at_ms, headers) for each in subscriptions]

        for _, made in self._context.each(self._name, changes.records, range(len(changes.records)), answers):
            self._context.outputs += made


def _key_value(store: TransactionalStore) -> KeyValueStore:
    if not isinstance(store, KeyValueStore):
        raise AssertionError(f"Store {store.name!r} keeps no values by key.")
    return store
