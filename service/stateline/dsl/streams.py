"""`Stream`, `Table`, and their grouped and windowed forms, named as in Kafka Streams (docs/streams.md).

Each method adds an operator to the graph (`stateline.model.nodes`) and returns the stream or table behind it. They
share a module, because streams make tables and tables make streams. Steps from rows to rows are in `stream_steps`,
those from tables to tables in `table_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from stateline import serdes
from stateline.dsl.cogrouped import Aggregator, CogroupedStream, Merged
from stateline.dsl.declarations import Declarations
from stateline.dsl.joiners import Joiner, joiner_of
from stateline.dsl.kept_tables import ChangelogSettings, aggregated, kept_table, refuse_other_keys
from stateline.dsl.named_steps import NamedStep
from stateline.dsl.stream_joins import join_of_streams
from stateline.dsl.stream_steps import KeyValueFunction, StreamSteps
from stateline.dsl.suppressed import checked_bounds, suppressed
from stateline.dsl.table_kinds import kept_rows
from stateline.dsl.table_lookups import Grace, look_up
from stateline.dsl.table_steps import TableSteps
from stateline.dsl.windowed_stores import windowed_store
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.java_names import HintsAtJavaNames
from stateline.model.join_windows import JoinWindows
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import GlobalTable, StoreDefinition
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
from stateline.processing.operators import (
    Count,
    EmitFinal,
    Fold,
    NewestOfEachKey,
    SessionAggregate,
    SlidingAggregate,
    StreamTableJoin,
    ToStream,
    WindowCount,
    WindowFold,
)
from stateline.processing.operators.folding import Aggregating, Counting, Folding, reducing
from stateline.serde.plain import Serde, shown
from stateline_store import InvalidArgumentError, TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.joins import JoinKind


@says_where
class Stream(StreamSteps):
    """Rows with a key, a value and a timestamp, in the order of their partition. Each method declares a step. Functions
    get (key, value). After a crash they may be called again for the same record.

    After a step that changes the key (`map`, `select_key`, `flat_map`, `process`), call `repartition` before you group
    or join the rows or keep them in a table. With ``topology.auto.repartition`` this is done for you.
    """

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
        return self._join("inner", other, joiner, value, on, grace, within, store, persistent, changelog)

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
        return self._join("left", other, joiner, value, on, grace, within, store, persistent, changelog)

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
        return kept_table(Table, self._declarations, [node], definition, changelog)

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
            raise wrong_kind(f"{what} with within=…", other, "stream to join")
        self._declarations.refuse_other_application(what, other._declarations)
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
        kind: Literal["inner", "left"],
        other: Table | StoreDefinition | GlobalTable | Stream,
        joiner: Joiner,
        value: Serde | None,
        on: KeyValueFunction | None,
        grace: timedelta | None,
        within: JoinWindows | None,
        store: str | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Stream:
        """Join a stream or a table, and refuse arguments that this one would ignore."""
        what = "join" if kind == "inner" else "left_join"
        if isinstance(other, Stream) or within is not None:
            if on is not None:
                raise TopologyError(
                    f"{what} of two streams: on=… is for a global table. Use .select_key(…).repartition(…) first."
                )
            if grace is not None:
                raise TopologyError(
                    f"{what} of two streams: the grace is part of the windows: JoinWindows(…, grace=…)."
                )
            return self._join_stream(kind, other, joiner, value, within, store, persistent, changelog)
        if grace is None and (store is not None or changelog is not None or not persistent):
            raise TopologyError(
                f"{what} with a table: store, persistent and changelog are for rows that wait. Give grace=…, too, or "
                "leave them out."
            )
        held = None if grace is None else Grace(grace, self.value, store, persistent, changelog)
        return self._join_table(what, other, joiner, value, on, held)

    def _join_table(
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
        if on is None and isinstance(table, GlobalTable):
            raise TopologyError(f"{what} with a global table: give on=…, a function of (key, value) for the key there.")
        if on is not None and not isinstance(table, GlobalTable):
            raise TopologyError(
                f"{what}: on=… is only for global tables. Use .select_key(…).repartition(…) first, and leave out on=…."
            )
        if grace is not None and isinstance(table, GlobalTable):
            raise TopologyError(f"{what}: grace={grace.time!r} needs a table with versions. A global table has none.")
        self._declarations.refuse_others(what, table if isinstance(table, StoreDefinition) else table.store)
        if isinstance(table, Table):
            self._declarations.refuse_other_application(what, table._declarations)
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
        refuse_other_keys("The stream", self.key, definition)
        moved = self._by_key((grace and grace.store) or f"{definition.name}-{what.replace('_', '-')}")
        node = look_up(self._declarations, moved._node, what, definition, called, serde, grace)
        return Stream(self._declarations, node, self.key, serde)


@says_where
class GroupedStream(HintsAtJavaNames):
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
        check_function("reduce", reducer, "reduced", "value", role="reducer", must_return=True)
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
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder", must_return=True)
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
        return aggregated(
            Table, self._declarations, rows._node, self.key, what, store, make, value, persistent, changelog
        )


@says_where
class Table(TableSteps):
    """The newest value of each key, or all versions of some time. Queries and processors read it from `store`.

    `filter`, `filter_not` and `map_values` of a versioned table keep versions for the same time. Joins and `group_by`
    take its newest values, by timestamp: a change with a smaller one than the newest of its key does nothing there.
    `to_stream` gives every change.

    Each derived table has its own store, by default with a generated name (`Declarations.store_name`). Its rows have
    the newest timestamp of their inputs. `changelog` has settings of the changelog, for `StoreDefinition.with_logging`.
    Functions may be called again for the same change.
    """

    def to_stream(self) -> Stream:
        """Return the changes as rows: the new value, or None for a deleted key. If a key changes several times within
        one slice of input, only the last change is a row, as with Kafka Streams' record cache."""
        node = self._node.then(OperatorNode("to_stream", partial(ToStream, self.store.key, self.store.value)))
        return Stream(self._declarations, node, self.store.key, self.store.value)

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
            raise InvalidArgumentError(
                f"suppress({shown(until)}): this table has no windows. Only until_time_limit(…) is accepted."
            )
        self._refuse_windows("suppress")
        bounds = checked_bounds(max_records, max_bytes, when_full)
        node, store = suppressed(
            self._declarations, self._node, self.store, name, until, bounds, persistent=persistent, changelog=changelog
        )
        return SuppressedTable(self._declarations, node, self.store, store)


