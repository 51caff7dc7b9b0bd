"""Joins of two streams, by Kafka Streams' rules (`KStreamKStreamJoin`, KIP-633).

Each side keeps its rows in a window store that retains duplicates: ``key ‖ timestamp:i64 ‖ number:i32`` → the value. A
row meets the other side's rows of its key and window, then it is kept. The result has the larger timestamp of both, and
the headers of the row that came second. A left or outer join keeps rows without a partner in a third store
(`UnmatchedRows`) until no partner can come within the grace.

Different from Kafka Streams:

- A row without a partner leaves with the first row that moves stream time far enough. Kafka Streams looks at most once
  a second of the machine's clock.
- Stream time is committed with the left store, so a restart does not forget it.
- A row without a value, or too late for its store, takes a number, but has no record in the changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stateline.log.interface import Record
from stateline.model.join_windows import JoinWindows
from stateline.model.record_size import refuse_too_large
from stateline.processing.function_results import written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.joins import JoinKind
from stateline.processing.operators.kept_rows import KeptRows
from stateline.processing.operators.rows import LazyColumn, Rows, SideRows
from stateline.processing.operators.unmatched_rows import UnmatchedRows
from stateline.serde.plain import Serde

_OVERHEAD_BYTES = 32
"""The most that a changelog's record has besides key and value: times, numbers, a length."""


class JoinedStreams(NamedTuple):
    """The parts that both sides of a join have in common. `joiner` gets the key's bytes, then the left and the right
    value. `left` and `right` are the serdes of their values, `value` is that of the result. `stores` are the names of
    the left and the right store: the same one for a self-join that keeps its rows once (KIP-862). `unmatched` is that
    of the store of rows without a partner. `is_self`: both sides are one stream, so each row comes once as a left one
    and once as a right one, in the same order."""

    name: str
    kind: JoinKind
    joiner: Callable[[bytes | None, Any, Any], Any]
    windows: JoinWindows
    left: Serde
    right: Serde
    value: Serde
    stores: tuple[str, str]
    unmatched: str | None
    is_self: bool


class SideOfJoin:
    """Marks rows as those of the left or the right stream."""

    def __init__(self, is_left: bool, context: OperatorContext) -> None:
        del context
        self._is_left = is_left

    def process(self, rows: Rows) -> SideRows:
        sides = [self._is_left] * len(rows.records)
        return SideRows(sides, rows.keys.serde, rows.keys.raw, rows.values.raw, rows.timestamps, rows.records)


class _Pair(NamedTuple):
    """A result to make: the place of the row that causes it, its key, the two values, and its timestamp."""

    place: int
    key: bytes | None
    left: bytes | None
    right: bytes | None
    timestamp_ms: int


