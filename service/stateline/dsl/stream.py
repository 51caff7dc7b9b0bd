"""Stream: records of a topic, and what is made of them one by one (Kafka Streams' `KStream`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline.dsl.function_checks import check_function, declared_at
from stateline.dsl.grouped import GroupedStream
from stateline.dsl.table import Joiner, Table, kept_table, refuse_other_keys
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.global_table import GlobalTable
from stateline.model.nodes import Node, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topic
from stateline.processing.operators.stateless import Filter, FlatMap, MapValues, Merge, Peek
from stateline.processing.operators.stream_table_join import StreamTableJoin
from stateline.processing.operators.table_steps import NewestOfEachKey
from stateline.processing.operators.topic_sink import TopicSink
from stateline.serde.plain import Serde, check_serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.dsl.app import App

# The kinds of stores that a row can be joined with.
_LOOKED_UP = ("key_value", "timestamped_key_value", "versioned")

KeyValueFunction = Callable[[Any, Any], Any]


class Stream:
    """Rows with a key, a value and a timestamp, of one partition of a topic in its order. Every method declares a step
    and returns what comes of it; functions get (key, value), and may be called again for the same record after a crash.

    A step that changes the key (`map`, `select_key`, `flat_map`) makes it necessary to bring the rows of a key together
    again, by `repartition`, before they are grouped, joined or kept in a table.
    """

    def __init__(self, app: App, node: Node | Root, key: Serde, value: Serde, *, rekeyed: bool = False) -> None:
        check_serde(key)
        check_serde(value)
        self._app, self._node = app, node
        self.key, self.value = key, value
        self._rekeyed = rekeyed

    def filter(self, predicate: KeyValueFunction) -> Stream:
        """The rows for which it is true."""
        check_function("filter", predicate, "key", "value", role="predicate")
        return self._step("filter", partial(Filter, "filter", predicate, True))

    def filter_not(self, predicate: KeyValueFunction) -> Stream:
        """The rows for which it is not."""
        check_function("filter_not", predicate, "key", "value", role="predicate")
        return self._step("filter_not", partial(Filter, "filter_not", predicate, False))

    def peek(self, action: KeyValueFunction) -> Stream:
        """The same rows; the function is called for each."""
        check_function("peek", action, "key", "value", role="action")
        return self._step("peek", partial(Peek, "peek", action))

    def map_values(self, mapper: KeyValueFunction, *, value: Serde | None = None) -> Stream:
        """The rows with other values, of the type `value` (else as they were)."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        serde = value or self.value
        return self._step("map_values", partial(MapValues, "map_values", mapper, serde), value=serde)

    def flat_map_values(self, mapper: Callable[[Any, Any], Iterable[Any]], *, value: Serde | None = None) -> Stream:
        """For each row those with the values that the function gives."""
        check_function("flat_map_values", mapper, "key", "value", role="mapper", may_yield=True)

        def pairs(key: Any, old: Any) -> Iterable[tuple[Any, Any]]:
            return [(key, new) for new in mapper(key, old)]

        return self._flat("flat_map_values", pairs, self.key, value or self.value, rekeyed=self._rekeyed)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, key: Serde | None = None, value: Serde | None = None
    ) -> Stream:
        """The rows as other (key, value)."""
        check_function("map", mapper, "key", "value", role="mapper")
        return self._flat("map", lambda *row: (mapper(*row),), key or self.key, value or self.value, rekeyed=True)

    def flat_map(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        key: Serde | None = None,
        value: Serde | None = None,
    ) -> Stream:
        """For each row those (key, value) that the function gives."""
        check_function("flat_map", mapper, "key", "value", role="mapper", may_yield=True)
        return self._flat("flat_map", mapper, key or self.key, value or self.value, rekeyed=True)

    def select_key(self, mapper: KeyValueFunction, *, key: Serde | None = None) -> Stream:
        """The rows under another key."""
        check_function("select_key", mapper, "key", "value", role="mapper")
        return self._flat("select_key", lambda k, v: ((mapper(k, v), v),), key or self.key, self.value, rekeyed=True)

    def merge(self, other: Stream) -> Stream:
        """The rows of both, which have the same types, in the order of their timestamps (of those of one topic, in the
        topic's order). The topics that they come from need equal partition counts."""
        if not isinstance(other, Stream):
            raise wrong_kind("merge", other, "stream")
        if (self.key.name, self.value.name) != (other.key.name, other.value.name):
            raise TopologyError(
                f"A stream of ({self.key.name}, {self.value.name}) cannot be merged with one of "
                f"({other.key.name}, {other.value.name}): bring both to the same types first."
            )
        node = Node("merge", Merge, in_order=True)
        self._node.then(node)
        other._node.then(node)
        return Stream(self._app, node, self.key, self.value, rekeyed=self._rekeyed or other._rekeyed)

    def to(self, topic: str | Topic) -> None:
        """Write the rows to a topic, which exists; a name that was not declared yet gets this stream's types."""
        target = self._app.declared_topic("to", topic, self.key, self.value)
        self._app.claim_outputs(f"to at {declared_at()}", [target])
        self._node.then(Node(f"to {target.name}", partial(TopicSink, f"to {target.name}", target), forwards=(target,)))

    def repartition(self, name: str, *, partitions: int | None = None) -> Stream:
        """The same rows through the topic ``<application.id>-<name>-repartition``, so that those of a key are together
        again. It has `partitions`, else as many as the topics that it is joined with, else as those that the rows come
        from."""
        topic = self._app.repartition(name, key=self.key, value=self.value, partitions=partitions)
        self._app.claim_repartition(topic)
        self.to(topic)
        return self._app.stream(topic)

    def join(
        self,
        table: Table | StoreDefinition | GlobalTable,
        joiner: Joiner,
        *,
        value: Serde | None = None,
        on: KeyValueFunction | None = None,
    ) -> Stream:
        """Each row whose key is in the table, with what `joiner` makes of (the row's value, the table's value then), of
        the type `value` (else as it was). The timestamp stays.

        The table is a `Table`, or what `app.table(…)` returned; of a versioned one the value is that of the row's
        timestamp. Rows without a key or a value are dropped and counted. Records of the topics that rows and table come
        from are taken in the order of their timestamps; they need equal partition counts. Raises `TopologyError` after
        a step that changed the key, and for keys of another type.

        Of a `GlobalTable` none of this holds: each row is joined with what the worker has of it by then, under the key
        that `on` makes of (key, value), None for none. The row's own key may be missing, changed or of another type.
        """
        return self._join("join", table, joiner, value, on, left=False)

    def left_join(
        self,
        table: Table | StoreDefinition | GlobalTable,
        joiner: Joiner,
        *,
        value: Serde | None = None,
        on: KeyValueFunction | None = None,
    ) -> Stream:
        """As `join`, with every row that has a value: `joiner` gets None where the table has none."""
        return self._join("left_join", table, joiner, value, on, left=True)

    def to_table(self, store: str, *, persistent: bool = True) -> Table:
        """The newest row of each key, kept in a store of this name; a row without a value deletes its key, one without
        a key is dropped and counted. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("to_table")
        name = f"to_table {store}"
        node = self._node.then(Node(name, partial(NewestOfEachKey, name)))
        return kept_table(self._app, [node], store, self.key, self.value, persistent)

    def group_by_key(self) -> GroupedStream:
        """The rows grouped by their key. Raises `TopologyError` after a step that changed it."""
        self._refuse_rekeyed("group_by_key")
        return GroupedStream(self._app, self._node, self.key, self.value)

    def group_by(self, mapper: KeyValueFunction, *, name: str, key: Serde | None = None) -> GroupedStream:
        """The rows grouped by another key: `select_key`, then `repartition` under this name."""
        check_function("group_by", mapper, "key", "value", role="mapper")
        return self.select_key(mapper, key=key).repartition(name).group_by_key()

    def _join(
        self,
        what: str,
        table: Table | StoreDefinition | GlobalTable,
        joiner: Joiner,
        value: Serde | None,
        on: KeyValueFunction | None,
        *,
        left: bool,
    ) -> Stream:
        if not isinstance(table, Table | StoreDefinition | GlobalTable):
            raise wrong_kind(what, table, "table to join")
        if (on is None) == isinstance(table, GlobalTable):
            raise TopologyError(f"{what}: a global table, and only such a one, needs `on`: the key to look under.")
        self._app.refuse_others(what, table if isinstance(table, StoreDefinition) else table.store)
        check_function(what, joiner, "value", "table_value", role="joiner")
        if on is not None:
            check_function(what, on, "key", "value", role="on")
        serde = value or self.value
        if isinstance(table, GlobalTable):
            name = f"{what} {table.store.name}"
            make = partial(StreamTableJoin, name, table.store, joiner, serde, left, on)
            return Stream(self._app, self._node.then(Node(name, make)), self.key, serde, rekeyed=self._rekeyed)
        self._refuse_rekeyed(what)
        definition = table.store if isinstance(table, Table) else table
        if definition.kind not in _LOOKED_UP or (not isinstance(table, Table) and definition.source is None):
            raise TopologyError(
                f"{what}: {definition.name!r} is no table of the values of keys: pass a Table, or what app.table(…) "
                "returned."
            )
        refuse_other_keys("The stream", self.key, definition)
        name = f"{what} {definition.name}"
        make = partial(StreamTableJoin, name, definition, joiner, serde, left, None)
        node = self._node.then(Node(name, make, (definition,), looks_up=definition, in_order=True))
        return Stream(self._app, node, self.key, serde)

    def _step(self, name: str, make: Callable[..., Any], *, value: Serde | None = None) -> Stream:
        node = self._node.then(Node(name, make))
        return Stream(self._app, node, self.key, value or self.value, rekeyed=self._rekeyed)

    def _flat(
        self, name: str, mapper: Callable[..., Iterable[tuple[Any, Any]]], key: Serde, value: Serde, *, rekeyed: bool
    ) -> Stream:
        node = self._node.then(Node(name, partial(FlatMap, name, mapper, key, value)))
        return Stream(self._app, node, key, value, rekeyed=rekeyed)

    def _refuse_rekeyed(self, what: str) -> None:
        if self._rekeyed:
            raise TopologyError(
                f"Before {what} the key was changed, so rows of one key are in several partitions: "
                'call .repartition("a-name") first.'
            )
