"""Table: the newest value of each key, kept in a store (Kafka Streams' `KTable`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stateline.store_definition import StoreDefinition
from stateline.streams.nodes import Node, Root
from stateline.worker.operators.stateless import ToStream

if TYPE_CHECKING:
    from stateline.app import App
    from stateline.streams.stream import Stream


class Table:
    """`store` is where it is kept and served, and what processors read it by."""

    def __init__(self, app: App, node: Node | Root, store: StoreDefinition) -> None:
        self._app, self._node = app, node
        self.store = store

    def to_stream(self) -> Stream:
        """Its changes as rows: the new value, None for a key that was deleted. Of several changes of a key within one
        slice of input the last one, as Kafka Streams' record cache gives it."""
        from stateline.streams.stream import Stream  # streams make tables, and tables make streams

        node = self._node.then(Node("to_stream", partial(ToStream, self.store.key, self.store.value)))
        return Stream(self._app, node, self.store.key, self.store.value)