class StreamJoin:
    """Takes rows of both sides, gives rows with the joined values. A pair for which the joiner fails is left out; both
    of its rows stay in their stores."""

    def __init__(self, joined: JoinedStreams, context: OperatorContext) -> None:
        self._joined, self._context = joined, context
        windows, kind = joined.windows, joined.kind
        # A row of a self-join comes as a left one, is kept, and then comes as a right one, which meets it.
        self._is_one_store = joined.stores[0] == joined.stores[1]
        kept = [KeptRows(context.stores[name], repeats=context.repeats) for name in dict.fromkeys(joined.stores)]
        kept = kept * 2 if self._is_one_store else kept
        unmatched = None
        if joined.unmatched is not None:
            closed_after = windows.after_ms + windows.grace_ms, windows.before_ms + windows.grace_ms
            unmatched = UnmatchedRows(context.stores[joined.unmatched], closed_after)
        self._unmatched = unmatched
        # By `is_left`: a row's own side, the other one, how far it looks back and ahead, whether it may leave alone.
        self._sides = {
            True: (kept[0], kept[1], windows.before_ms, windows.after_ms, kind != "inner"),
            False: (kept[1], kept[0], windows.after_ms, windows.before_ms, kind == "outer"),
        }
        self._now_ms = context.time_so_far(joined.stores[0], max(side.stream_time_ms for side in kept))

    def process(self, batch: SideRows) -> Rows:
        batch = self._fitting(batch)
        pairs, no_key, no_value = list[_Pair](), 0, 0
        rows = zip(batch.are_left, batch.keys, batch.values, batch.timestamps, strict=True)
        for place, (is_left, key, value, at_ms) in enumerate(rows):
            self._now_ms = max(self._now_ms, at_ms)
            mine, _, _, _, may_be_alone = self._sides[is_left]
            if key is not None and value is not None:
                pairs += self._met(place, is_left, key, value, at_ms)
            elif key is None and value is not None and may_be_alone:
                pairs.append(_pair(place, None, is_left, value, None, at_ms))
            elif is_left or not self._is_one_store:
                no_key, no_value = no_key + (key is None), no_value + (key is not None)
            if key is not None and (is_left or not self._is_one_store):
                mine.add(key, at_ms, value, batch.records[place])
        for mine, *_ in self._sides.values():
            mine.flush()
        self._context.times.observe(self._joined.stores[0], self._now_ms)
        self._context.failures.drop(no_key, "no_key")
        self._context.failures.drop(no_value, "no_value")
        return self._results(batch, pairs)

    def _met(self, place: int, is_left: bool, key: bytes, value: bytes, at_ms: int) -> list[_Pair]:
        """Return the pairs that this row causes: of others whose time has come, then its own."""
        _, other, back_ms, ahead_ms, may_be_alone = self._sides[is_left]
        pairs, unmatched = list[_Pair](), self._unmatched
        if unmatched is not None and at_ms == self._now_ms:
            pairs = [_pair(place, *row) for row in unmatched.take_closed(at_ms)]
        found = other.between(key, max(0, at_ms - back_ms), max(0, at_ms + ahead_ms))
        for other_ms, other_value in found:
            if unmatched is not None:
                unmatched.drop(other_ms, not is_left, key, at_ms)
            pairs.append(_pair(place, key, is_left, value, other_value, max(at_ms, other_ms)))
        if not found and unmatched is not None and may_be_alone:
            if at_ms + ahead_ms < self._now_ms:
                pairs.append(_pair(place, key, is_left, value, None, at_ms))
            else:
                unmatched.put(at_ms, is_left, key, value)
        return pairs

    def _fitting(self, batch: SideRows) -> SideRows:
        """Return the rows that the changelogs can take. ``processing.exception.handler`` handles the others."""
        context, rows = self._context, list(zip(batch.keys, batch.values, batch.records, strict=True))
        most = context.max_record_bytes - _OVERHEAD_BYTES
        if all(len(key or b"") + len(value or b"") <= most and not record.headers for key, value, record in rows):
            return batch

        def fits(row: tuple[bytes | None, bytes | None, Record]) -> None:
            refuse_too_large((row[0] or b"") + bytes(_OVERHEAD_BYTES), row[1], context.max_record_bytes, row[2].headers)

        asked, twins = list(range(len(rows))), dict[int, int]()
        if self._joined.is_self:  # the left one decides for both
            asked, rights = ([n for n in asked if batch.are_left[n] is side] for side in (True, False))
            twins = dict(zip(asked, rights, strict=True))
        records, given = [batch.records[n] for n in asked], [rows[n] for n in asked]
        fitting = [asked[place] for place, _ in context.each(self._joined.name, records, given, fits)]
        return batch.pick(sorted([*fitting, *(twins[n] for n in fitting if n in twins)]))

    def _results(self, batch: SideRows, pairs: Sequence[_Pair]) -> Rows:
        joined = self._joined
        read_left, read_right = joined.left.deserialize, joined.right.deserialize

        def result(pair: _Pair) -> tuple[bytes | None, Any]:
            left = None if pair.left is None else read_left(pair.left)
            value = joined.joiner(pair.key, left, None if pair.right is None else read_right(pair.right))
            return written(joined.value, value), value

        records = [batch.records[pair.place] for pair in pairs]
        made = list(self._context.each(joined.name, records, pairs, result))
        places = [place for place, _ in made]
        return Rows(
            LazyColumn(batch.key, [pairs[place].key for place in places]),
            LazyColumn(joined.value, [raw for _, (raw, _) in made], [value for _, (_, value) in made]),
            [pairs[place].timestamp_ms for place in places],
            [records[place] for place in places],
        )


def _pair(place: int, key: bytes | None, is_left: bool, value: bytes, other: bytes | None, timestamp_ms: int) -> _Pair:
    left, right = (value, other) if is_left else (other, value)
    return _Pair(place, key, left, right, timestamp_ms)
