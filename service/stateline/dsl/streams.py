"""`Stream`, `Table` and what comes of them: Kafka Streams' `KStream`, `KTable`, `KGroupedStream`,
`TimeWindowedKStream`, `SessionWindowedKStream` and ``KTable<Windowed<K>, V>`` (docs/streams.md).

Each method adds an operator to the graph that the declarations keep (`stateline.model.nodes`) and gives what follows on
it. All in one module, since streams make tables, and tables make streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from stateline import serdes, stores
from stateline.dsl.declarations import Declarations
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import GlobalTable, StoreDefinition
from stateline.model.topic import Topic
from stateline.model.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    UntilWindowCloses,
    Windows,
    retention_of,
)
from stateline.processing.function_results import refuse_unrun, several, written
from stateline.processing.operators import (
    Count,
    EmitFinal,
    Filter,
    FlatMap,
    Fold,
    Joined,
    JoinSide,
    Keep,
    MapTable,
    MapValues,
    Merge,
    NewestOfEachKey,
    Peek,
    ProcessRows,
    SessionAggregate,
    SlidingAggregate,
    StreamTableJoin,
    TopicSink,
    ToStream,
    WindowCount,
    WindowFold,
)
from stateline.processing.operators.folding import Aggregating, Counting, Folding, reducing
from stateline.serde.plain import Serde, check_serde, shown
from stateline_store import InvalidArgumentError, TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.joins import JoinKind

# The kinds of stores that a row can be joined with.
_LOOKED_UP = ("key_value", "timestamped_key_value", "versioned")

KeyValueFunction = Callable[[Any, Any], Any]


ChangelogSettings = Mapping[str, object] | None
"""Of the changelog of an operator's store, as `StoreDefinition.with_logging` takes them; None as ever."""
Joiner = Callable[[Any, Any], Any]
"""Of two values, the left one first, what the result is; None for none."""


