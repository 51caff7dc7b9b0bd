"""The stores of tables that steps make, and the tables behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from stateline import stores
from stateline.dsl.declarations import Declarations
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.processing.operators import Keep, KeepVersions
from stateline.serde.plain import Serde
from stateline_store import TopologyError

ChangelogSettings: TypeAlias = Mapping[str, object] | None
"""Settings of a store's changelog, for `StoreDefinition.with_logging`."""

TableT = TypeVar("TableT")
Kind: TypeAlias = Callable[[Declarations, OperatorNode, StoreDefinition], TableT]
"""Makes the table of a store, from the step that changes it."""


def kept_table(
    kind: Kind[TableT],
    declarations: Declarations,
    parents: Sequence[OperatorNode | Root],
    store: StoreDefinition,
    changelog: ChangelogSettings,
    what: str = "keep",
    make: Callable[..., Any] | None = None,
) -> TableT:
    """Declare the store, and an operator that keeps the rows or changes of the parents in it. Without `make` it is the
    end of the parents' step. Returns the table of this kind."""
    kept = declarations.operators_store(store, changelog)
    keep = KeepVersions if kept.kind == "versioned" else Keep
    node = OperatorNode(f"{what} {kept.name}", make or partial(keep, kept.name), (kept,))
    for parent in parents:
        parent.then(node)
        if make is None and isinstance(parent, OperatorNode):
            node.named_with += (parent,)
    return kind(declarations, node, kept)


def aggregated(
    kind: Kind[TableT],
    declarations: Declarations,
    node: OperatorNode | Root,
    key: Serde,
    what: str,
    store: str,
    make: Callable[..., Any],
    value: Serde,
    persistent: bool,
    changelog: ChangelogSettings,
) -> TableT:
    """Declare an aggregate, the operator of `make`, and its store. Returns the table of this kind."""
    definition = stores.timestamped_key_value(store, key=key, value=value, persistent=persistent)
    return kept_table(kind, declarations, [node], definition, changelog, what, make)


def refuse_other_keys(what: str, key: Serde, table: StoreDefinition) -> None:
    """Raise `TopologyError` unless the table has keys of the type `key`, as `what` has."""
    if key.name != table.key.name:
        raise TopologyError(
            f"{what} has keys of type {key.name}, and {table.name!r} of type {table.key.name}: join what has the same "
            "keys, or change one with .select_key(…).repartition(…) first."
        )
