"""Joins of tables by foreign key: a row of the left table names a row of the right one.

By Kafka Streams' rules (`SubscriptionSendProcessorSupplier`, `SubscriptionReceiveProcessorSupplier`,
`SubscriptionJoinProcessorSupplier`, `ForeignTableJoinProcessorSupplier`, `ResponseJoinProcessorSupplier`):

1. `Subscribe` sends each change of the left table to the partition of its foreign key.
2. `Register` keeps the subscription there and answers with the right row. `AnswerSubscribers` answers again at each
   change of the right row.
3. `Resolve` joins the answer with the left row, if that still has the value for which it asked.

Here, `Resolve` does one thing more. `SUBSCRIBE_IF_THERE` is silent without a right row: it relies on an earlier answer
that there is none. If the left row changed before that answer came, Kafka Streams keeps the old result for ever. So
`Resolve` takes the result away, or asks again with `SUBSCRIBE`.

Kafka Streams' records have the timestamps and headers of the record that caused them. So have these, except a row that
asks again: its headers are unknown unless the left table keeps them, and then it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from stateline.log.interface import Record
from stateline.model.record_size import refuse_too_large
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.function_results import written
from stateline.processing.operators.grouping import with_key_and_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline.processing.operators.stored_rows import headers_of, rows_of
from stateline.processing.operators.table_steps import changed
from stateline.processing.records import OutputRecord
from stateline.serde.binding import writes_as
from stateline.serde.murmur3 import hash128
from stateline.serde.plain import Serde
from stateline.serde.subscription import (
    DROP,
    DROP_AND_ANSWER,
    SUBSCRIBE,
    SUBSCRIBE_IF_THERE,
    Subscription,
    read_answer,
    write_subscription,
)
from stateline.serde.windowed import partition_key
from stateline_store.rows.timestamped_rows import TIMESTAMP


class ForeignKeyJoin(NamedTuple):
    """Shared by the operators of a join. `on` returns the foreign key from a left key and value. `joiner` gets the left
    key's bytes, then the left and the right value, None for a missing right one if `is_left`. The serdes of the keys
    and of the right values in the topics are `registration.key`, `response.key` and `answer`; `primary` is of left keys
    in registrations. `value` is the result's."""

    name: str
    is_left: bool
    on: Callable[[Any, Any], Any]
    joiner: Callable[[bytes | None, Any, Any], Any]
    left: StoreDefinition
    right: StoreDefinition
    subscriptions: StoreDefinition
    registration: Topic
    response: Topic
    primary: Serde
    answer: Serde
    value: Serde


def rewriting(read: Serde, write: Serde) -> Callable[[bytes], bytes]:
    """Return a function that reads bytes by one serde and writes them by the other."""
    return bytes if writes_as(read, write) else lambda data: write.serialize(read.deserialize(data))


class _Registrations:
    """Writes registrations of left rows."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._join, self._most = join, context.max_record_bytes
        self._primary = rewriting(join.left.key, join.primary)

    def foreign_key(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return the foreign key of a left row, None if it has none."""
        if value is None:
            return None
        join = self._join
        return written(
            join.registration.key, join.on(join.left.key.deserialize(key), join.left.value.deserialize(value))
        )

    def written(
        self, foreign: bytes | None, instruction: int, key: bytes, value: bytes | None, record: Record, at_ms: int
    ) -> OutputRecord:
        hash_ = None if value is None else hash128(value)
        data = write_subscription(Subscription(instruction, hash_, self._primary(key), record.partition))
        refuse_too_large(foreign, data, self._most)
        topic = self._join.registration
        return OutputRecord(topic.name, foreign, data, at_ms, record.headers, partition_key(topic.key, foreign))