@says_where
class SuppressedTable(NamedStep):
    """The result of `Table.suppress`. Queries and processors read from `store` what is held back: `BufferedChange`."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode, table: StoreDefinition, store: StoreDefinition
    ) -> None:
        self._declarations, self._node, self._table, self.store = declarations, node, table, store

    def to_stream(self) -> Stream:
        """Return the changes that leave as rows: the new value, or None for a deleted key. `to_table` keeps them."""
        return Table(self._declarations, self._node, self._table).to_stream()


@says_where
class WindowedStream(HintsAtJavaNames):
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
        check_function("reduce", reducer, "reduced", "value", role="reducer", must_return=True)
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
        if merger is None and isinstance(self.windows, SessionWindows):
            raise InvalidArgumentError(
                "Sessions need `merger=f(key, one, other)`: a late row can connect two sessions."
            )
        if merger is not None and not isinstance(self.windows, SessionWindows):
            raise InvalidArgumentError(f"Only sessions take `merger=`. These windows are {self.windows}.")
        check_function("aggregate", initial, role="initial")
        check_function("aggregate", adder, "key", "value", "aggregate", role="adder", must_return=True)
        if merger is not None:
            check_function("aggregate", merger, "key", "one", "other", role="merger", must_return=True)
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
class _WindowChanges(NamedStep):
    _node: OperatorNode

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
        final = self._then_final()
        final.named_with = (self._node,)
        table = WindowedTable(self._declarations, final, self.store, self.windows)
        table._is_final = True
        return table

    def _then_final(self) -> OperatorNode:
        name = f"final {self.store.name}"
        return self._node.then(OperatorNode(name, partial(EmitFinal, self.store.name, self.windows)))


class FinalResults(_WindowChanges):
    """The result of `WindowedTable.suppress`. `store` also holds the windows that are not final."""
