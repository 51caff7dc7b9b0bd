"""Processors for `transformWithState` in Row mode: the state of joins and sessions between micro-batches.

Keys and values are texts (`operators.packing`), times are microseconds. One call gets all rows of a key in the
micro-batch, in any order and of both sides of a join. Names and types of states are in checkpoints: never change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

Value = dict[str, Any]
"""A row as JSON values: times and dates are ISO texts, binary is base64."""
Aggregator = Callable[[Value, Value], Value | None]
"""Returns the new aggregate of an aggregate and a value or another aggregate. None: there is none, as without rows."""


class StateProcessor(StatefulProcessor):
    """A processor that returns rows of type `returns`, one key at a time."""

    returns: str

    def close(self) -> None:
        """Do nothing: nothing is held."""


def by_event_time(rows: DataFrame, key: str, processor: StateProcessor) -> DataFrame:
    return _applied(processor, rows.groupBy(key), "EventTime")


def _applied(processor: StateProcessor, rows: GroupedData, time_mode: str) -> DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions; none is used
        return rows.transformWithState(processor, processor.returns, "Update", time_mode)


def ms_up(microseconds: int) -> int:
    """Return milliseconds, rounded up: timers and watermarks have no smaller unit."""
    return -(-microseconds // 1000)
