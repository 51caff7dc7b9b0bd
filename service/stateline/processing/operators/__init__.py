"""Kafka Streams' operators: each takes a slice of records, or of changes of a table, at once.

`stateline.dsl` declares operators with these names. A module is loaded when a task makes its operator, so a server,
which makes none, loads neither operators nor the stores that they write.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.processing.operators.aggregate import Count as Count
    from stateline.processing.operators.aggregate import Fold as Fold
    from stateline.processing.operators.emit_final import *
    from stateline.processing.operators.foreign_keys import ForeignKeyJoin as ForeignKeyJoin
    from stateline.processing.operators.foreign_keys import Resolve as Resolve
    from stateline.processing.operators.foreign_keys import Subscribe as Subscribe
    from stateline.processing.operators.hold_back import HoldBack as HoldBack
    from stateline.processing.operators.joins import Joined as Joined
    from stateline.processing.operators.joins import JoinSide as JoinSide
    from stateline.processing.operators.joins import StreamTableJoin as StreamTableJoin
    from stateline.processing.operators.processing import ProcessRows as ProcessRows
    from stateline.processing.operators.session_aggregate import *
    from stateline.processing.operators.sliding_aggregate import *
    from stateline.processing.operators.stateless import *
    from stateline.processing.operators.stream_joins import JoinedStreams as JoinedStreams
    from stateline.processing.operators.stream_joins import SideOfJoin as SideOfJoin
    from stateline.processing.operators.stream_joins import StreamJoin as StreamJoin
    from stateline.processing.operators.subscriptions import AnswerSubscribers as AnswerSubscribers
    from stateline.processing.operators.subscriptions import Register as Register
    from stateline.processing.operators.suppress import Bounds as Bounds
    from stateline.processing.operators.suppress import Suppress as Suppress
    from stateline.processing.operators.table_groups import CountChanges as CountChanges
    from stateline.processing.operators.table_groups import Regroup as Regroup
    from stateline.processing.operators.table_steps import Keep as Keep
    from stateline.processing.operators.table_steps import MapTable as MapTable
    from stateline.processing.operators.table_steps import NewestOfEachKey as NewestOfEachKey
    from stateline.processing.operators.table_versions import KeepVersions as KeepVersions
    from stateline.processing.operators.table_versions import LatestVersions as LatestVersions
    from stateline.processing.operators.table_versions import VersionedTableSource as VersionedTableSource
    from stateline.processing.operators.topic_sinks import ChosenTopicSink as ChosenTopicSink
    from stateline.processing.operators.topic_sinks import TopicSink as TopicSink
    from stateline.processing.operators.topics import *
    from stateline.processing.operators.transform import TransformTable as TransformTable
    from stateline.processing.operators.window_aggregate import *
else:

    def _call(module: str, name: str, *arguments: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*arguments)

    _NAMES = {
        "aggregate": "Count Fold",
        "emit_final": "EmitFinal",
        "foreign_keys": "ForeignKeyJoin Resolve Subscribe",
        "hold_back": "HoldBack",
        "joins": "Joined JoinSide StreamTableJoin",
        "processing": "ProcessRows",
        "session_aggregate": "SessionAggregate",
        "sliding_aggregate": "SlidingAggregate",
        "stateless": "Filter FlatMap MapValues Merge Peek ToStream WithAggregator",
        "stream_joins": "JoinedStreams SideOfJoin StreamJoin",
        "subscriptions": "AnswerSubscribers Register",
        "suppress": "Bounds Suppress",
        "table_groups": "CountChanges Regroup",
        "table_steps": "Keep MapTable NewestOfEachKey",
        "table_versions": "KeepVersions LatestVersions VersionedTableSource",
        "topic_sinks": "ChosenTopicSink TopicSink",
        "topics": "StreamSource TableSource",
        "transform": "TransformTable",
        "window_aggregate": "WindowCount WindowFold",
    }
    for _module, _names in _NAMES.items():
        globals().update({_name: partial(_call, _module, _name) for _name in _names.split()})
