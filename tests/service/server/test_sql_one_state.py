"""Several keys of windows are read one after the other, and again until all rows are of one state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

from stateline import serdes
from stateline.model.store_definition import StoreDefinition
from stateline.query.values import CopyStatus, PartitionAnswer, QueryRows, Terms, answers_of
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.sql.reading import OpenTable, RowAccount, TableReading, WantedTable
from stateline.server.sql.selection import Selection
from stateline.server.state.served_stores import ServedStore
from stateline.sql.plan import TableRead
from stateline_store import IsolationLevel, Position, TopicPartition

DEFINITION = StoreDefinition(
    "windows", "timestamped_window", serdes.string, serdes.json, retention_ms=60_000, window_size_ms=1_000
)


class Routing:
    """A store of one partition, which has committed up to the next of these offsets at each read."""

    def __init__(self, offsets: Iterator[int]) -> None:
        self._offsets = offsets
        self.reads = 0

    async def scan_all(self, *_: object) -> dict[int, PartitionAnswer]:
        self.reads += 1
        position = Position.of({TopicPartition("flights", 0): next(self._offsets)})
        return {0: PartitionAnswer(QueryRows(), position, CopyStatus("active", 0, 0, 0))}


def opened(routing: Routing) -> OpenTable:
    store = cast(ServedStore, SimpleNamespace(name="windows", definition=DEFINITION, partitions=(0,)))
    selection = Selection(keys=(b"a", b"b"))
    table = WantedTable(TableRead(0, "windows", ("key",), ("a", "b")), store, selection, all_versions=False)
    reading = TableReading(cast(QueryRouting, routing), cast(Any, None), cast(Any, None))

    async def read() -> OpenTable:
        terms = Terms("windows", IsolationLevel.READ_COMMITTED)
        async with AsyncExitStack() as resources:
            return await reading.open_live(table, terms, None, 0, resources, RowAccount(10))

    return asyncio.run(read())


def test_keys_that_were_read_before_and_after_a_commit_are_read_again() -> None:
    routing = Routing(iter([1, 2, 2, 2]))
    (answer,) = answers_of(opened(routing).outcomes).values()
    assert answer.position == Position.of({TopicPartition("flights", 0): 2})
    assert routing.reads == 4


def test_keys_without_a_commit_in_between_are_read_once() -> None:
    routing = Routing(repeat(1))
    opened(routing)
    assert routing.reads == 2
