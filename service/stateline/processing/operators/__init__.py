"""Kafka Streams' operators: each takes a slice of records, or of changes of a table, at once.

`stateline.dsl` declares operators with these names. A module is loaded when a task makes its operator, so a server,
which makes none, loads neither operators nor the stores that they write.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.processing.operators.count import Count as Count
    from stateline.processing.operators.emit_final import *
    from stateline.processing.operators.fold import *
    from stateline.processing.operators.processing import ProcessRows as ProcessRows
    from stateline.processing.operators.session_aggregate import *
    from stateline.processing.operators.sliding_aggregate import *
    from stateline.processing.operators.sources import *
    from stateline.processing.operators.stateless import *
    from stateline.processing.operators.stream_table_join import *
    from stateline.processing.operators.table_join import Joined as Joined
    from stateline.processing.operators.table_join import JoinSide as JoinSide
    from stateline.processing.operators.table_steps import Keep as Keep
    from stateline.processing.operators.table_steps import MapTable as MapTable
    from stateline.processing.operators.table_steps import NewestOfEachKey as NewestOfEachKey
    from stateline.processing.operators.topic_sink import *
    from stateline.processing.operators.window_aggregate import *
else:

    def _call(module: str, name: str, *arguments: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*arguments)

    _NAMES = {
        "count": "Count",
        "emit_final": "EmitFinal",
        "fold": "Fold",
        "processing": "ProcessRows",
        "session_aggregate": "SessionAggregate",
        "sliding_aggregate": "SlidingAggregate",
        "sources": "StreamSource TableSource",
        "stateless": "Filter FlatMap MapValues Merge Peek ToStream",
        "stream_table_join": "StreamTableJoin",
        "table_join": "Joined JoinSide",
        "table_steps": "Keep MapTable NewestOfEachKey",
        "topic_sink": "TopicSink",
        "window_aggregate": "WindowCount WindowFold",
    }
    for _module, _names in _NAMES.items():
        globals().update({_name: partial(_call, _module, _name) for _name in _names.split()})
