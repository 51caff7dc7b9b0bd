"""Declares a join of two streams: its stores, with Kafka Streams' names, and its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stateline.dsl.declarations import Declarations
from stateline.model.join_windows import JoinWindows
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import checked_store_name
from stateline.model.unnamed_stores import generated_join_name, number_in
from stateline.processing.operators import JoinedStreams, SideOfJoin, StreamJoin
from stateline.serde.plain import Serde, shown
from stateline.serde.unmatched import UnmatchedKeySerde, UnmatchedValuesSerde
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from stateline.processing.operators.joins import JoinKind

Side: TypeAlias = tuple[OperatorNode | Root, Serde]
"""Where the rows of a stream come from, and the type of their values."""


class JoinStores(NamedTuple):
    """The names of a join's stores. Inner joins have no `unmatched`."""

    left: str
    right: str
    unmatched: str | None


def join_of_streams(
    declarations: Declarations,
    kind: JoinKind,
    sides: tuple[Side, Side],
    key: Serde,
    joiner: Callable[[bytes | None, Any, Any], Any],
    windows: object,
    value: Serde,
    store: str | None,
    *,
    persistent: bool,
    changelog: Mapping[str, object] | None,
) -> OperatorNode:
    """Declare the join of a left and a right stream, and return the node whose rows are the result."""
    if not isinstance(windows, JoinWindows):
        raise InvalidArgumentError(
            f"within={shown(windows)}: a join of two streams needs within=JoinWindows(timedelta(minutes=5)). "
            "To join the newest row of each key, give a table: .to_table(…)."
        )
    names = _store_names(declarations, kind, store)
    kept = partial(declarations.operators_store, changelog=changelog)
    (left_node, left), (right_node, right) = sides
    times: dict[str, Any] = {"retention_ms": windows.retention_ms, "window_size_ms": windows.size_ms}
    definitions = [
        kept(
            StoreDefinition(checked_store_name(name), "window", key, serde, persistent, retain_duplicates=True, **times)
        )
        for name, serde in ((names.left, left), (names.right, right))
    ]
    if names.unmatched is not None:
        unmatched = checked_store_name(names.unmatched)
        types = UnmatchedKeySerde(key), UnmatchedValuesSerde(left, right)
        definitions.append(kept(StoreDefinition(unmatched, "key_value", *types, persistent)))
    stored = definitions[0].value, definitions[1].value
    name = f"{'join' if kind == 'inner' else f'{kind}_join'} {store or names.left}"
    pair, is_self = (names.left, names.right), left_node is right_node
    joined = JoinedStreams(name, kind, joiner, windows, *stored, value, pair, names.unmatched, is_self)
    node = OperatorNode(name, partial(StreamJoin, joined), tuple(definitions), in_order=True, joins_streams=True)
    for is_left, parent in ((True, left_node), (False, right_node)):
        side = OperatorNode(f"{'left' if is_left else 'right'} side", partial(SideOfJoin, is_left))
        parent.then(side).then(node)
    if kind == "inner" and is_self:

        def use_one_store(is_one: bool) -> None:
            names_used = (names.left, names.left) if is_one else joined.stores
            node.make = partial(StreamJoin, joined._replace(stores=names_used))
            node.stores = tuple(definitions[:1] if is_one else definitions)

        declarations.self_join(names.right, use_one_store)
    return node


def _store_names(declarations: Declarations, kind: JoinKind, store: str | None) -> JoinStores:
    """Return the names by Kafka Streams' rule (`KStreamImplJoin`). A generated name of the left store gives those of
    the others. Raises `InvalidArgumentError` for one of another kind of join."""
    this = "KSTREAM-OUTERTHIS" if kind == "outer" else "KSTREAM-JOINTHIS"
    other = "KSTREAM-JOINOTHER" if kind == "inner" else "KSTREAM-OUTEROTHER"
    if store is None:
        left = declarations.join_store_name(this)
        right = declarations.join_store_name(other)
        unmatched = None if kind == "inner" else declarations.join_store_name("KSTREAM-OUTERSHARED", like=left)
        return JoinStores(left, right, unmatched)
    if (number := number_in(store, "KSTREAM-(?:JOIN|OUTER)(?:THIS|OTHER)", "-store")) is not None:
        left = generated_join_name(this, number)
        if left != store:
            raise InvalidArgumentError(f"store={store!r}: Kafka Streams names the left store of this join {left!r}.")
        unmatched = None if kind == "inner" else generated_join_name("KSTREAM-OUTERSHARED", number)
        return JoinStores(left, generated_join_name(other, number + 1), unmatched)
    named = "outer-this-join" if kind == "outer" else "this-join"
    others = "other-join" if kind == "inner" else "outer-other-join"
    unmatched = None if kind == "inner" else f"{store}-{kind}-shared-join-store"
    return JoinStores(f"{store}-{named}-store", f"{store}-{others}-store", unmatched)
