"""`Table.group_by(…)`: a table grouped by another key, and its aggregates (docs/streams.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from stateline import serdes
from stateline.dsl.declarations import Declarations
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.java_names import HintsAtJavaNames
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.operators import CountChanges, Fold, Regroup
from stateline.processing.operators.folding import Retracting
from stateline.serde.change import inner_of
from stateline.serde.plain import Serde

TableT = TypeVar("TableT")
Keep = Callable[..., TableT]
"""Declares an aggregate and its store, and returns its table."""


@says_where
class GroupedTable(HintsAtJavaNames, Generic[TableT]):
    """Aggregates the rows of a table by group, each kept in a store and served under its name. By default the name is
    generated (`Declarations.store_name`). `changelog` has settings of the changelog, for
    `StoreDefinition.with_logging`.

    If a row changes, its old state leaves the aggregate before the new one comes in. A row that moves to another group
    is in neither group for a moment. The timestamp of a group is the largest of its changes'.
    ``processing.exception.handler`` handles a function that raises.
    """

    def __init__(
        self,
        declarations: Declarations,
        node: OperatorNode | Root,
        table: StoreDefinition,
        mapper: Callable[[Any, Any], Any],
        topic: Topic,
        keep: Keep[TableT],
    ) -> None:
        """Group the changes of `table` that come from `node`. `topic` is the repartition topic, of rows of the groups'
        keys and values."""
        check_function("group_by", mapper, "key", "value", role="mapper")
        declarations.claim_repartition(topic)
        declarations.claim_outputs("`group_by`", [topic])
        self._declarations = declarations
        self.key, self.value = topic.key, inner_of(topic.value)
        make = partial(Regroup, "group_by", mapper, table.key, table.value, topic, self.value)
        node.then(OperatorNode("group_by", make, forwards=(topic,), on_changes=True))
        self._table = partial(keep, declarations, declarations.stream_root(topic), self.key)

    def count(
        self, store: str | None = None, *, persistent: bool = True, changelog: Mapping[str, object] | None = None
    ) -> TableT:
        """Count the rows of each group, as int64. A group that has lost its last row stays, with 0."""
        store = self._declarations.store_name(store, "KTABLE-AGGREGATE")
        return self._table("count", store, partial(CountChanges, store), serdes.int64, persistent, changelog)

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: Mapping[str, object] | None = None,
    ) -> TableT:
        """Combine the values of each group with ``adder(reduced, value)``, and take values out with
        ``subtractor(reduced, value)``. The first value is kept unchanged. A result of None deletes the group, until
        the next value comes."""
        check_function("reduce", adder, "reduced", "value", role="adder", must_return=True)
        check_function("reduce", subtractor, "reduced", "value", role="subtractor", must_return=True)

        def one_more(key: Any, value: Any, reduced: Any) -> Any:
            del key
            return value if reduced is None else adder(reduced, value)

        def one_less(key: Any, value: Any, reduced: Any) -> Any:
            del key
            return subtractor(reduced, value)

        store = self._declarations.store_name(store, "KTABLE-AGGREGATE")
        serde = self._declarations.in_store(store, self.value)
        fold = partial(Fold, f"reduce {store}", store, Retracting(serde, lambda: None, one_more, one_less))
        return self._table("reduce", store, fold, serde, persistent, changelog)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde,
        persistent: bool = True,
        changelog: Mapping[str, object] | None = None,
    ) -> TableT:
        """Aggregate the rows of each group with ``adder(key, value, aggregate)``, from ``initial()`` on, and take rows
        out with ``subtractor(key, value, aggregate)``. `value` is the aggregate's type. A result of None deletes the
        group, until the next row comes. The functions may change their argument."""
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder", must_return=True)
        check_function("aggregate", subtractor, "key", "value", "aggregate", role="subtractor", must_return=True)
        store = self._declarations.store_name(store, "KTABLE-AGGREGATE")
        folding = Retracting(self._declarations.in_store(store, value), initial, adder, subtractor)
        fold = partial(Fold, f"aggregate {store}", store, folding)
        return self._table("aggregate", store, fold, value, persistent, changelog)
