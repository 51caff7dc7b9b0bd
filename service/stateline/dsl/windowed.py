"""WindowedStream and WindowedTable: aggregates by key and window (Kafka Streams' `TimeWindowedKStream`,
`SessionWindowedKStream` and ``KTable<Windowed<K>, V>``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline import serdes, stores
from stateline.dsl.function_checks import check_function
from stateline.model.nodes import Node, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    UntilWindowCloses,
    Windows,
    retention_of,
)
from stateline.processing.operators.emit_final import EmitFinal
from stateline.processing.operators.folding import Aggregating, Counting, Folding, reducing
from stateline.processing.operators.session_aggregate import SessionAggregate
from stateline.processing.operators.sliding_aggregate import SlidingAggregate
from stateline.processing.operators.stateless import ToStream
from stateline.processing.operators.window_aggregate import WindowCount, WindowFold
from stateline.serde.plain import Serde, shown
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from stateline.dsl.app import App
    from stateline.dsl.stream import Stream


class WindowedStream:
    """Aggregates are kept in a store of windows, or of sessions, of the name that is given, and served under it.

    Rows without a key are left out and counted, and over sliding windows those without a value; over others these
    count, and functions get None for them. What comes too late for its window is left out and counted.

    `retention` says how long the store keeps a window after stream time has passed its start (a session: its end); at
    least, and unless given, as long as records may still go into it. A smaller one raises `InvalidArgumentError`.
    """

    def __init__(self, app: App, node: Node | Root, key: Serde, value: Serde, windows: AnyWindows) -> None:
        if not isinstance(windows, Windows) or type(windows) is Windows:
            raise InvalidArgumentError(
                f"windowed_by({shown(windows)}): TumblingWindows, HoppingWindows, SlidingWindows or SessionWindows are "
                "accepted."
            )
        self._app, self._node = app, node
        self.key, self.value, self.windows = key, value, windows

    def count(self, store: str, *, retention: timedelta | None = None, persistent: bool = True) -> WindowedTable:
        """How many rows each key has had in each window, as int64."""
        return self._table("count", store, Counting(), serdes.int64, retention, persistent)

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        store: str,
        *,
        retention: timedelta | None = None,
        persistent: bool = True,
    ) -> WindowedTable:
        """The values of each key and window made one, ``reducer(what there was, value)``; the first one is taken as it
        is. None deletes what there was."""
        check_function("reduce", reducer, "reduced", "value", role="reducer")
        return self._table("reduce", store, reducing(self.value, reducer), self.value, retention, persistent)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        store: str,
        *,
        value: Serde,
        merger: Callable[[Any, Any, Any], Any] | None = None,
        retention: timedelta | None = None,
        persistent: bool = True,
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
        folding = Aggregating(value, initial, adder, merger)
        return self._table("aggregate", store, folding, value, retention, persistent)

    def _table(
        self,
        what: str,
        store: str,
        folding: Folding,
        value: Serde,
        retention: timedelta | None,
        persistent: bool,
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
        definition = self._app.operators_store(definition)
        node = Node(name, self._operator(name, store, folding), (definition,))
        return WindowedTable(self._app, self._node.then(node), definition, windows)

    def _operator(self, name: str, store: str, folding: Folding) -> Callable[..., Any]:
        windows = self.windows
        if isinstance(windows, SessionWindows):
            return partial(SessionAggregate, name, store, windows, folding)
        if isinstance(windows, SlidingWindows):
            return partial(SlidingAggregate, name, store, windows, folding)
        if isinstance(folding, Counting):
            return partial(WindowCount, store, windows)
        return partial(WindowFold, name, store, windows, folding)


class WindowedTable:
    """An aggregate for each key and window. `store` is where they are kept and served, and what processors read them
    by."""

    def __init__(self, app: App, node: Node, store: StoreDefinition, windows: AnyWindows) -> None:
        self._app, self._node = app, node
        self.store, self.windows = store, windows

    def to_stream(self) -> Stream:
        """Its changes as rows, under keys of `serdes.windowed` or `serdes.session_windowed`: the new value, None for a
        session that was joined to another. Of several changes of a window within one slice of input the last one, as
        Kafka Streams' record cache gives it. Timestamps are the windows' largest, of a session its end.

        Java's windowed deserializers read windows' keys from a topic whose key is `serdes.time_windowed`.
        """
        return windowed_stream(self._app, self._node, self.store, self.windows)

    def suppress(self, until: UntilWindowCloses) -> FinalResults:
        """The final value of each window, once, when it has closed: ``suppress(until_window_closes())``.

        A window closes when stream time, that of its partition's records, has gone past its end and the grace: one that
        no later record closes gives nothing. Exactly once with ``processing.guarantee=exactly_once_v2``; at least once
        without, after a crash perhaps again. What had closed before this was declared is not given.
        """
        if not isinstance(until, UntilWindowCloses):
            raise InvalidArgumentError(f"suppress({shown(until)}): until_window_closes() is accepted.")
        node = Node(f"final {self.store.name}", partial(EmitFinal, self.store.name, self.windows))
        return FinalResults(self._app, self._node.then(node), self.store, self.windows)


class FinalResults:
    """What `WindowedTable.suppress` returns; `store` holds the windows that are not final, too."""

    def __init__(self, app: App, node: Node, store: StoreDefinition, windows: AnyWindows) -> None:
        self._app, self._node = app, node
        self.store, self.windows = store, windows

    def to_stream(self) -> Stream:
        """The results as rows, as `WindowedTable.to_stream`, by the times at which they close."""
        return windowed_stream(self._app, self._node, self.store, self.windows)


def windowed_stream(app: App, node: Node, store: StoreDefinition, windows: AnyWindows) -> Stream:
    """Changes of windows as rows."""
    from stateline.dsl.stream import Stream  # streams make tables, and tables make streams

    wrap = serdes.session_windowed if isinstance(windows, SessionWindows) else serdes.windowed
    key = wrap(store.key)
    return Stream(app, node.then(Node("to_stream", partial(ToStream, key, store.value))), key, store.value)
