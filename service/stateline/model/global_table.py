"""GlobalTable: a topic that every worker has whole, to be looked up in (Kafka Streams' `GlobalKTable`)."""

from __future__ import annotations

from dataclasses import dataclass

from stateline.model.store_definition import StoreDefinition


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """What `App.global_table` returns, for `Stream.join` and `Stream.left_join`. `store` is how it is kept: beside
    tasks, not in one."""

    store: StoreDefinition
