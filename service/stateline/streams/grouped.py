"""GroupedStream: the rows of a stream by key, to be aggregated (Kafka Streams' `KGroupedStream`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stateline import serdes, stores
from stateline.serde import Serde
from stateline.streams.nodes import Node, Root
from stateline.streams.table import Table
from stateline.worker.operators.count import Count

if TYPE_CHECKING:
    from stateline.app import App


class GroupedStream:
    """Aggregates are kept in a store of the name that is given, and served under it. Rows without a key or without a
    value are left out and counted."""

    def __init__(self, app: App, node: Node | Root, key: Serde, value: Serde) -> None:
        self._app, self._node = app, node
        self.key, self.value = key, value

    def count(self, store: str, *, persistent: bool = True) -> Table:
        """How many rows each key has had, as int64."""
        definition = self._app.store(
            stores.timestamped_key_value(store, key=self.key, value=serdes.int64, persistent=persistent)
        )
        node = self._node.then(Node(f"count {store}", partial(Count, store), (definition,)))
        return Table(self._app, node, definition)
