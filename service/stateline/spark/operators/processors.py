"""Processors for `transformWithState` in Row mode: the state of tables and joins between micro-batches.

Keys and values are texts (`operators.packing`), times are microseconds. A table keeps one row of state per key, read
and written once in a micro-batch, for many keys together. One call gets all rows of a key in the micro-batch, in any
order and of both sides of a join. Names and types of states are in checkpoints: never change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle, TimerValues

from stateline.spark.operators.packing import packed
from stateline.spark.operators.state_requests import Entry, change, entries
from stateline_store import RecordError

Value = dict[str, Any]
"""A row as JSON values: times and dates are ISO texts, binary is base64."""
Aggregator = Callable[[Value, Value], Value | None]
"""Returns the new aggregate of an aggregate and a value or another aggregate. None: there is none, as without rows."""

_BUCKETS = 64  # in checkpoints: never change
_KEYS_AT_ONCE = 1000
SHOWN_CHARACTERS = 200  # of a group in an error


class StateProcessor(StatefulProcessor):
    """A processor that returns rows of type `returns`, one key at a time unless it is a `TableProcessor`."""

    returns: str

    def close(self) -> None:
        """Do nothing: nothing is held."""


class TableProcessor(StateProcessor):
    """A processor with one row of state per key, of type `state_ddl`. It returns rows of type `returns`. `takes` makes
    a row from the input columns, with the key first. One call gets all keys of one of `_BUCKETS`, because a call costs
    Spark as much as dozens of keys."""

    takes: Callable[..., Any]
    state_ddl: str

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states: MapState = handle.getMapState("states", "key string", self.state_ddl)

    def changed(self, key: str, rows: list[Any], state: Any) -> tuple[Entry | None, Iterable[Row]]:
        """Return the key's new state (None: no state) and the output rows, from its rows in this micro-batch and its
        state."""
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


def by_event_time(rows: DataFrame, key: str, processor: StateProcessor) -> DataFrame:
    return _applied(processor, rows.groupBy(key), "EventTime")


def by_bucket(rows: DataFrame, key: str, processor: TableProcessor) -> DataFrame:
    """Apply the processor to these rows, whose first column is `key`, in update mode."""
    row = packed(rows.columns).alias("row")  # one cell, since each costs Python over 1 µs
    bucket = F.pmod(F.xxhash64(key), F.lit(_BUCKETS)).cast("int").alias("bucket")
    return _applied(processor, rows.select(row, bucket).groupBy("bucket"), "None")


def _applied(processor: StateProcessor, rows: GroupedData, time_mode: str) -> DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions; none is used
        return rows.transformWithState(processor, processor.returns, "Update", time_mode)


def newest_row(key: str, changes: Sequence[Any]) -> Any:
    """Return the newest change of one key. Raises `RecordError` if two different ones are the newest."""
    newest = max(changes, key=lambda row: row.order)
    if any(row.order == newest.order and row != newest for row in changes):
        raise RecordError(
            f"A table has two rows of one micro-batch with the key {key[:SHOWN_CHARACTERS]}, and nothing tells which "
            "is the newer: add a column _order to what table_of is given, or another column to its key."
        )
    return newest


def later(one: int | None, other: int | None) -> int | None:
    """Return the later of two times, None if both are unknown."""
    known = [at for at in (one, other) if at is not None]
    return max(known) if known else None


def ms_up(microseconds: int) -> int:
    """Return milliseconds, rounded up: timers and watermarks have no smaller unit."""
    return -(-microseconds // 1000)
