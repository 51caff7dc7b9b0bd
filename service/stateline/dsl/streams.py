"""`Stream`, `Table`, and their grouped and windowed forms, named as in Kafka Streams (docs/streams.md).

Each method adds an operator to the graph (`stateline.model.nodes`) and returns the stream or table behind it. They
share a module, because streams make tables and tables make streams.
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

_JOINABLE_STORES = ("key_value", "timestamped_key_value", "versioned")

KeyValueFunction = Callable[[Any, Any], Any]
ChangelogSettings = Mapping[str, object] | None
"""Settings of a store's changelog, for `StoreDefinition.with_logging`."""
Joiner = Callable[[Any, Any], Any]
"""Takes the left value, then the right one, and returns the result. None is no result."""


@says_where
class Stream:
    """Rows with a key, a value and a timestamp, in the order of their partition. Each method declares a step. Functions
    get (key, value). After a crash they may be called again for the same record.

    After a step that changes the key (`map`, `select_key`, `flat_map`, `process`), call `repartition` before you group
    or join the rows or keep them in a table.
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
        """Keep the rows for which the predicate is true."""
        check_function("filter", predicate, "key", "value", role="predicate")
        return self._step("filter", partial(Filter, "filter", predicate, True))

    def filter_not(self, predicate: KeyValueFunction) -> Stream:
        """Drop the rows for which the predicate is true."""
        check_function("filter_not", predicate, "key", "value", role="predicate")
        return self._step("filter_not", partial(Filter, "filter_not", predicate, False))

    def peek(self, action: KeyValueFunction) -> Stream:
        """Call the function for each row, and pass the rows on."""
        check_function("peek", action, "key", "value", role="action")
        return self._step("peek", partial(Peek, "peek", action))

    def map_values(self, mapper: KeyValueFunction, *, value: Serde | None = None) -> Stream:
        """Replace each value. The new values have the type `value`, by default the same as before."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        serde = self._declarations.in_flight(value or self.value, "value")
        return self._step("map_values", partial(MapValues, "map_values", mapper, serde), value=serde)

    def flat_map_values(self, mapper: Callable[[Any, Any], Iterable[Any]], *, value: Serde | None = None) -> Stream:
        """Replace each row with one row for each value that the function returns."""
        check_function("flat_map_values", mapper, "key", "value", role="mapper", may_yield=True)

        @wraps(mapper)
        def pairs(key: Any, old: Any) -> Iterable[tuple[Any, Any]]:
            return [(key, new) for new in several(mapper(key, old), mapper)]

        return self._flat("flat_map_values", pairs, self.key, value or self.value, rekeyed=self._rekeyed)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, key: Serde | None = None, value: Serde | None = None
    ) -> Stream:
        """Replace each row with the (key, value) that the function returns."""
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
        """Replace each row with every (key, value) that the function returns."""
        check_function("flat_map", mapper, "key", "value", role="mapper", may_yield=True)
        return self._flat("flat_map", mapper, key or self.key, value or self.value, rekeyed=True)

    def select_key(self, mapper: KeyValueFunction, *, key: Serde | None = None) -> Stream:
        """Replace the key of each row."""
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
        """Call a function that reads and writes stores (Kafka Streams' `KStream.process`).

        The function gets an `InputRecord` with the topic, partition and offset of the input record. Then it gets one
        view for each of `stores`, and a `context` if it has that parameter. It returns one (key, value) or a list of
        them, or yields each. None is no row. ``record._replace(…)`` sets another timestamp. `key` and `value` are the
        types of the new rows, by default the same as before.

        Rows come in the partition's order, and see the writes of earlier rows. If the function raises, its writes are
        undone.
        """
        return self._process("process", function, stores, key or self.key, value or self.value, values_only=False)

    def process_values(
        self,
        function: Callable[..., Iterable[Any] | None],
        *,
        stores: Sequence[StoreDefinition] = (),
        value: Serde | None = None,
    ) -> Stream:
        """Call a function like that of `process`, which returns values only (Kafka Streams' `KStream.processValues`).
        Keys and timestamps stay, so no `repartition` is needed."""
        return self._process("process_values", function, stores, self.key, value or self.value, values_only=True)

    def merge(self, other: Stream) -> Stream:
        """Combine two streams of the same types, in the order of their timestamps. Rows of one topic keep its order.
        The input topics need equal partition counts."""
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
        """Write the rows to an existing topic. A name that is not declared yet gets this stream's types."""
        target = self._declarations.topic_or_new("to", topic, self.key, self.value)
        self._declarations.claim_outputs("`to`", [target])
        self._node.then(
            OperatorNode(f"to {target.name}", partial(TopicSink, f"to {target.name}", target), forwards=(target,))
        )

    def repartition(self, name: str, *, partitions: int | None = None) -> Stream:
        """Send the rows through the topic ``<application.id>-<name>-repartition``, so that one partition has all rows
        of a key. By default the topic has as many partitions as the topics that it is joined with, or else as the
        input."""
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
        """Join each row whose key is in the table. `joiner` gets the row's value and the table's value. The result has
        the type `value`, by default the row's, and the row's timestamp.

        The table is a `Table` or the result of `app.table(…)`. A versioned table gives the value at the row's
        timestamp. Rows without a key or a value are dropped and counted. Records of both inputs are taken in the order
        of their timestamps. The input topics need equal partition counts. Raises `TopologyError` after a step that
        changed the key, and for keys of another type.

        A `GlobalTable` gives the value that the worker has by then. `on` returns the key to look up from (key, value),
        None for no key. The row's own key may be missing, changed or of another type.
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
        """Join like `join`, and keep rows whose key is not in the table: `joiner` gets None for the table's value."""
        return self._join("left_join", table, joiner, value, on, left=True)

    def to_table(
        self, store: str | None = None, *, persistent: bool = True, changelog: ChangelogSettings = None
    ) -> Table:
        """Keep the newest row of each key in a store. By default its name is generated (`Declarations.store_name`).

        A row without a value deletes its key. A row without a key is dropped and counted. `changelog` has settings of
        the changelog, for `StoreDefinition.with_logging`. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("to_table")
        store = self._declarations.store_name(store, "KSTREAM-TOTABLE")
        name = f"to_table {store}"
        node = self._node.then(OperatorNode(name, partial(NewestOfEachKey, name)))
        definition = stores.timestamped_key_value(store, key=self.key, value=self.value, persistent=persistent)
        return _kept_table(self._declarations, [node], definition, changelog)

    def group_by_key(self) -> GroupedStream:
        """Group the rows by their key. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("group_by_key")
        return GroupedStream(self._declarations, self._node, self.key, self.value)

    def group_by(self, mapper: KeyValueFunction, *, name: str, key: Serde | None = None) -> GroupedStream:
        """Group the rows by another key: `select_key`, then `repartition` under this name."""
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
        if definition.kind not in _JOINABLE_STORES or (not isinstance(table, Table) and definition.source is None):
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
        name = f"{what} {getattr(function, '__name__', type(function).__name__)}"  # also of a lambda and a partial
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
    """Aggregates by key, each kept in a store and served under its name. By default the name is generated
    (`Declarations.store_name`). `changelog` has settings of the changelog, for `StoreDefinition.with_logging`.

    Rows without a key or a value are left out and counted. ``processing.exception.handler`` handles a function that
    raises."""

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde) -> None:
        self._declarations, self._node = declarations, node
        self.key, self.value = key, value

    def count(self, store: str | None = None, *, persistent: bool = True, changelog: ChangelogSettings = None) -> Table:
        """Count the rows of each key, as int64."""
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        return self._table("count", store, partial(Count, store), serdes.int64, persistent, changelog)

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Combine the values of each key with ``reducer(reduced, value)``. The first value is kept unchanged. A result
        of None deletes the key."""
        check_function("reduce", reducer, "reduced", "value", role="reducer")
        store = self._declarations.store_name(store, "KSTREAM-REDUCE")
        value = self._declarations.in_store(store, self.value)
        fold = partial(Fold, f"reduce {store}", store, reducing(value, reducer))
        return self._table("reduce", store, fold, value, persistent, changelog)

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
        """Aggregate the rows of each key with ``adder(key, value, aggregate)``, from ``initial()`` on. `value` is the
        aggregate's type. A result of None deletes the key. The function may change its argument."""
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder")
        store = self._declarations.store_name(store, "KSTREAM-AGGREGATE")
        folding = Aggregating(self._declarations.in_store(store, value), initial, adder)
        fold = partial(Fold, f"aggregate {store}", store, folding)
        return self._table("aggregate", store, fold, value, persistent, changelog)

    def windowed_by(self, windows: AnyWindows) -> WindowedStream:
        """Group by key and window: `TumblingWindows`, `HoppingWindows`, `SlidingWindows` or `SessionWindows`."""
        return WindowedStream(self._declarations, self._node, self.key, self.value, windows)

    def _table(
        self,
        what: str,
        store: str,
        make: Callable[..., Any],
        value: Serde,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        definition = stores.timestamped_key_value(store, key=self.key, value=value, persistent=persistent)
        return _kept_table(self._declarations, [self._node], definition, changelog, what, make)


@says_where
class Table:
    """The newest value of each key. Queries and processors read it from `store`.

    Each derived table has its own store, by default with a generated name (`Declarations.store_name`). Its rows have
    the newest timestamp of their inputs. `changelog` has settings of the changelog, for `StoreDefinition.with_logging`.
    Functions may be called again for the same change.
    """

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, store: StoreDefinition) -> None:
        self._declarations, self._node = declarations, node
        self.store = store

    def to_stream(self) -> Stream:
        """Return the changes as rows: the new value, or None for a deleted key. If a key changes several times within
        one slice of input, only the last change is a row, as with Kafka Streams' record cache."""
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
        """Keep the keys for which the predicate is true of (key, value)."""
        return self._filtered("filter", predicate, True, store, persistent, changelog)

    def filter_not(
        self,
        predicate: Callable[[Any, Any], object],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Drop the keys for which the predicate is true of (key, value)."""
        return self._filtered("filter_not", predicate, False, store, persistent, changelog)

    def map_values(
        self,
        mapper: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Replace each value with what the function returns for (key, value), of the type `value` (by default the same
        as before). A result of None deletes the key."""
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
        """Join the keys that both tables have. `joiner` gets this table's value and the other's. The result has the
        type `value`, by default this table's.

        Raises `TopologyError` unless both keep the newest value of each key, with keys of one type. The worker refuses
        to start unless the input topics have equal partition counts.
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
        """Join all keys of this table: `joiner` gets None for a value that the other table lacks. Else like `join`."""
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
        """Join the keys of both tables: `joiner` gets None for a value that one of them lacks. Else like `join`."""
        return self._joined("outer", other, joiner, store, value, persistent, changelog)

    def _filtered(
        self,
        what: str,
        predicate: Callable[[Any, Any], object],
        wanted: bool,
        store: str | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        check_function(what, predicate, "key", "value", role="predicate")
        store = self._declarations.store_name(store, "KTABLE-FILTER")

        def kept(key: Any, value: Any, data: bytes) -> bytes | None:
            return data if bool(refuse_unrun(predicate(key, value))) is wanted else None

        return self._mapped(what, kept, store, self.store.value, persistent, changelog)

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
        mapped = self._node.then(OperatorNode(name, make, on_changes=True))
        definition = stores.timestamped_key_value(store, key=self.store.key, value=value, persistent=persistent)
        return _kept_table(self._declarations, [mapped], definition, changelog)

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
        definition = stores.timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
        return _kept_table(self._declarations, sides, definition, changelog)

    def _refuse_windows(self, what: str) -> None:
        if self.store.kind != "timestamped_key_value":
            raise TopologyError(
                f"{what}: {self.store.name!r} is a {self.store.plain_kind} store. Only tables of the newest value "
                "of each key can be used here. Use .to_stream()."
            )


def _kept_table(
    declarations: Declarations,
    parents: Sequence[OperatorNode | Root],
    store: StoreDefinition,
    changelog: ChangelogSettings,
    what: str = "keep",
    make: Callable[..., Any] | None = None,
) -> Table:
    kept = declarations.operators_store(store, changelog)
    node = OperatorNode(f"{what} {kept.name}", make or partial(Keep, kept.name), (kept,))
    for parent in parents:
        parent.then(node)
    return Table(declarations, node, kept)


def _refuse_other_keys(what: str, key: Serde, table: StoreDefinition) -> None:
    if key.name != table.key.name:
        raise TopologyError(
            f"{what} has keys of type {key.name}, and {table.name!r} of type {table.key.name}: join what has the same "
            "keys, or change one with .select_key(…).repartition(…) first."
        )


@says_where
class WindowedStream:
    """Aggregates by key and window, each kept in a store like those of `GroupedStream`.

    Rows without a key, and rows too late for their window, are left out and counted. Sliding windows also leave out
    rows without a value; elsewhere functions get None for the value.

    `retention` is how long the store keeps a window after stream time has passed its start (a session: its end). The
    default is as long as records may still go into the window. A smaller one raises `InvalidArgumentError`.
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
        """Count the rows of each key and window, as int64."""
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
        """Combine the values of each key and window with ``reducer(reduced, value)``. The first value is kept
        unchanged. A result of None deletes the window's value."""
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
        """Aggregate the rows of each key and window with ``adder(key, value, aggregate)``, from ``initial()`` on.
        `value` is the aggregate's type. A result of None deletes the aggregate. A function may change its argument.

        If a row joins sessions, ``merger(key, one, other)`` combines them, from ``initial()`` on, before the row is
        added. Raises `InvalidArgumentError` for sessions without a merger, and for other windows with one.
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
class _WindowChanges:
    def __init__(
        self, declarations: Declarations, node: OperatorNode, store: StoreDefinition, windows: AnyWindows
    ) -> None:
        self._declarations, self._node = declarations, node
        self.store, self.windows = store, windows

    def to_stream(self) -> Stream:
        """Return the changes as rows, with keys of `serdes.windowed` or `serdes.session_windowed`. The value is the new
        one, or None for a session that was merged into another. If a window changes several times within one slice of
        input, only the last change is a row, as with Kafka Streams' record cache.

        Timestamps are the largest of each window, or a session's end. Final results come in the order in which their
        windows close. Java's windowed deserializers read the keys from a topic whose key is `serdes.time_windowed`.
        """
        wrap = serdes.session_windowed if isinstance(self.windows, SessionWindows) else serdes.windowed
        key = wrap(self.store.key)
        node = self._node.then(OperatorNode("to_stream", partial(ToStream, key, self.store.value)))
        return Stream(self._declarations, node, key, self.store.value)


@says_where
class WindowedTable(_WindowChanges):
    """An aggregate for each key and window. Queries and processors read it from `store`."""

    def suppress(self, until: UntilWindowCloses) -> FinalResults:
        """Emit the final value of each window once, when it closes: ``suppress(until_window_closes())``.

        A window closes when the stream time of its partition passes its end plus the grace. Until a later record closes
        it, there is no result. With ``processing.guarantee=exactly_once_v2`` each result is emitted exactly once;
        without it, a crash may repeat results. Windows that closed before this was declared are not emitted.
        """
        if not isinstance(until, UntilWindowCloses):
            raise InvalidArgumentError(f"suppress({shown(until)}): until_window_closes() is accepted.")
        node = OperatorNode(f"final {self.store.name}", partial(EmitFinal, self.store.name, self.windows))
        return FinalResults(self._declarations, self._node.then(node), self.store, self.windows)


class FinalResults(_WindowChanges):
    """The result of `WindowedTable.suppress`. `store` also holds the windows that are not final."""
