"""The steps of a `Stream` from rows to rows: without state, with the application's own stores, and through topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Self

from stateline.dsl.declarations import Declarations
from stateline.dsl.named_steps import NamedStep
from stateline.dsl.outputs import ChooseTopic, output
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.function_results import several
from stateline.processing.operators import Filter, FlatMap, MapValues, Merge, Peek, ProcessRows
from stateline.serde.plain import Serde, check_serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.topic_sinks import Partitioner

KeyValueFunction = Callable[[Any, Any], Any]


@says_where
class StreamSteps(NamedStep):
    """Rows with a key, a value and a timestamp, and the steps that give such rows again."""

    def __init__(
        self, declarations: Declarations, node: OperatorNode | Root, key: Serde, value: Serde, *, rekeyed: bool = False
    ) -> None:
        check_serde(key)
        check_serde(value)
        self._declarations, self._node = declarations, node
        self.key, self.value = key, value
        self._rekeyed = rekeyed

    def filter(self, predicate: KeyValueFunction) -> Self:
        """Keep the rows for which the predicate is true."""
        check_function("filter", predicate, "key", "value", role="predicate")
        return self._step("filter", partial(Filter, "filter", predicate, True))

    def filter_not(self, predicate: KeyValueFunction) -> Self:
        """Drop the rows for which the predicate is true."""
        check_function("filter_not", predicate, "key", "value", role="predicate")
        return self._step("filter_not", partial(Filter, "filter_not", predicate, False))

    def peek(self, action: KeyValueFunction) -> Self:
        """Call the function for each row, and pass the rows on."""
        check_function("peek", action, "key", "value", role="action")
        return self._step("peek", partial(Peek, "peek", action))

    def map_values(self, mapper: KeyValueFunction, *, value: Serde | None = None) -> Self:
        """Replace each value. The new values have the type `value`, by default the same as before."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        serde = self._declarations.in_flight(value or self.value, "value")
        return self._step("map_values", partial(MapValues, "map_values", mapper, serde), value=serde)

    def flat_map_values(self, mapper: Callable[[Any, Any], Iterable[Any]], *, value: Serde | None = None) -> Self:
        """Replace each row with one row for each value that the function returns."""
        check_function("flat_map_values", mapper, "key", "value", role="mapper", may_yield=True)

        @wraps(mapper)
        def pairs(key: Any, old: Any) -> Iterable[tuple[Any, Any]]:
            return [(key, new) for new in several(mapper(key, old), mapper)]

        return self._flat("flat_map_values", pairs, self.key, value or self.value, rekeyed=self._rekeyed)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, key: Serde | None = None, value: Serde | None = None
    ) -> Self:
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
    ) -> Self:
        """Replace each row with every (key, value) that the function returns."""
        check_function("flat_map", mapper, "key", "value", role="mapper", may_yield=True)
        return self._flat("flat_map", mapper, key or self.key, value or self.value, rekeyed=True)

    def select_key(self, mapper: KeyValueFunction, *, key: Serde | None = None) -> Self:
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
    ) -> Self:
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
    ) -> Self:
        """Call a function like that of `process`, which returns values only (Kafka Streams' `KStream.processValues`).
        Keys and timestamps stay, so no `repartition` is needed."""
        return self._process("process_values", function, stores, self.key, value or self.value, values_only=True)

    def merge(self, other: Self) -> Self:
        """Combine two streams of the same types. Rows of one topic keep its order. If a later step has a store, rows
        come in the order of their timestamps, and the input topics need equal partition counts."""
        if not isinstance(other, StreamSteps):
            raise wrong_kind("merge", other, "stream")
        self._declarations.refuse_other_application("merge", other._declarations)
        if (self.key.name, self.value.name) != (other.key.name, other.value.name):
            raise TopologyError(
                f"A stream of ({self.key.name}, {self.value.name}) cannot be merged with one of "
                f"({other.key.name}, {other.value.name}): bring both to the same types first."
            )
        node = OperatorNode("merge", Merge, in_order=True)
        self._node.then(node)
        other._node.then(node)
        return type(self)(self._declarations, node, self.key, self.value, rekeyed=self._rekeyed or other._rekeyed)

    def to(
        self,
        topic: str | Topic | ChooseTopic,
        *,
        topics: Sequence[str | Topic] = (),
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write the rows to an existing topic. A name that is not declared yet gets this stream's types.

        Or give a function that returns the topic, or its name, of each row: from (key, value), or from (key, value,
        record), where `record` is an `InputRecord` with the row's timestamp and headers. `topics` are those that it may
        return, as far as you know them: a test driver creates them, and the console shows them. If a topic does not
        exist, ``production.exception.handler`` handles the row.

        `partitioner` chooses the partition from (topic, key, value, number of partitions), from 0 on. It returns
        a number, a list of numbers, or None for the partition of the key. With an empty list, the row is dropped and
        counted. `name` is the step's, like that of `named`.
        """
        node = output(self._declarations, topic, topics, partitioner, self.key, self.value)
        if name is not None:
            self._declarations.name_step(node, name)
        self._node.then(node)

    def repartition(self, name: str, *, partitions: int | None = None, partitioner: Partitioner | None = None) -> Self:
        """Send the rows through the topic ``<application.id>-<name>-repartition``, so that one partition has all rows
        of a key. By default the topic has as many partitions as the topics that it is joined with, or else as the
        input. `partitioner`: see `to`. It must return one partition for all rows of a key."""
        topic = self._declarations.repartition(name, key=self.key, value=self.value, partitions=partitions)
        self._declarations.claim_repartition(topic)
        self.to(topic, partitioner=partitioner)
        return type(self)(self._declarations, self._declarations.stream_root(topic), topic.key, topic.value)

    def _process(
        self,
        what: str,
        function: Callable[..., Iterable[Any] | None],
        stores: Sequence[StoreDefinition],
        key: Serde,
        value: Serde,
        *,
        values_only: bool,
    ) -> Self:
        given, _ = self._declarations.arguments(what, function, "record", stores, may_yield=True)
        key, value = self._declarations.in_flight(key, "key"), self._declarations.in_flight(value, "value")
        name = f"{what} {getattr(function, '__name__', type(function).__name__)}"  # also of a lambda and a partial
        make = partial(ProcessRows, name, function, given, key, value, values_only)
        node = self._node.then(OperatorNode(name, make, given, in_order=bool(given), shares_stores=True))
        return type(self)(self._declarations, node, key, value, rekeyed=self._rekeyed or not values_only)

    def _step(self, name: str, make: Callable[..., Any], *, value: Serde | None = None) -> Self:
        node = self._node.then(OperatorNode(name, make))
        return type(self)(self._declarations, node, self.key, value or self.value, rekeyed=self._rekeyed)

    def _flat(
        self, name: str, mapper: Callable[..., Iterable[tuple[Any, Any]]], key: Serde, value: Serde, *, rekeyed: bool
    ) -> Self:
        key, value = self._declarations.in_flight(key, "key"), self._declarations.in_flight(value, "value")
        node = self._node.then(OperatorNode(name, partial(FlatMap, name, mapper, key, value)))
        return type(self)(self._declarations, node, key, value, rekeyed=rekeyed)

    def _refuse_rekeyed(self, what: str) -> None:
        if self._rekeyed and not self._declarations.auto_repartition:
            raise TopologyError(
                f"Before {what} the key was changed, so rows of one key are in several partitions: "
                'call .repartition("a-name") first.'
            )

    def _by_key(self, name: str) -> Self:
        """Return this stream with the rows of a key in one partition, through a topic of this name if it must be. Steps
        with one name share the topic of a stream, as in Kafka Streams."""
        if not self._rekeyed:
            return self
        if self._declarations.moved.get(name) is self._node:
            topic = self._declarations.repartition(name, self.key, self.value)
            return type(self)(self._declarations, self._declarations.stream_root(topic), topic.key, topic.value)
        moved = self.repartition(name)
        self._declarations.moved[name] = self._node
        return moved