@says_where
class Stream:
    """Rows with a key, a value and a timestamp, of one partition of a topic in its order. Every method declares a step
    and returns what comes of it; functions get (key, value), and may be called again for the same record after a crash.

    A step that changes the key (`map`, `select_key`, `flat_map`) makes it necessary to bring the rows of a key together
    again, by `repartition`, before they are grouped, joined or kept in a table.
    """

    def __init__(
        self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde, *, rekeyed: bool = False
    ) -> None:
        check_serde(key)
        check_serde(value)
        self._declarations, self._node = declarations, node
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
        serde = self._declarations.in_flight(value or self.value, "value")
        return self._step("map_values", partial(MapValues, "map_values", mapper, serde), value=serde)

    def flat_map_values(self, mapper: Callable[[Any, Any], Iterable[Any]], *, value: Serde | None = None) -> Stream:
        """For each row those with the values that the function gives."""
        check_function("flat_map_values", mapper, "key", "value", role="mapper", may_yield=True)

        @wraps(mapper)
        def pairs(key: Any, old: Any) -> Iterable[tuple[Any, Any]]:
            return [(key, new) for new in several(mapper(key, old), mapper)]

        return self._flat("flat_map_values", pairs, self.key, value or self.value, rekeyed=self._rekeyed)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, key: Serde | None = None, value: Serde | None = None
    ) -> Stream:
        """The rows as other (key, value)."""
        check_function("map", mapper, "key", "value", role="mapper")
        one = wraps(mapper)(lambda *row: (mapper(*row),))
        return self._flat("map", one, key or self.key, value or self.value, rekeyed=True)

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

    def process(
        self,
        function: Callable[..., Iterable[Any] | None],
        *,
        stores: Sequence[StoreDefinition] = (),
        key: Serde | None = None,
        value: Serde | None = None,
    ) -> Stream:
        """For each row those that the function gives of a record and its stores (Kafka Streams' `KStream.process`).

        It gets the row as an `InputRecord` (topic, partition and offset are those of the record that it was made of),
        then one view for each of `stores`, and a `context` if it names one. It returns one (key, value), returns a list
        of them, or yields each; ``record._replace(…)`` has another timestamp. They are of the types `key` and `value`
        (else as they were); None is no row.
        Rows come in the partition's order, and find in the stores what earlier ones put. The writes of one that fails
        are undone. The key may have changed, so rows are brought together by `repartition` before they are grouped.
        """
        return self._process("process", function, stores, key or self.key, value or self.value, values_only=False)

    def process_values(
        self,
        function: Callable[..., Iterable[Any] | None],
        *,
        stores: Sequence[StoreDefinition] = (),
        value: Serde | None = None,
    ) -> Stream:
        """As `process`, of a function that gives values: keys and timestamps stay, so that no `repartition` is needed
        (Kafka Streams' `KStream.processValues`)."""
        return self._process("process_values", function, stores, self.key, value or self.value, values_only=True)

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
        node = OperatorNode("merge", Merge, in_order=True)
        self._node.then(node)
        other._node.then(node)
        return Stream(self._declarations, node, self.key, self.value, rekeyed=self._rekeyed or other._rekeyed)

    def to(self, topic: str | Topic) -> None:
        """Write the rows to a topic, which exists; a name that was not declared yet gets this stream's types."""
        target = self._declarations.topic_or_new("to", topic, self.key, self.value)
        self._declarations.claim_outputs("`to`", [target])
        self._node.then(
            OperatorNode(f"to {target.name}", partial(TopicSink, f"to {target.name}", target), forwards=(target,))
        )

    def repartition(self, name: str, *, partitions: int | None = None) -> Stream:
        """The same rows through the topic ``<application.id>-<name>-repartition``, so that those of a key are together
        again. It has `partitions`, else as many as the topics that it is joined with, else as those that the rows come
        from."""
        topic = self._declarations.repartition(name, key=self.key, value=self.value, partitions=partitions)
        self._declarations.claim_repartition(topic)
        self.to(topic)
        return Stream(self._declarations, self._declarations.stream_root(topic), topic.key, topic.value)

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

    def to_table(
        self, store: str | None = None, *, persistent: bool = True, changelog: ChangelogSettings = None
    ) -> Table:
        """The newest row of each key, kept in a store of this name, or of a generated one (`Declarations.store_name`);
        a row without a value deletes its key, one without a key is dropped and counted. `changelog` are settings of its
        changelog, as of `StoreDefinition.with_logging`. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("to_table")
        store = self._declarations.store_name(store, "KSTREAM-TOTABLE")
        name = f"to_table {store}"
        node = self._node.then(OperatorNode(name, partial(NewestOfEachKey, name)))
        return _kept_table(self._declarations, [node], store, self.key, self.value, persistent, changelog)

    def group_by_key(self) -> GroupedStream:
        """The rows grouped by their key. Raises `TopologyError` after a step that changed it."""
        self._refuse_rekeyed("group_by_key")
        return GroupedStream(self._declarations, self._node, self.key, self.value)

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
        self._declarations.refuse_others(what, table if isinstance(table, StoreDefinition) else table.store)
        check_function(what, joiner, "value", "table_value", role="joiner")
        if on is not None:
            check_function(what, on, "key", "value", role="on")
        serde = self._declarations.in_flight(value or self.value, "value")
        if isinstance(table, GlobalTable):
            name = f"{what} {table.store.name}"
            make = partial(StreamTableJoin, name, table.store, joiner, serde, left, on)
            node = self._node.then(OperatorNode(name, make, global_table=table.store))
            return Stream(self._declarations, node, self.key, serde, rekeyed=self._rekeyed)
        self._refuse_rekeyed(what)
        definition = table.store if isinstance(table, Table) else table
        if definition.kind not in _LOOKED_UP or (not isinstance(table, Table) and definition.source is None):
            raise TopologyError(
                f"{what}: {definition.name!r} is no table of the values of keys: pass a Table, or what app.table(…) "
                "returned."
            )
        _refuse_other_keys("The stream", self.key, definition)
        name = f"{what} {definition.name}"
        make = partial(StreamTableJoin, name, definition, joiner, serde, left, None)
        node = self._node.then(OperatorNode(name, make, (definition,), looks_up=definition, in_order=True))
        return Stream(self._declarations, node, self.key, serde)

    def _process(
        self,
        what: str,
        function: Callable[..., Iterable[Any] | None],
        stores: Sequence[StoreDefinition],
        key: Serde,
        value: Serde,
        *,
        values_only: bool,
    ) -> Stream:
        given, _ = self._declarations.arguments(what, function, "record", stores, may_yield=True)
        key, value = self._declarations.in_flight(key, "key"), self._declarations.in_flight(value, "value")
        name = f"{what} {getattr(function, '__name__', type(function).__name__)}"  # of a lambda, and a partial, too
        make = partial(ProcessRows, name, function, given, key, value, values_only)
        node = self._node.then(OperatorNode(name, make, given, in_order=bool(given), shares_stores=True))
        return Stream(self._declarations, node, key, value, rekeyed=self._rekeyed or not values_only)

    def _step(self, name: str, make: Callable[..., Any], *, value: Serde | None = None) -> Stream:
        node = self._node.then(OperatorNode(name, make))
        return Stream(self._declarations, node, self.key, value or self.value, rekeyed=self._rekeyed)

    def _flat(
        self, name: str, mapper: Callable[..., Iterable[tuple[Any, Any]]], key: Serde, value: Serde, *, rekeyed: bool
    ) -> Stream:
        key, value = self._declarations.in_flight(key, "key"), self._declarations.in_flight(value, "value")
        node = self._node.then(OperatorNode(name, partial(FlatMap, name, mapper, key, value)))
        return Stream(self._declarations, node, key, value, rekeyed=rekeyed)

    def _refuse_rekeyed(self, what: str) -> None:
        if self._rekeyed:
            raise TopologyError(
                f"Before {what} the key was changed, so rows of one key are in several partitions: "
                'call .repartition("a-name") first.'
            )


@says_where
class GroupedStream:
    """Aggregates are kept in a store of the name that is given, else of a generated one (`Declarations.store_name`),
    and served under it; `changelog` are settings of its changelog, as of `StoreDefinition.with_logging`. Rows without a
    key or without a value are left out and counted; a function that raises is handled by
    ``processing.exception.handler``."""

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde) -> None:
        self._declarations, self._node = declarations, node
        self.key, self.value = key, value

    def count(self, store: str | None = None, *, persistent: bool = True, changelog: ChangelogSettings = None) -> Table:
        """How many rows each key has had, as int64."""
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        definition = stores.timestamped_key_value(store, key=self.key, value=serdes.int64, persistent=persistent)
        kept = self._declarations.operators_store(definition, changelog)
        return self._table(OperatorNode(f"count {store}", partial(Count, store), (kept,)))

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """The values of each key made one, ``reducer(what there was, value)``; the first one is taken as it is. None
        deletes what there was."""
        check_function("reduce", reducer, "reduced", "value", role="reducer")
        store = self._declarations.store_name(store, "KSTREAM-REDUCE")
        value = self._declarations.in_store(store, self.value)
        return self._folded(f"reduce {store}", store, reducing(value, reducer), value, persistent, changelog)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """What ``adder(key, value, aggregate)`` makes of the rows of each key, beginning with ``initial()``; `value` is
        the aggregate's type. None deletes it. A function may change the aggregate that it is given."""
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder")
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        folding = Aggregating(self._declarations.in_store(store, value), initial, adder)
        return self._folded(f"aggregate {store}", store, folding, value, persistent, changelog)

    def windowed_by(self, windows: AnyWindows) -> WindowedStream:
        """The rows by key and window: `TumblingWindows`, `HoppingWindows`, `SlidingWindows` or `SessionWindows`."""
        return WindowedStream(self._declarations, self._node, self.key, self.value, windows)

    def _folded(
        self,
        name: str,
        store: str,
        folding: Folding,
        value: Serde,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        definition = stores.timestamped_key_value(store, key=self.key, value=value, persistent=persistent)
        kept = self._declarations.operators_store(definition, changelog)
        return self._table(OperatorNode(name, partial(Fold, name, store, folding), (kept,)))

    def _table(self, node: OperatorNode) -> Table:
        return Table(self._declarations, self._node.then(node), node.stores[0])


@says_where
class Table:
    """`store` is where it is kept and served, and what processors read it by.

    What is made of it is kept in a store of its own, with the newest timestamp of what it was made of: of the name that
    is given, else of a generated one (`Declarations.store_name`). `changelog` are settings of its changelog, as of
    `StoreDefinition.with_logging`. Functions may be called again for the same change.
    """

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, store: StoreDefinition) -> None:
        self._declarations, self._node = declarations, node
        self.store = store

    def to_stream(self) -> Stream:
        """Its changes as rows: the new value, None for a key that was deleted. Of several changes of a key within one
        slice of input the last one, as Kafka Streams' record cache gives it."""
        node = self._node.then(OperatorNode("to_stream", partial(ToStream, self.store.key, self.store.value)))
        return Stream(self._declarations, node, self.store.key, self.store.value)

    def filter(
        self,
        predicate: Callable[[Any, Any], object],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """The keys for which it is true of (key, value)."""
        check_function("filter", predicate, "key", "value", role="predicate")
        store = self._declarations.store_name(store, "KTABLE-FILTER")
        return self._mapped(
            "filter",
            lambda k, v, data: data if refuse_unrun(predicate(k, v)) else None,
            store,
            self.store.value,
            persistent,
            changelog,
        )

    def filter_not(
        self,
        predicate: Callable[[Any, Any], object],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """The keys for which it is not."""
        check_function("filter_not", predicate, "key", "value", role="predicate")
        store = self._declarations.store_name(store, "KTABLE-FILTER")
        return self._mapped(
            "filter_not",
            lambda k, v, data: None if refuse_unrun(predicate(k, v)) else data,
            store,
            self.store.value,
            persistent,
            changelog,
        )

    def map_values(
        self,
        mapper: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Every key with what the function makes of (key, value), of the type `value` (else as it was); None for a key
        that has none then."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        store = self._declarations.store_name(store, "KTABLE-MAPVALUES")
        serde = self._declarations.in_store(store, value or self.store.value)
        return self._mapped(
            "map_values", lambda k, v, data: written(serde, mapper(k, v)), store, serde, persistent, changelog
        )

    def join(
        self,
        other: Table,
        joiner: Joiner,
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """The keys that both have, with what `joiner` makes of (own value, other's value), of the type `value` (else as
        this table's).

        Raises `TopologyError` unless both keep the newest values of keys of one type. Topics that they come from need
        equal partition counts: the worker refuses to start otherwise.
        """
        return self._joined("inner", other, joiner, store, value, persistent, changelog)

    def left_join(
        self,
        other: Table,
        joiner: Joiner,
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """As `join`, with all keys of this table: `joiner` gets None for a value that the other does not have."""
        return self._joined("left", other, joiner, store, value, persistent, changelog)

    def outer_join(
        self,
        other: Table,
        joiner: Joiner,
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """As `join`, with the keys of both: `joiner` gets None for the value that one of them does not have."""
        return self._joined("outer", other, joiner, store, value, persistent, changelog)

    def _mapped(
        self,
        what: str,
        function: Callable[[Any, Any, bytes], bytes | None],
        store: str,
        value: Serde,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        self._refuse_windows(what)
        name = f"{what} {store}"
        make = partial(MapTable, name, function, self.store.key, self.store.value)
        return _kept_table(
            self._declarations,
            [self._node.then(OperatorNode(name, make, on_changes=True))],
            store,
            self.store.key,
            value,
            persistent,
            changelog,
        )

    def _joined(
        self,
        kind: JoinKind,
        other: Table,
        joiner: Joiner,
        store: str | None,
        value: Serde | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        what = "join" if kind == "inner" else f"{kind}_join"
        if not isinstance(other, Table):
            raise wrong_kind(what, other, "table")
        self._declarations.refuse_others("join", other.store)
        self._refuse_windows("join")
        other._refuse_windows("join")
        _refuse_other_keys(f"Table {self.store.name!r}", self.store.key, other.store)
        check_function(what, joiner, "value", "other_value", role="joiner")
        store = self._declarations.store_name(store, "KTABLE-MERGE")
        name, serde = f"join {store}", self._declarations.in_store(store, value or self.store.value)
        joined = Joined(name, kind, joiner, self.store.value, other.store.value, serde, store)
        sides = [
            one._node.then(
                OperatorNode(
                    name,
                    partial(JoinSide, joined, is_left, another.store.name),
                    (another.store,),
                    on_changes=True,
                    in_order=kind != "inner",
                )
            )
            for is_left, one, another in ((True, self, other), (False, other, self))
        ]
        return _kept_table(self._declarations, sides, store, self.store.key, serde, persistent, changelog)

    def _refuse_windows(self, what: str) -> None:
        if self.store.kind != "timestamped_key_value":
            raise TopologyError(
                f"{what}: {self.store.name!r} is a {self.store.plain_kind} store. Only tables of the newest value "
                "of each key can be used here. Use .to_stream()."
            )


def _kept_table(
    declarations: Declarations,
    nodes: list[OperatorNode],
    store: str,
    key: Serde,
    value: Serde,
    persistent: bool,
    changelog: ChangelogSettings,
) -> Table:
    """The table of what these nodes give, changes whose old values are not known yet."""
    definition = declarations.operators_store(
        stores.timestamped_key_value(store, key=key, value=value, persistent=persistent), changelog
    )
    keep = OperatorNode(f"keep {store}", partial(Keep, store), (definition,))
    for node in nodes:
        node.then(keep)
    return Table(declarations, keep, definition)


def _refuse_other_keys(what: str, key: Serde, table: StoreDefinition) -> None:
    """Raise `TopologyError` unless the table has keys of this type."""
    if key.name != table.key.name:
        raise TopologyError(
            f"{what} has keys of type {key.name}, and {table.name!r} of type {table.key.name}: join what has the same "
            "keys, or change one with .select_key(…).repartition(…) first."
        )


@says_where
class WindowedStream:
    """Aggregates are kept in a store of windows, or of sessions, of the name that is given, else of a generated one,
    and served under it; `changelog` are settings of its changelog, as of `GroupedStream`.

    Rows without a key are left out and counted, and over sliding windows those without a value; over others these
    count, and functions get None for them. What comes too late for its window is left out and counted.

    `retention` says how long the store keeps a window after stream time has passed its start (a session: its end); at
    least, and unless given, as long as records may still go into it. A smaller one raises `InvalidArgumentError`.
    """

    def __init__(
        self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde, windows: AnyWindows
    ) -> None:
        if not isinstance(windows, Windows) or type(windows) is Windows:
            raise InvalidArgumentError(
                f"windowed_by({shown(windows)}): TumblingWindows, HoppingWindows, SlidingWindows or SessionWindows are "
                "accepted."
            )
        self._declarations, self._node = declarations, node
        self.key, self.value, self.windows = key, value, windows

    def count(
        self,
        store: str | None = None,
        *,
        retention: timedelta | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> WindowedTable:
        """How many rows each key has had in each window, as int64."""
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        return self._table("count", store, Counting(), serdes.int64, retention, persistent, changelog)

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        retention: timedelta | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> WindowedTable:
        """The values of each key and window made one, ``reducer(what there was, value)``; the first one is taken as it
        is. None deletes what there was."""
        check_function("reduce", reducer, "reduced", "value", role="reducer")
        store = self._declarations.store_name(store, "KSTREAM-REDUCE")
        value = self._declarations.in_store(store, self.value)
        return self._table("reduce", store, reducing(value, reducer), value, retention, persistent, changelog)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde,
        merger: Callable[[Any, Any, Any], Any] | None = None,
        retention: timedelta | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> WindowedTable:
        """What ``adder(key, value, aggregate)`` makes of the rows of each key and window, beginning with ``initial()``;
        `value` is the aggregate's type. None deletes it. A function may change the aggregate that it is given.

        Of sessions that a row joins ``merger(key, one, other)`` makes one, before the row is added; it gets what
        ``initial()`` gives first. Sessions need it, other windows have none: `InvalidArgumentError` else.
        """
        if (merger is not None) != isinstance(self.windows, SessionWindows):
            raise InvalidArgumentError(
                f"aggregate of {self.windows} with merger={merger!r}: sessions need one, to make one of two; other "
                "windows have none."
            )
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder")
        if merger is not None:
            check_function("aggregate", merger, "key", "one", "other", role="merger")
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        folding = Aggregating(self._declarations.in_store(store, value), initial, adder, merger)
        return self._table("aggregate", store, folding, value, retention, persistent, changelog)

    def _table(
        self,
        what: str,
        store: str,
        folding: Folding,
        value: Serde,
        retention: timedelta | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> WindowedTable:
        windows, kept = self.windows, retention_of(self.windows, retention, store)
        common: dict[str, Any] = {"key": self.key, "value": value, "persistent": persistent}
        if isinstance(windows, SessionWindows):
            definition = stores.session(store, retention=kept, timestamped=True, **common)
            definition = replace(definition, session_gap_ms=windows.gap_ms)
        else:
            size = windows.difference if isinstance(windows, SlidingWindows) else windows.size
            definition = stores.window(store, size=size, retention=kept, timestamped=True, **common)
        name = f"{what} {store}"
        definition = self._declarations.operators_store(definition, changelog)
        node = OperatorNode(name, self._operator(name, store, folding), (definition,))
        return WindowedTable(self._declarations, self._node.then(node), definition, windows)

    def _operator(self, name: str, store: str, folding: Folding) -> Callable[..., Any]:
        windows = self.windows
        if isinstance(windows, SessionWindows):
            return partial(SessionAggregate, name, store, windows, folding)
        if isinstance(windows, SlidingWindows):
            return partial(SlidingAggregate, name, store, windows, folding)
        if isinstance(folding, Counting):
            return partial(WindowCount, store, windows)
        return partial(WindowFold, name, store, windows, folding)


@says_where
class WindowedTable:
    """An aggregate for each key and window. `store` is where they are kept and served, and what processors read them
    by."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode, store: StoreDefinition, windows: AnyWindows
    ) -> None:
        self._declarations, self._node = declarations, node
        self.store, self.windows = store, windows

    def to_stream(self) -> Stream:
        """Its changes as rows, under keys of `serdes.windowed` or `serdes.session_windowed`: the new value, None for a
        session that was joined to another. Of several changes of a window within one slice of input the last one, as
        Kafka Streams' record cache gives it. Timestamps are the windows' largest, of a session its end.

        Java's windowed deserializers read windows' keys from a topic whose key is `serdes.time_windowed`.
        """
        return _windowed_stream(self._declarations, self._node, self.store, self.windows)

    def suppress(self, until: UntilWindowCloses) -> FinalResults:
        """The final value of each window, once, when it has closed: ``suppress(until_window_closes())``.

        A window closes when stream time, that of its partition's records, has gone past its end and the grace: one that
        no later record closes gives nothing. Exactly once with ``processing.guarantee=exactly_once_v2``; at least once
        without, after a crash perhaps again. What had closed before this was declared is not given.
        """
        if not isinstance(until, UntilWindowCloses):
            raise InvalidArgumentError(f"suppress({shown(until)}): until_window_closes() is accepted.")
        node = OperatorNode(f"final {self.store.name}", partial(EmitFinal, self.store.name, self.windows))
        return FinalResults(self._declarations, self._node.then(node), self.store, self.windows)


@says_where
class FinalResults:
    """What `WindowedTable.suppress` returns; `store` holds the windows that are not final, too."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode, store: StoreDefinition, windows: AnyWindows
    ) -> None:
        self._declarations, self._node = declarations, node
        self.store, self.windows = store, windows

    def to_stream(self) -> Stream:
        """The results as rows, as `WindowedTable.to_stream`, by the times at which they close."""
        return _windowed_stream(self._declarations, self._node, self.store, self.windows)


def _windowed_stream(
    declarations: Declarations, node: OperatorNode, store: StoreDefinition, windows: AnyWindows
) -> Stream:
    """Changes of windows as rows."""
    wrap = serdes.session_windowed if isinstance(windows, SessionWindows) else serdes.windowed
    key = wrap(store.key)
    return Stream(
        declarations, node.then(OperatorNode("to_stream", partial(ToStream, key, store.value))), key, store.value
    )
