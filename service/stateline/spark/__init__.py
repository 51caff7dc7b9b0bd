"""Pipelines: functions from streaming DataFrames to a DataFrame, which Spark runs into result topics exactly once.

    sources    from topics to frames             operators   KTables, joins with them, and sessions
    sink       from frames to result topics      drivers     the processes that run pipelines
    reading    stores as DataFrames, and their committed changes as a stream

Its public names are in `__all__`. The first use of one imports PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.spark.operators.ktable import KTable, table_of
    from stateline.spark.operators.streams import join_stream_table, session_aggregate
    from stateline.spark.reading.cut import Cut, cut
    from stateline.spark.reading.json_values import json_value

__all__ = ["Cut", "KTable", "cut", "join_stream_table", "json_value", "session_aggregate", "table_of"]

_PLACES = {
    "Cut": "reading.cut",
    "cut": "reading.cut",
    "KTable": "operators.ktable",
    "table_of": "operators.ktable",
    "join_stream_table": "operators.streams",
    "json_value": "reading.json_values",
    "session_aggregate": "operators.streams",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
