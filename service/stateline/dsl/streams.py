"""`Stream`, `Table`, and their grouped and windowed forms, named as in Kafka Streams (docs/streams.md).

Each method adds an operator to the graph (`stateline.model.nodes`) and returns the stream or table behind it. They
share a module, because streams make tables and tables make streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

from stateline import serdes, stores
from stateline.dsl.cogrouped import Aggregator, CogroupedStream, Merged
from stateline.dsl.declarations import Declarations
from stateline.dsl.foreign_keys import join_by_foreign_key
from stateline.dsl.grouped_tables import GroupedTable
from stateline.dsl.joiners import Joiner, joiner_of
from stateline.dsl.outputs import ChooseTopic, output
from stateline.dsl.stream_joins import join_of_streams
from stateline.dsl.suppressed import checked_bounds, suppressed
from stateline.dsl.table_kinds import history_of, kept_rows
from stateline.dsl.table_lookups import Grace, look_up
from stateline.dsl.windowed_stores import windowed_store
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.join_windows import JoinWindows
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import GlobalTable, StoreDefinition
from stateline.model.topic import Topic
from stateline.model.windows import (
    AnyWindows,
    OnWindowClose,
    SessionWindows,
    SlidingWindows,
    UntilTimeLimit,
    UntilWindowCloses,
    Windows,
    refuse_unlimited,
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
    KeepVersions,
    LatestVersions,
    MapTable,
    MapValues,
    Merge,
    NewestOfEachKey,
    Peek,
    ProcessRows,
    SessionAggregate,
    SlidingAggregate,
    StreamTableJoin,
    ToStream,
    TransformTable,
    WindowCount,
    WindowFold,
)
from stateline.processing.operators.folding import Aggregating, Counting, Folding, reducing
from stateline.serde.change import ChangeSerde
from stateline.serde.plain import Serde, check_serde, shown
from stateline.stores import timestamped_key_value
from stateline_store import InvalidArgumentError, TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.joins import JoinKind
    from stateline.processing.operators.topic_sinks import Partitioner

KeyValueFunction = Callable[[Any, Any], Any]
ChangelogSettings = Mapping[str, object] | None
"""Settings of a store's changelog, for `StoreDefinition.with_logging`."""