class Subscribe:
    """Takes changes of the left table, and writes registrations."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._join, self._context, self._registrations = join, context, _Registrations(join, context)

    def process(self, changes: Changes) -> None:
        make, context = self._registrations, self._context
        pairs = zip(changes.keys, changes.new, strict=True)
        found = context.each(self._join.name, changes.records, pairs, lambda pair: make.foreign_key(*pair))
        new_keys = dict(found)  # not of rows that `on` refuses: they have no foreign key

        def registrations(place: int) -> list[OutputRecord]:
            key, old, new = changes.keys[place], changes.old[place], changes.new[place]
            old_key, new_key = context.of_before(lambda: make.foreign_key(key, old)), new_keys.get(place)
            if new is not None and place in new_keys and new_key is None and not self._join.is_left:
                context.failures.drop(1, "no_key")
            record, at_ms = changes.records[place], changes.timestamps[place]
            told = self._instructions(old, new, old_key, new_key)
            return [make.written(foreign, instruction, key, new, record, at_ms) for foreign, instruction in told]

        for _, made in context.each(self._join.name, changes.records, range(len(changes.records)), registrations):
            context.outputs += made

    def _instructions(
        self, old: bytes | None, new: bytes | None, old_key: bytes | None, new_key: bytes | None
    ) -> Iterator[tuple[bytes | None, int]]:
        """Yield who is told what, a foreign key or None, when a left value changes from `old` to `new`."""
        has_left = old_key is not None and old_key != new_key
        if self._join.is_left:
            if has_left:
                yield old_key, DROP
            if old is not None or new is not None:
                yield new_key, SUBSCRIBE
        elif new_key is None:
            if has_left:
                yield old_key, DROP_AND_ANSWER
        elif has_left:
            yield old_key, DROP
            yield new_key, SUBSCRIBE
        else:
            yield new_key, SUBSCRIBE_IF_THERE


class Resolve:
    """Takes answers, gives changes of the result. An answer is dropped and counted if the left row has another value
    than the one that asked."""

    def __init__(self, join: ForeignKeyJoin, context: OperatorContext) -> None:
        self._join, self._context, self._registrations = join, context, _Registrations(join, context)
        self._left = context.stores[join.left.name]
        self._key = rewriting(join.response.key, join.left.key)

    def process(self, rows: Rows) -> Changes:
        rows = with_key_and_value(rows, self._context.failures)
        keys = [self._key(key) for key in rows.known_keys]
        distinct = list(dict.fromkeys(keys))
        stored = dict(zip(distinct, rows_of(self._left, distinct), strict=True))
        left = dict(zip(distinct, plain(stored.values()), strict=True))
        hashes = {key: None if value is None else hash128(value) for key, value in left.items()}
        answers = [read_answer(data or b"") for data in rows.values.raw]
        newest, unknown, stale = dict[bytes, int](), dict[bytes, int](), 0
        for place, (key, answer) in enumerate(zip(keys, answers, strict=True)):
            if answer.hash == hashes[key]:
                newest[key] = place
                continue
            stale += 1
            if answer.value is None and not self._join.is_left:
                unknown[key] = place
        self._context.failures.drop(stale, "stale")
        newest |= self._without_partner({k: place for k, place in unknown.items() if k not in newest}, stored, rows)

        def result(place: int) -> bytes | None:
            key, right = keys[place], answers[place].value
            data = self._joined(key, left[key], right)
            refuse_too_large(key, data, self._context.max_record_bytes)
            return data

        places = list(newest.values())
        changes = Changes(
            list(newest), [None] * len(places), [None] * len(places), [rows.timestamps[place] for place in places],
            [rows.records[place] for place in places],
        )  # fmt: skip
        return changed(changes, self._context.each(self._join.name, changes.records, places, result))

    def _without_partner(
        self, unknown: Mapping[bytes, int], stored: Mapping[bytes, bytes | None], rows: Rows
    ) -> dict[bytes, int]:
        """Return those of these left rows that have no foreign key. Ask again for the others, with their timestamps and
        their headers, if the left table keeps them: whether there is a right row is unknown."""
        make, before = self._registrations, self._context.of_before
        left = {key: row[TIMESTAMP.size :] if (row := stored[key]) is not None else None for key in unknown}
        foreign = {key: before(lambda: make.foreign_key(key, left[key])) for key in unknown}  # noqa: B023 - called at once
        headers = dict(zip(unknown, headers_of(self._left, list(unknown)), strict=True))
        for key, its in foreign.items():
            if its is not None:
                record = rows.records[unknown[key]]._replace(headers=headers[key])  # not those of the stale answer
                at_ms = TIMESTAMP.unpack_from(stored[key] or b"")[0]
                self._context.outputs.append(make.written(its, SUBSCRIBE, key, left[key], record, at_ms))
        return {key: unknown[key] for key, its in foreign.items() if its is None}

    def _joined(self, key: bytes, left: bytes | None, right: bytes | None) -> bytes | None:
        if right is None and (left is None or not self._join.is_left):
            return None
        value = None if left is None else self._join.left.value.deserialize(left)
        other = None if right is None else self._join.answer.deserialize(right)
        return written(self._join.value, self._join.joiner(key, value, other))
