"""Pipelines: functions from streaming DataFrames to one, run by Spark into a result topic exactly once.

For those functions: `KTable` and `table_of` (`stateline.spark.ktable`), `join_stream_table` and `session_aggregate`
(`stateline.spark.operators`). PySpark is imported when one of them is used first.

For whoever reads stores as DataFrames: `cut`, several of one moment, and `json_value`, a column of JSON text.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stateline.spark.cut import Cut, cut  # at once: the name is the module's, too, which would take its place

if TYPE_CHECKING:
    from stateline.spark.json_values import json_value
    from stateline.spark.ktable import GroupedKTable, KTable, table_of
    from stateline.spark.operators import join_stream_table, session_aggregate

__all__ = [
    "Cut",
    "GroupedKTable",
    "KTable",
    "cut",
    "join_stream_table",
    "json_value",
    "session_aggregate",
    "table_of",
]

_PLACES = {
    "GroupedKTable": "ktable",
    "KTable": "ktable",
    "table_of": "ktable",
    "join_stream_table": "operators",
    "json_value": "json_values",
    "session_aggregate": "operators",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
