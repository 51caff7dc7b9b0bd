"""What tables and joins keep between micro-batches: processors for `transformWithState` in Row mode.

They see a key and values as texts (`operators.packing`) and times in microseconds. All that tables know of a key is one
row of state, read and written once in a micro-batch, for many keys together. Rows of one key come in any order, of both
sides of a join mixed: each processor sorts them. One call sees all rows that a key has in the micro-batch.

The names and types of states are in checkpoints: never change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from stateline.spark.operators.packing import packed
from stateline.spark.operators.state_requests import Entry, change, entries
from stateline_store import RecordError

Value = dict[str, Any]
"""A row of values as JSON has it: times and dates as ISO texts, binary as base64."""
Aggregator = Callable[[Value, Value], Value | None]
"""Of an aggregate and a row's value, or another aggregate, makes the new one; None: there is none, as without rows."""

_BUCKETS = 64  # in checkpoints: never change
_KEYS_AT_ONCE = 1000
SHOWN_CHARACTERS = 200  # of a group in an error


class TableProcessor(StatefulProcessor):
    """A processor with one row of state for each key, whose type is `state_ddl`, that gives rows of the type
    `returns`. `takes` makes a row of the columns of what comes, of which the key is the first.

    It sees all keys of one of `_BUCKETS` at a time: what Spark does for each call costs as much as dozens of keys.
    """

    takes: Callable[..., Any]
    state_ddl: str
    returns: str

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states: MapState = handle.getMapState("states", "key string", self.state_ddl)

    def changed(self, key: str, rows: list[Any], state: Any) -> tuple[Entry | None, Iterable[Row]]:
        """The key's new state (None: nothing is kept) and what leaves, of its rows in this micro-batch and the state
        that it had, or None."""
        raise NotImplementedError

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        by_key: dict[str, list[Any]] = {}
        for packed_row in rows:
            row = self.takes(*orjson.loads(packed_row[0]).values())
            by_key.setdefault(row[0], []).append(row)
        names = list(by_key)
        for first in range(0, len(names), _KEYS_AT_ONCE):
            some = names[first : first + _KEYS_AT_ONCE]
            changes: dict[Entry, Entry | None] = {}
            for name, state in zip(some, entries(self._states, [(name,) for name in some]), strict=True):
                new, leaves = self.changed(name, by_key.pop(name), state)
                if new != state:
                    changes[name,] = new
                yield from leaves
            change(self._states, changes)

    def close(self) -> None:
        """Nothing is held."""


class TimedProcessor(StatefulProcessor):
    """A processor of one key at a time, with timers, that gives rows of the type `returns`."""

    returns: str

    def close(self) -> None:
        """Nothing is held."""


def by_event_time(rows: DataFrame, key: str, processor: TimedProcessor) -> DataFrame:
    """What the processor gives for these rows, in update mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions; none is used
        return rows.groupBy(key).transformWithState(processor, processor.returns, "Update", "EventTime")


def by_bucket(rows: DataFrame, key: str, processor: TableProcessor) -> DataFrame:
    """What the processor gives for these rows, of which `key` is the first column, in update mode."""
    row = packed(rows.columns).alias("row")  # one cell: Python takes a microsecond and more for each
    bucket = F.pmod(F.xxhash64(key), F.lit(_BUCKETS)).cast("int").alias("bucket")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as above
        found = rows.select(row, bucket).groupBy("bucket")
        return found.transformWithState(processor, processor.returns, "Update", "None")


def newest_row(key: str, changes: Sequence[Any]) -> Any:
    """Of the changes of one key. Raises `RecordError` when that could be one or another."""
    newest = max(changes, key=lambda row: row.order)
    if any(row.order == newest.order and row != newest for row in changes):
        raise RecordError(
            f"A table has two rows of one micro-batch with the key {key[:SHOWN_CHARACTERS]}, and nothing tells which "
            "is the newer: add a column _order to what table_of is given, or another column to its key."
        )
    return newest


def later(one: int | None, other: int | None) -> int | None:
    """Of two times, where they are known."""
    known = [at for at in (one, other) if at is not None]
    return max(known) if known else None


def ms_up(microseconds: int) -> int:
    """Milliseconds, rounded up: timers and watermarks know no smaller unit."""
    return -(-microseconds // 1000)
