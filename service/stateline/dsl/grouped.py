"""GroupedStream: the rows of a stream by key, to be aggregated (Kafka Streams' `KGroupedStream`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline import serdes, stores
from stateline.dsl.function_checks import check_function
from stateline.dsl.table import Table
from stateline.dsl.windowed import WindowedStream
from stateline.model.nodes import Node, Root
from stateline.model.windows import AnyWindows
from stateline.processing.operators.count import Count
from stateline.processing.operators.fold import Fold
from stateline.processing.operators.folding import Aggregating, Folding, reducing
from stateline.serde.plain import Serde

if TYPE_CHECKING:
    from stateline.dsl.app import App


class GroupedStream:
    """Aggregates are kept in a store of the name that is given, and served under it. Rows without a key or without a
    value are left out and counted; a function that raises is handled by ``processing.exception.handler``."""

    def __init__(self, app: App, node: Node | Root, key: Serde, value: Serde) -> None:
        self._app, self._node = app, node
        self.key, self.value = key, value

    def count(self, store: str, *, persistent: bool = True) -> Table:
        """How many rows each key has had, as int64."""
        definition = stores.timestamped_key_value(store, key=self.key, value=serdes.int64, persistent=persistent)
        return self._table(Node(f"count {store}", partial(Count, store), (self._app.operators_store(definition),)))

    def reduce(self, reducer: Callable[[Any, Any], Any], store: str, *, persistent: bool = True) -> Table:
        """The values of each key made one, ``reducer(what there was, value)``; the first one is taken as it is. None
        deletes what there was."""
        check_function("reduce", reducer, "reduced", "value", role="reducer")
        return self._folded(f"reduce {store}", store, reducing(self.value, reducer), self.value, persistent)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        store: str,
        *,
        value: Serde,
        persistent: bool = True,
    ) -> Table:
        """What ``adder(key, value, aggregate)`` makes of the rows of each key, beginning with ``initial()``; `value` is
        the aggregate's type. None deletes it. A function may change the aggregate that it is given."""
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder")
        folding = Aggregating(value, initial, adder)
        return self._folded(f"aggregate {store}", store, folding, value, persistent)

    def windowed_by(self, windows: AnyWindows) -> WindowedStream:
        """The rows by key and window: `TumblingWindows`, `HoppingWindows`, `SlidingWindows` or `SessionWindows`."""
        return WindowedStream(self._app, self._node, self.key, self.value, windows)

    def _folded(self, name: str, store: str, folding: Folding, value: Serde, persistent: bool) -> Table:
        definition = stores.timestamped_key_value(store, key=self.key, value=value, persistent=persistent)
        return self._table(Node(name, partial(Fold, name, store, folding), (self._app.operators_store(definition),)))

    def _table(self, node: Node) -> Table:
        return Table(self._app, self._node.then(node), node.stores[0])
