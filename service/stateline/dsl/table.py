"""Table: the newest value of each key, kept in a store (Kafka Streams' `KTable`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline import stores
from stateline.dsl.function_checks import check_function, refuse_unrun
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.nodes import Node, Root
from stateline.model.store_definition import StoreDefinition
from stateline.processing.operators.stateless import ToStream, written
from stateline.processing.operators.table_join import Joined, JoinKind, JoinSide
from stateline.processing.operators.table_steps import Keep, MapTable
from stateline.serde.plain import Serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.dsl.app import App
    from stateline.dsl.stream import Stream

Joiner = Callable[[Any, Any], Any]
"""Of two values, the left one first, what the result is; None for none."""


class Table:
    """`store` is where it is kept and served, and what processors read it by.

    What is made of it is kept in a store of its own, of the name that is given, with the newest timestamp of what it
    was made of. Functions may be called again for the same change.
    """

    def __init__(self, app: App, node: Node | Root, store: StoreDefinition) -> None:
        self._app, self._node = app, node
        self.store = store

    def to_stream(self) -> Stream:
        """Its changes as rows: the new value, None for a key that was deleted. Of several changes of a key within one
        slice of input the last one, as Kafka Streams' record cache gives it."""
        from stateline.dsl.stream import Stream  # streams make tables, and tables make streams

        node = self._node.then(Node("to_stream", partial(ToStream, self.store.key, self.store.value)))
        return Stream(self._app, node, self.store.key, self.store.value)

    def filter(self, predicate: Callable[[Any, Any], object], store: str, *, persistent: bool = True) -> Table:
        """The keys for which it is true of (key, value)."""
        check_function("filter", predicate, "key", "value", role="predicate")
        return self._mapped(
            "filter",
            lambda k, v, data: data if refuse_unrun(predicate(k, v)) else None,
            store,
            self.store.value,
            persistent,
        )

    def filter_not(self, predicate: Callable[[Any, Any], object], store: str, *, persistent: bool = True) -> Table:
        """The keys for which it is not."""
        check_function("filter_not", predicate, "key", "value", role="predicate")
        return self._mapped(
            "filter_not",
            lambda k, v, data: None if refuse_unrun(predicate(k, v)) else data,
            store,
            self.store.value,
            persistent,
        )

    def map_values(
        self, mapper: Callable[[Any, Any], Any], store: str, *, value: Serde | None = None, persistent: bool = True
    ) -> Table:
        """Every key with what the function makes of (key, value), of the type `value` (else as it was); None for a key
        that has none then."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        serde = value or self.store.value
        return self._mapped("map_values", lambda k, v, data: written(serde, mapper(k, v)), store, serde, persistent)

    def join(
        self, other: Table, joiner: Joiner, store: str, *, value: Serde | None = None, persistent: bool = True
    ) -> Table:
        """The keys that both have, with what `joiner` makes of (own value, other's value), of the type `value` (else as
        this table's).

        Raises `TopologyError` unless both keep the newest values of keys of one type. Topics that they come from need
        equal partition counts: the worker refuses to start otherwise.
        """
        return self._joined("inner", other, joiner, store, value, persistent)

    def left_join(
        self, other: Table, joiner: Joiner, store: str, *, value: Serde | None = None, persistent: bool = True
    ) -> Table:
        """As `join`, with all keys of this table: `joiner` gets None for a value that the other does not have."""
        return self._joined("left", other, joiner, store, value, persistent)

    def outer_join(
        self, other: Table, joiner: Joiner, store: str, *, value: Serde | None = None, persistent: bool = True
    ) -> Table:
        """As `join`, with the keys of both: `joiner` gets None for the value that one of them does not have."""
        return self._joined("outer", other, joiner, store, value, persistent)

    def _mapped(
        self,
        what: str,
        function: Callable[[Any, Any, bytes], bytes | None],
        store: str,
        value: Serde,
        persistent: bool,
    ) -> Table:
        self._refuse_windows(what)
        name = f"{what} {store}"
        make = partial(MapTable, name, function, self.store.key, self.store.value)
        return kept_table(
            self._app, [self._node.then(Node(name, make, on_changes=True))], store, self.store.key, value, persistent
        )

    def _joined(
        self, kind: JoinKind, other: Table, joiner: Joiner, store: str, value: Serde | None, persistent: bool
    ) -> Table:
        what = "join" if kind == "inner" else f"{kind}_join"
        if not isinstance(other, Table):
            raise wrong_kind(what, other, "table")
        self._app.refuse_others("join", other.store)
        self._refuse_windows("join")
        other._refuse_windows("join")
        refuse_other_keys(f"Table {self.store.name!r}", self.store.key, other.store)
        check_function(what, joiner, "value", "other_value", role="joiner")
        name, serde = f"join {store}", value or self.store.value
        joined = Joined(name, kind, joiner, self.store.value, other.store.value, serde, store)
        sides = [
            one._node.then(
                Node(
                    name,
                    partial(JoinSide, joined, is_left, another.store.name),
                    (another.store,),
                    on_changes=True,
                    in_order=kind != "inner",
                )
            )
            for is_left, one, another in ((True, self, other), (False, other, self))
        ]
        return kept_table(self._app, sides, store, self.store.key, serde, persistent)

    def _refuse_windows(self, what: str) -> None:
        if self.store.kind != "timestamped_key_value":
            raise TopologyError(
                f"{what}: {self.store.name!r} is a {self.store.plain_kind} store, and only tables of the newest value "
                "of each key can be taken: go on with .to_stream()."
            )


def kept_table(app: App, nodes: list[Node], store: str, key: Serde, value: Serde, persistent: bool) -> Table:
    """The table of what these nodes give, changes whose old values are not known yet."""
    definition = app.operators_store(stores.timestamped_key_value(store, key=key, value=value, persistent=persistent))
    keep = Node(f"keep {store}", partial(Keep, store), (definition,))
    for node in nodes:
        node.then(keep)
    return Table(app, keep, definition)


def refuse_other_keys(what: str, key: Serde, table: StoreDefinition) -> None:
    """Raise `TopologyError` unless the table has keys of this type."""
    if key.name != table.key.name:
        raise TopologyError(
            f"{what} has keys of type {key.name}, and {table.name!r} of type {table.key.name}: join what has the same "
            "keys, or change one with .select_key(…).repartition(…) first."
        )
