"""`GroupedStream.cogroup(…)`: several streams in one aggregate (docs/grouping.md), as KIP-150 has it.

The streams are merged, each row with its aggregator. Then the rows are aggregated like those of one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from stateline.dsl.declarations import Declarations
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.java_names import HintsAtJavaNames
from stateline.model.nodes import OperatorNode, Root
from stateline.model.windows import AnyWindows
from stateline.processing.operators import Merge, WithAggregator
from stateline.serde.plain import Serde
from stateline_store import TopologyError

Aggregator: TypeAlias = Callable[[Any, Any, Any], Any]
"""Takes the key, the value and the aggregate, and returns the next aggregate. None deletes it."""
Made = TypeVar("Made", covariant=True)
TableT = TypeVar("TableT")
WindowedT = TypeVar("WindowedT")


class Grouped(Protocol):
    """Another stream's rows by key: a `GroupedStream`."""

    key: Serde
    _declarations: Declarations

    @property
    def _node(self) -> OperatorNode | Root: ...


class Aggregate(Protocol[Made]):
    """The method `aggregate` of the merged streams."""

    def __call__(
        self, initial: Callable[[], Any], adder: Aggregator, store: str, *, value: Serde, **options: Any
    ) -> Made: ...


class Merged(NamedTuple, Generic[TableT, WindowedT]):
    """How the merged streams are aggregated: from their node, without windows and with them."""

    plain: Callable[[OperatorNode], Aggregate[TableT]]
    windowed: Callable[[OperatorNode, AnyWindows], Aggregate[WindowedT]]


@says_where
class CogroupedStream(HintsAtJavaNames, Generic[TableT, WindowedT]):
    """Several streams with the same keys, for one aggregate. Each has its own aggregator.

    Rows are taken in the order of their timestamps, so the input topics need equal partition counts. Rows without a key
    or a value are left out and counted. ``processing.exception.handler`` handles a function that raises."""

    def __init__(
        self,
        declarations: Declarations,
        key: Serde,
        inputs: tuple[tuple[OperatorNode | Root, Aggregator], ...],
        merged: Merged[TableT, WindowedT],
    ) -> None:
        check_function("cogroup", inputs[-1][1], "key", "value", "aggregate", role="aggregator", must_return=True)
        self._declarations, self.key, self._inputs, self._merged = declarations, key, inputs, merged

    def cogroup(self, other: Grouped, aggregator: Aggregator) -> CogroupedStream[TableT, WindowedT]:
        """Add the rows of another grouped stream with ``aggregator(key, value, aggregate)``."""
        if not hasattr(other, "windowed_by"):
            raise TopologyError("cogroup: give what .group_by_key() or .group_by(…) of another stream returned.")
        self._declarations.refuse_other_application("cogroup", other._declarations)
        if other.key.name != self.key.name:
            raise TopologyError(
                f"cogroup: the streams have keys of type {self.key.name} and {other.key.name}. Group one by another "
                "key first, with .group_by(…)."
            )
        return CogroupedStream(self._declarations, self.key, (*self._inputs, (other._node, aggregator)), self._merged)

    def windowed_by(self, windows: AnyWindows) -> CogroupedWindows[WindowedT]:
        """Aggregate by key and window, like `GroupedStream.windowed_by`."""
        return CogroupedWindows(self._declarations, self._merged.windowed(self._node(), windows))

    def aggregate(
        self,
        initial: Callable[[], Any],
        store: str | None = None,
        *,
        value: Serde,
        persistent: bool = True,
        changelog: Mapping[str, object] | None = None,
    ) -> TableT:
        """Aggregate the rows of each key with their streams' aggregators, from ``initial()`` on. `value` is the
        aggregate's type."""
        store = self._declarations.store_name(store, "COGROUPKSTREAM-AGGREGATE")
        aggregate = self._merged.plain(self._node())
        return aggregate(initial, _add, store, value=value, persistent=persistent, changelog=changelog)

    def _node(self) -> OperatorNode:
        merged = OperatorNode("merge", Merge, in_order=True)
        for clock, (node, aggregator) in enumerate(self._inputs, 1):
            node.then(OperatorNode("cogroup", partial(WithAggregator, aggregator, clock))).then(merged)
        return merged


@says_where
class CogroupedWindows(HintsAtJavaNames, Generic[WindowedT]):
    """Several streams for one aggregate by key and window. Tumbling and hopping windows and sessions also take rows
    without a value: the aggregators get None."""

    def __init__(self, declarations: Declarations, aggregate: Aggregate[WindowedT]) -> None:
        self._declarations, self._aggregate = declarations, aggregate

    def aggregate(
        self,
        initial: Callable[[], Any],
        store: str | None = None,
        *,
        value: Serde,
        merger: Callable[[Any, Any, Any], Any] | None = None,
        retention: timedelta | None = None,
        persistent: bool = True,
        changelog: Mapping[str, object] | None = None,
    ) -> WindowedT:
        """Aggregate the rows of each key and window with their streams' aggregators, from ``initial()`` on. `merger`
        and `retention` are those of `WindowedStream.aggregate`."""
        store = self._declarations.store_name(store, "COGROUPKSTREAM-AGGREGATE")
        kept: dict[str, Any] = {"persistent": persistent, "changelog": changelog}
        return self._aggregate(initial, _add, store, value=value, merger=merger, retention=retention, **kept)


def _add(key: Any, given: tuple[Aggregator, Any], aggregate: Any) -> Any:
    aggregator, value = given
    return aggregator(key, value, aggregate)