@says_where
class Stream:
    """Rows with a key, a value and a timestamp, in the order of their partition. Each method declares a step. Functions
    get (key, value). After a crash they may be called again for the same record.

    After a step that changes the key (`map`, `select_key`, `flat_map`, `process`), call `repartition` before you group
    or join the rows or keep them in a table. With ``topology.auto.repartition`` this is done for you.
    """

    def __init__(
        self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde, *, rekeyed: bool = False
    ) -> None:
        check_serde(key)
        check_serde(value)
        self._declarations, self._node = declarations, node
        self.key, self.value = key, value
        self._rekeyed = rekeyed

    def named(self, name: str) -> Stream:
        """Name the last step, in figures, drawings, logs and dead letters (Kafka Streams' `Named.as`). Names of stores
        and topics stay. Raises `TopologyError` for a name that another step or processor has."""
        self._declarations.name_step(self._node, name)
        return self

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
        """Combine two streams of the same types. Rows of one topic keep its order. If a later step has a store, rows
        come in the order of their timestamps, and the input topics need equal partition counts."""
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

    def to(
        self,
        topic: str | Topic | ChooseTopic,
        *,
        topics: Sequence[str | Topic] = (),
        partitioner: Partitioner | None = None,
    ) -> None:
        """Write the rows to an existing topic. A name that is not declared yet gets this stream's types.

        Or give a function that returns the topic, or its name, of each row: from (key, value), or from (key, value,
        record), where `record` is an `InputRecord` with the row's timestamp and headers. `topics` are those that it may
        return, as far as you know them: a test driver creates them, and the console shows them. If a topic does not
        exist, ``production.exception.handler`` handles the row.

        `partitioner` chooses the partition from (topic, key, value, number of partitions), from 0 on. It returns
        a number, a list of numbers, or None for the partition of the key. With an empty list, the row is dropped and
        counted.
        """
        self._node.then(output(self._declarations, topic, topics, partitioner, self.key, self.value))

    def repartition(
        self, name: str, *, partitions: int | None = None, partitioner: Partitioner | None = None
    ) -> Stream:
        """Send the rows through the topic ``<application.id>-<name>-repartition``, so that one partition has all rows
        of a key. By default the topic has as many partitions as the topics that it is joined with, or else as the
        input. `partitioner`: see `to`. It must return one partition for all rows of a key."""
        topic = self._declarations.repartition(name, key=self.key, value=self.value, partitions=partitions)
        self._declarations.claim_repartition(topic)
        self.to(topic, partitioner=partitioner)
        return Stream(self._declarations, self._declarations.stream_root(topic), topic.key, topic.value)

    def join(
        self,
        other: Table | StoreDefinition | GlobalTable | Stream,
        joiner: Joiner,
        *,
        value: Serde | None = None,
        on: KeyValueFunction | None = None,
        grace: timedelta | None = None,
        within: JoinWindows | None = None,
        store: str | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Stream:
        """Join each row whose key is in the table. `joiner` gets the row's value and the table's value. If it has three
        parameters, the row's key comes first. The result has the type `value`, by default the row's, and the row's
        timestamp.

        The table is a `Table` or the result of `app.table(…)`. A versioned table gives the value at the row's
        timestamp. Rows without a key or a value are dropped and counted. Records of both inputs are taken in the order
        of their timestamps. The input topics need equal partition counts. Raises `TopologyError` after a step that
        changed the key, and for keys of another type.

        `grace` is how late older versions of a versioned table may come: rows wait for so long in stream time, in the
        key-value store ``<store>-Buffer``. Then they meet the version of their own time. A row that is later than
        `grace` does not wait. Raises `TopologyError` for a table that keeps no versions, or not for so long.

        A `GlobalTable` gives the value that the worker has by then. `on` returns the key to look up from (key, value),
        None for no key. The row's own key may be missing, changed or of another type.

        **Another stream.** `within` is how far apart in time two rows of a key may be: ``JoinWindows(timedelta(
        minutes=5))``. Each pair is a row, with the larger timestamp of both. `joiner` gets this stream's value and the
        other's. Each side has a window store: ``<store>-this-join-store`` and ``<store>-other-join-store``, by default
        with generated names. `persistent` and `changelog` are theirs (`StoreDefinition.with_logging`). Rows without a
        key or a value are dropped and counted.
        """
        if isinstance(other, Stream) or within is not None:
            return self._join_stream("inner", other, joiner, value, within, store, persistent, changelog)
        held = None if grace is None else Grace(grace, self.value, store, persistent, changelog)
        return self._join("join", other, joiner, value, on, held)

    def left_join(
        self,
        other: Table | StoreDefinition | GlobalTable | Stream,
        joiner: Joiner,
        *,
        value: Serde | None = None,
        on: KeyValueFunction | None = None,
        grace: timedelta | None = None,
        within: JoinWindows | None = None,
        store: str | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Stream:
        """Join like `join`, and keep rows whose key is not in the table: `joiner` gets None for the table's value.

        **Another stream.** A row of this stream without a partner leaves once, with its own timestamp, when no partner
        can come any more: stream time is more than ``after + grace`` behind it. Until then it is in the store
        ``<store>-left-shared-join-store``. A row without a key leaves at once.
        """
        if isinstance(other, Stream) or within is not None:
            return self._join_stream("left", other, joiner, value, within, store, persistent, changelog)
        held = None if grace is None else Grace(grace, self.value, store, persistent, changelog)
        return self._join("left_join", other, joiner, value, on, held)

    def outer_join(
        self,
        other: Stream,
        joiner: Joiner,
        *,
        within: JoinWindows,
        value: Serde | None = None,
        store: str | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Stream:
        """Join another stream like `left_join`, and keep rows of both sides without a partner: `joiner` gets None for
        the missing value."""
        return self._join_stream("outer", other, joiner, value, within, store, persistent, changelog)

    def to_table(
        self,
        store: str | None = None,
        *,
        versioned: timedelta | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Keep the newest row of each key in a store. By default its name is generated (`Declarations.store_name`).
        With `versioned`, a versioned store keeps every row of that period, by its timestamp.

        A row without a value deletes its key. A row without a key is dropped and counted. `changelog` has settings of
        the changelog, for `StoreDefinition.with_logging`. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("to_table")
        store = self._declarations.store_name(store, "KSTREAM-TOTABLE")
        name = f"to_table {store}"
        node = self._by_key(store)._node.then(OperatorNode(name, partial(NewestOfEachKey, name, versioned is not None)))
        definition = kept_rows(store, self.key, self.value, versioned, persistent=persistent)
        return _kept_table(self._declarations, [node], definition, changelog)

    def group_by_key(self) -> GroupedStream:
        """Group the rows by their key. Raises `TopologyError` after a step that changed the key."""
        self._refuse_rekeyed("group_by_key")
        return GroupedStream(self._declarations, self._node, self.key, self.value, rekeyed=self._rekeyed)

    def group_by(self, mapper: KeyValueFunction, *, name: str, key: Serde | None = None) -> GroupedStream:
        """Group the rows by another key: `select_key`, then `repartition` under this name."""
        check_function("group_by", mapper, "key", "value", role="mapper")
        return self.select_key(mapper, key=key).repartition(name).group_by_key()

    def _join_stream(
        self,
        kind: JoinKind,
        other: object,
        joiner: Joiner,
        value: Serde | None,
        within: JoinWindows | None,
        store: str | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Stream:
        what = "join" if kind == "inner" else f"{kind}_join"
        if not isinstance(other, Stream):
            raise wrong_kind(f"{what} with within=…", other, "stream")
        for stream in (self, other):
            stream._refuse_rekeyed(what)
        if self.key.name != other.key.name:
            raise TopologyError(
                f"{what}: the streams have keys of type {self.key.name} and {other.key.name}. Change one with "
                ".select_key(…).repartition(…) first."
            )
        if store is None and (self._rekeyed or other._rekeyed):
            raise TopologyError(f"{what} after a changed key: give store=…, which also names the repartition topics.")
        left, right = self._by_key(f"{store}-left"), other._by_key(f"{store}-right")
        called = joiner_of(what, joiner, self.key, "other_value")
        serde = self._declarations.in_flight(value or self.value, "value")
        node = join_of_streams(
            self._declarations, kind, ((left._node, left.value), (right._node, right.value)), self.key, called, within,
            serde, store, persistent=persistent, changelog=changelog,
        )  # fmt: skip
        return Stream(self._declarations, node, self.key, serde)

    def _join(
        self,
        what: str,
        table: Table | StoreDefinition | GlobalTable,
        joiner: Joiner,
        value: Serde | None,
        on: KeyValueFunction | None,
        grace: Grace | None,
    ) -> Stream:
        if not isinstance(table, Table | StoreDefinition | GlobalTable):
            raise wrong_kind(what, table, "table or stream to join")
        if (on is None) == isinstance(table, GlobalTable):
            raise TopologyError(f"{what}: a global table, and only such a one, needs `on`: the key to look under.")
        if grace is not None and isinstance(table, GlobalTable):
            raise TopologyError(f"{what}: grace={grace.time!r} needs a table with versions. A global table has none.")
        self._declarations.refuse_others(what, table if isinstance(table, StoreDefinition) else table.store)
        called = joiner_of(what, joiner, self.key, "table_value")
        if on is not None:
            check_function(what, on, "key", "value", role="on")
        serde = self._declarations.in_flight(value or self.value, "value")
        if isinstance(table, GlobalTable):
            name = f"{what} {table.store.name}"
            make = partial(StreamTableJoin, name, table.store, called, serde, what == "left_join", on)
            node = self._node.then(OperatorNode(name, make, global_table=table.store))
            return Stream(self._declarations, node, self.key, serde, rekeyed=self._rekeyed)
        self._refuse_rekeyed(what)
        definition = table.store if isinstance(table, Table) else table
        _refuse_other_keys("The stream", self.key, definition)
        moved = self._by_key((grace and grace.store) or f"{definition.name}-{what.replace('_', '-')}")
        node = look_up(self._declarations, moved._node, what, definition, called, serde, grace)
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
        if self._rekeyed and not self._declarations.auto_repartition:
            raise TopologyError(
                f"Before {what} the key was changed, so rows of one key are in several partitions: "
                'call .repartition("a-name") first.'
            )

    def _by_key(self, name: str) -> Stream:
        """Return this stream with the rows of a key in one partition, through a topic of this name if it must be. Steps
        with one name share the topic of a stream, as in Kafka Streams."""
        if not self._rekeyed:
            return self
        if self._declarations.moved.get(name) is self._node:
            topic = self._declarations.repartition(name, self.key, self.value)
            return Stream(self._declarations, self._declarations.stream_root(topic), topic.key, topic.value)
        moved = self.repartition(name)
        self._declarations.moved[name] = self._node
        return moved


@says_where
class GroupedStream:
    """Aggregates by key, each kept in a store and served under its name. By default the name is generated
    (`Declarations.store_name`). `changelog` has settings of the changelog, for `StoreDefinition.with_logging`.

    Rows without a key or a value are left out and counted. ``processing.exception.handler`` handles a function that
    raises."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde, *, rekeyed: bool = False
    ) -> None:
        self._declarations = declarations
        self.key, self.value = key, value
        self._rows = Stream(declarations, node, key, value, rekeyed=rekeyed)

    @property
    def _node(self) -> OperatorNode | Root:
        """Where the rows come from, for `cogroup`, whose several inputs cannot have the name of one store."""
        if self._rows._rekeyed:
            raise TopologyError('Before cogroup the key was changed: call .repartition("a-name") before the grouping.')
        return self._rows._node

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

    def cogroup(self, aggregator: Aggregator) -> CogroupedStream[Table, WindowedTable]:
        """Aggregate this stream together with others: ``grouped.cogroup(f).cogroup(other_grouped, g).aggregate(…)``.
        The aggregator of each stream gets (key, value, aggregate)."""
        here = self._declarations, self.key, self.value

        def plain(node: OperatorNode) -> Callable[..., Table]:
            return GroupedStream(here[0], node, *here[1:]).aggregate

        def windowed(node: OperatorNode, windows: AnyWindows) -> Callable[..., WindowedTable]:
            return WindowedStream(here[0], node, *here[1:], windows).aggregate

        return CogroupedStream(self._declarations, self.key, ((self._node, aggregator),), Merged(plain, windowed))

    def windowed_by(self, windows: AnyWindows) -> WindowedStream:
        """Group by key and window: `TumblingWindows`, `HoppingWindows`, `SlidingWindows`, `SessionWindows` or
        `UnlimitedWindows`."""
        return WindowedStream(
            self._declarations, self._rows._node, self.key, self.value, windows, rekeyed=self._rows._rekeyed
        )

    def _table(
        self,
        what: str,
        store: str,
        make: Callable[..., Any],
        value: Serde,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Table:
        rows = self._rows._by_key(store)
        return _aggregated(self._declarations, rows._node, self.key, what, store, make, value, persistent, changelog)


@says_where
class Table:
    """The newest value of each key, or all versions of some time. Queries and processors read it from `store`.

    `filter`, `filter_not` and `map_values` of a versioned table keep versions for the same time. Joins and `group_by`
    take its newest values, by timestamp: a change with a smaller one than the newest of its key does nothing there.
    `to_stream` gives every change.

    Each derived table has its own store, by default with a generated name (`Declarations.store_name`). Its rows have
    the newest timestamp of their inputs. `changelog` has settings of the changelog, for `StoreDefinition.with_logging`.
    Functions may be called again for the same change.
    """

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, store: StoreDefinition) -> None:
        self._declarations, self._node = declarations, node
        self.store = store

    def named(self, name: str) -> Table:
        """Name the last step, as `Stream.named`."""
        self._declarations.name_step(self._node, name)
        return self

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

    def transform_values(
        self,
        function: Callable[..., Any],
        store: str | None = None,
        *,
        stores: Sequence[StoreDefinition] = (),
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Replace each value with what a function returns that reads and writes stores (Kafka Streams'
        `KTable.transformValues`). It gets an `InputRecord`, then one view for each of `stores`, then a `context` if it
        has that parameter. It is called for deleted keys, too: their value is None. A result of None deletes the key.

        With stores, it sees each change of a key, also within one slice of input. If it fails, its writes are undone.
        """
        self._refuse_windows("transform_values")
        given, _ = self._declarations.arguments("transform_values", function, "record", stores)
        store = self._declarations.store_name(store, "KTABLE-TRANSFORMVALUES")
        serde, name = self._declarations.in_store(store, value or self.store.value), f"transform_values {store}"
        make = partial(TransformTable, name, function, given, self.store, serde)
        node = OperatorNode(name, make, given, on_changes=True, in_order=bool(given), shares_stores=True)
        definition = timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
        return _kept_table(self._declarations, [self._node.then(node)], definition, changelog)

    def group_by(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any] | None],
        *,
        name: str,
        key: Serde | None = None,
        value: Serde | None = None,
        partitions: int | None = None,
    ) -> GroupedTable[Table]:
        """Group the rows by another key: the mapper returns the group's key and the row's value in the group from
        (key, value). `key` and `value` are their types, by default this table's. Rows for which it returns None, or
        None as key or value, are in no group. It must return the same for the same row each time.

        Changes go through the topic ``<application.id>-<name>-repartition``, as Kafka Streams writes it. By default it
        has as many partitions as the input."""
        self._refuse_windows("group_by", versions=True)
        rows = ChangeSerde(value or self.store.value)
        topic = self._declarations.repartition(name, key or self.store.key, rows, partitions=partitions)
        return GroupedTable(self._declarations, self._of_latest(), self.store, mapper, topic, _aggregated)

    def join(
        self,
        other: Table,
        joiner: Joiner,
        store: str | None = None,
        *,
        on: KeyValueFunction | None = None,
        name: str | None = None,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Join the keys that both tables have. `joiner` gets this table's value and the other's. If it has three
        parameters, the key comes first. The result has the type `value`, by default this table's.

        Raises `TopologyError` unless both keep the newest value of each key, with keys of one type. The worker refuses
        to start unless the input topics have equal partition counts.

        **By foreign key.** `on` returns the other table's key from (key, value), None for no key. It must return the
        same for the same row each time. The result has this table's keys, and changes with either table. `name` is that
        of the two topics between the tables, ``<application.id>-<name>-subscription-registration-topic`` and
        ``…-subscription-response-topic``, and of the store ``<name>-subscription-store``. The tables may have keys of
        other types, and topics of other partition counts.
        """
        return self._joined("inner", other, joiner, store, value, persistent, changelog, on, name)

    def left_join(
        self,
        other: Table,
        joiner: Joiner,
        store: str | None = None,
        *,
        on: KeyValueFunction | None = None,
        name: str | None = None,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Table:
        """Join all keys of this table: `joiner` gets None for a value that the other table lacks. Else like `join`."""
        return self._joined("left", other, joiner, store, value, persistent, changelog, on, name)

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

    def suppress(
        self,
        until: UntilTimeLimit,
        *,
        name: str | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: Literal["emit", "stop"] = "emit",
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> SuppressedTable:
        """Hold back the changes of each key, and emit the last one: ``suppress(until_time_limit(timedelta(hours=1)))``.

        A key's change leaves when stream time has passed the timestamp of the key's first waiting change by this time.
        It has its own timestamp and headers. Without later records, nothing leaves. Deletes leave too.

        Changes wait in the key-value store ``<name>-store``, by default with a generated name, in Kafka Streams' bytes.
        `max_records` and `max_bytes` (keys, values, headers and times) bound it in each partition. If it is full, the
        changes that have waited longest leave early; with ``when_full="stop"`` the worker ends with a `RecordError`.
        Raises `TopologyError` for a table of versions, `InvalidArgumentError` for other arguments.
        """
        if not isinstance(until, UntilTimeLimit):
            raise InvalidArgumentError(f"suppress({shown(until)}) of a table: until_time_limit(…) is accepted.")
        self._refuse_windows("suppress")
        bounds = checked_bounds(max_records, max_bytes, when_full)
        node, store = suppressed(
            self._declarations, self._node, self.store, name, until, bounds, persistent=persistent, changelog=changelog
        )
        return SuppressedTable(self._declarations, node, self.store, store)

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
        self._refuse_windows(what, versions=True)
        name = f"{what} {store}"
        make = partial(MapTable, name, function, self.store.key, self.store.value)
        mapped = self._node.then(OperatorNode(name, make, on_changes=True))
        definition = kept_rows(store, self.store.key, value, history_of(self.store), persistent=persistent)
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
        on: KeyValueFunction | None = None,
        join_name: str | None = None,
    ) -> Table:
        what = "join" if kind == "inner" else f"{kind}_join"
        if not isinstance(other, Table):
            raise wrong_kind(what, other, "table")
        self._declarations.refuse_others("join", other.store)
        self._refuse_windows("join", versions=True)
        other._refuse_windows("join", versions=True)
        called = joiner_of(what, joiner, self.store.key, "other_value")
        if on is not None:
            check_function(what, on, "key", "value", role="on")
            store = self._declarations.store_name(store, "KTABLE-FK-JOIN-OUTPUT")
            serde = self._declarations.in_store(store, value or self.store.value)
            both = (self._of_latest(), self.store), (other._of_latest(), other.store)
            node = join_by_foreign_key(
                self._declarations, what, both, on, called, serde, join_name, is_left=kind == "left"
            )
            definition = stores.timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
            return _kept_table(self._declarations, [node], definition, changelog)
        if join_name is not None:
            raise TopologyError(f"{what}: name={join_name!r} is for a join by foreign key. Give `on`, too.")
        _refuse_other_keys(f"Table {self.store.name!r}", self.store.key, other.store)
        store = self._declarations.store_name(store, "KTABLE-MERGE")
        name, serde = f"join {store}", self._declarations.in_store(store, value or self.store.value)
        joined = Joined(name, kind, called, self.store.value, other.store.value, serde, store)
        sides = [
            one._of_latest().then(
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

    def _of_latest(self) -> OperatorNode | Root:
        """Return what gives the changes of the newest values."""
        if self.store.kind != "versioned":
            return self._node
        return self._node.then(OperatorNode(f"latest of {self.store.name}", LatestVersions))

    def _refuse_windows(self, what: str, *, versions: bool = False) -> None:
        if self.store.kind != "timestamped_key_value" and not (versions and self.store.kind == "versioned"):
            raise TopologyError(
                f"{what}: {self.store.name!r} is a {self.store.plain_kind} store. Only tables of the newest value "
                "of each key can be used here. Use .to_stream()."
            )


@says_where
class SuppressedTable:
    """The result of `Table.suppress`. Queries and processors read from `store` what is held back: `BufferedChange`."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode, table: StoreDefinition, store: StoreDefinition
    ) -> None:
        self._declarations, self._node, self._table, self.store = declarations, node, table, store

    def to_stream(self) -> Stream:
        """Return the changes that leave as rows: the new value, or None for a deleted key. `to_table` keeps them."""
        return Table(self._declarations, self._node, self._table).to_stream()


def _kept_table(
    declarations: Declarations,
    parents: Sequence[OperatorNode | Root],
    store: StoreDefinition,
    changelog: ChangelogSettings,
    what: str = "keep",
    make: Callable[..., Any] | None = None,
) -> Table:
    kept = declarations.operators_store(store, changelog)
    keep = KeepVersions if kept.kind == "versioned" else Keep
    node = OperatorNode(f"{what} {kept.name}", make or partial(keep, kept.name), (kept,))
    for parent in parents:
        parent.then(node)
    return Table(declarations, node, kept)


def _aggregated(
    declarations: Declarations,
    node: OperatorNode | Root,
    key: Serde,
    what: str,
    store: str,
    make: Callable[..., Any],
    value: Serde,
    persistent: bool,
    changelog: ChangelogSettings,
) -> Table:
    definition = stores.timestamped_key_value(store, key=key, value=value, persistent=persistent)
    return _kept_table(declarations, [node], definition, changelog, what, make)


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
    default is as long as records may still go into the window. A smaller one raises `InvalidArgumentError`. Unlimited
    windows take none.
    """

    def __init__(
        self,
        declarations: Declarations,
        node: OperatorNode | Root,
        key: Serde,
        value: Serde,
        windows: AnyWindows,
        *,
        rekeyed: bool = False,
    ) -> None:
        if not isinstance(windows, Windows) or type(windows) is Windows:
            raise InvalidArgumentError(
                f"windowed_by({shown(windows)}): TumblingWindows, HoppingWindows, SlidingWindows, SessionWindows or "
                "UnlimitedWindows are accepted."
            )
        self._declarations = declarations
        self.key, self.value, self.windows = key, value, windows
        self._rows = Stream(declarations, node, key, value, rekeyed=rekeyed)
        self._is_final = False

    def emit_strategy(self, strategy: OnWindowClose) -> WindowedStream:
        """Have the tables emit the final value of each window once: ``emit_strategy(on_window_close())``. The rows are
        those of `WindowedTable.suppress`."""
        if not isinstance(strategy, OnWindowClose):
            raise InvalidArgumentError(f"emit_strategy({shown(strategy)}): on_window_close() is accepted.")
        refuse_unlimited("emit_strategy", self.windows)
        made = copy(self)
        made._is_final = True
        return made

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
        common: dict[str, Any] = {"key": self.key, "value": value, "persistent": persistent}
        definition = windowed_store(store, self.windows, retention, **common)
        name = f"{what} {store}"
        definition = self._declarations.operators_store(definition, changelog)
        node = OperatorNode(name, self._operator(name, store, folding), (definition,))
        node = self._rows._by_key(store)._node.then(node)
        table = WindowedTable(self._declarations, node, definition, self.windows)
        return table._of_final() if self._is_final else table

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

    _is_final = False

    def suppress(self, until: UntilWindowCloses) -> FinalResults:
        """Emit the final value of each window once, when it closes: ``suppress(until_window_closes())``.

        A window closes when the stream time of its partition passes its end plus the grace. Until a later record closes
        it, there is no result. With ``processing.guarantee=exactly_once_v2`` each result is emitted exactly once;
        without it, a crash may repeat results. Windows that closed before this was declared are not emitted.
        """
        if not isinstance(until, UntilWindowCloses):
            raise InvalidArgumentError(f"suppress({shown(until)}): until_window_closes() is accepted.")
        refuse_unlimited("suppress", self.windows)
        node = self._node if self._is_final else self._then_final()
        return FinalResults(self._declarations, node, self.store, self.windows)

    def _of_final(self) -> WindowedTable:
        """Return the table whose changes are the results of `suppress`."""
        table = WindowedTable(self._declarations, self._then_final(), self.store, self.windows)
        table._is_final = True
        return table

    def _then_final(self) -> OperatorNode:
        name = f"final {self.store.name}"
        return self._node.then(OperatorNode(name, partial(EmitFinal, self.store.name, self.windows)))


class FinalResults(_WindowChanges):
    """The result of `WindowedTable.suppress`. `store` also holds the windows that are not final."""
