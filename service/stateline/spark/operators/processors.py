"""What tables and joins keep between micro-batches: processors for `transformWithState` in Row mode.

They see a key and values as texts (`operators.packing`) and times in microseconds. All they know of a key is
one row of state, so that a key costs one read and one write in a micro-batch. Rows of one key come in any order, of
both sides of a join mixed: each processor sorts them. One call sees all rows that a key has in the micro-batch.

The names and types of states are in checkpoints: never change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState

from stateline_store import RecordError

Value = dict[str, Any]
"""A row of values as JSON has it: times and dates as ISO texts, binary as base64."""
Aggregator = Callable[[Value, Value], Value | None]
"""Of an aggregate and a row's value, or another aggregate, makes the new one; None: there is none, as without rows."""

SHOWN_CHARACTERS = 200  # of a group in an error


class KeyProcessor(StatefulProcessor):
    """A processor with one row of state, whose type is `state_ddl`, that gives rows of the type `returns`."""

    state_ddl: str
    returns: str

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state: ValueState = handle.getValueState("state", self.state_ddl)

    def close(self) -> None:
        """Nothing is held."""


def with_state(
    rows: DataFrame, key: str, processor: KeyProcessor, time_mode: Literal["None", "EventTime"] = "None"
) -> DataFrame:
    """What the processor gives for these rows, in update mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions; none is used
        return rows.groupBy(key).transformWithState(processor, processor.returns, "Update", time_mode)


def newest_row(key: str, rows: Iterable[Row]) -> Row:
    """Of the changes of one key. Raises `RecordError` when that could be one or another."""
    changes = list(rows)
    newest: Row = max(changes, key=lambda row: row.order)
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
