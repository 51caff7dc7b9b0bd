"""What an application has declared, by name: one owner of it for `App` and for the streams and tables made of it.

Every method raises `TopologyError` for a name that is taken or was not declared, and `InvalidArgumentError` for one
that Kafka would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline import serdes
from stateline.dsl.pipeline_checks import (
    check_declared,
    refuse_other_writers,
    refuse_shared_results,
    refuse_unparsable,
)
from stateline.dsl.punctuations import Punctuated, punctuator
from stateline.dsl.wrong_kinds import listed, wrong_kind
from stateline.model.event_time import refuse_in_pipeline
from stateline.model.external_stores import refuse_writers
from stateline.model.function_checks import check_function
from stateline.model.global_table import GlobalTable
from stateline.model.nodes import Root
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.processor import Processor, Punctuation, processor_of
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic, checked_name
from stateline.model.topology import Topology, subtopologies
from stateline.processing.operators import StreamSource
from stateline.serde.binding import Role, bound, in_topic_names, is_unbound
from stateline.serde.plain import Serde
from stateline.serde.schema_registry import SchemaRegistry
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.interface import OperatorContext, Source


class Declarations:
    """Not thread-safe: an application is declared by one thread."""

    def __init__(self, application_id: str, registry: SchemaRegistry) -> None:
        """`registry`: of all serdes that name none of their own."""
        self.application_id = checked_name("application", application_id)
        self.registry = registry
        self._processors: dict[str, Processor] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._punctuations: dict[str, Punctuated] = {}
        self._writers: dict[str, str] = {}  # topic → the first that writes to it and is no pipeline
        self._topics: dict[str, Topic] = {}
        self._stores: dict[str, StoreDefinition] = {}
        self._roots: dict[str, list[Root]] = {}
        self._global_tables: dict[str, GlobalTable] = {}

    # Topics

    def topic(self, operator: str, topic: str | Topic, key: Serde | None = None, value: Serde | None = None) -> Topic:
        """The declared topic; a name that was not declared yet is, with these serdes (bytes by default). `operator` is
        named in errors."""
        if not isinstance(topic, str | Topic):
            raise wrong_kind(operator, topic, "topic")
        if isinstance(topic, Topic):
            wanted = self._topics.get(topic.name, topic)
        else:
            new = Topic(checked_name("topic", topic), key or serdes.bytes, value or serdes.bytes)
            wanted = self._topics.get(new.name, new)
        if (key and key.name != wanted.key.name) or (value and value.name != wanted.value.name):
            raise TopologyError(
                f"Topic {wanted.name!r} was declared with key {wanted.key.name} and value {wanted.value.name}: "
                "declare it once, with app.topic, and pass what that returns."
            )
        return self.declare(wanted)

    def declare(self, topic: Topic) -> Topic:
        """Note the topic, and give it back with serdes that write for it."""
        key, value = self._bound(topic.key, topic.name, "key"), self._bound(topic.value, topic.name, "value")
        topic = replace(topic, key=key, value=value)
        known = self._topics.setdefault(topic.name, topic)
        if known != topic:
            raise TopologyError(
                f"Topic {topic.name!r} was declared twice, differently: declare it once and pass what that returns."
            )
        return known

    def topics(self, operator: str, argument: str, given: Iterable[str | Topic]) -> tuple[Topic, ...]:
        """As `topic`, of each in the list that the argument was given."""
        return tuple(self.topic(operator, topic) for topic in listed(operator, argument, given))

    def results(
        self, given: Iterable[str | Topic], partitions: int | None, windowing: Windowing | None
    ) -> tuple[Topic, ...]:
        """Topics that a pipeline writes to; a name that was not declared gets the types of a pipeline's results."""
        key: Serde = serdes.string if windowing is None else serdes.WindowedSerde(serdes.string, windowing.kind)
        found = []
        for topic in given:
            if not isinstance(topic, str | Topic):
                raise wrong_kind("app.pipeline", topic, "topic")
            if isinstance(topic, str):
                new = Topic(checked_name("topic", topic), key, serdes.json, partitions=partitions)
                topic = self._topics.get(topic, new)
            found.append(self.declare(topic))
        return tuple(found)

    def topic_or_new(self, operator: str, topic: str | Topic, key: Serde, value: Serde) -> Topic:
        """As `topic`, and a name that was declared may have other types than these."""
        known = not isinstance(topic, str) or topic in self._topics
        return self.topic(operator, topic) if known else self.topic(operator, topic, key, value)

    def is_declared(self, topic: str | Topic) -> bool:
        """Whether the types of this topic are known."""
        return isinstance(topic, Topic) or topic in self._topics

    def repartition(
        self, name: str, key: Serde, value: Serde, schema: str | None = None, partitions: int | None = None
    ) -> Topic:
        """Declare the topic ``<application.id>-<name>-repartition``."""
        full_name = f"{self.application_id}-{checked_name('topic', name)}-repartition"
        return self.declare(Topic(full_name, key, value, schema, partitions, internal=True))

    def claim_repartition(self, topic: Topic) -> None:
        """Raise `TopologyError` if a stream goes through this topic already: the rows of both would mix there."""
        if topic.name in self._roots:
            raise TopologyError(
                f"A stream is repartitioned through {topic.name!r} already: give this one another name, or go on with "
                "what the first `repartition` or `group_by` returned."
            )

    def claim_outputs(self, writer: str, topics: Iterable[Topic]) -> None:
        """Note that this, no pipeline, writes to the topics. Raises `TopologyError` if one is a pipeline's alone."""
        writers = {topic.name: writer for topic in topics}
        refuse_other_writers(self._pipelines.values(), writers)
        self._writers = {**writers, **self._writers}

    # Stores

    def store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare a store, and give it back with serdes that write for its changelog."""
        _refuse_second("store", definition.name, self._stores)
        _refuse_second("global table", definition.name, self._global_tables)
        kept = self._stores[definition.name] = self._of_store(definition)
        return kept

    def operators_store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare the store of an operator: processors may name it, and only read it."""
        return self.store(replace(definition, is_operators=True))

    def global_table(self, definition: StoreDefinition) -> GlobalTable:
        """Declare a global table that is kept in such a store."""
        _refuse_second("store", definition.name, self._stores)
        _refuse_second("global table", definition.name, self._global_tables)
        table = self._global_tables[definition.name] = GlobalTable(self._of_store(definition))
        return table

    def in_store(self, store: str, value: Serde) -> Serde:
        """The serde of values of an operator's store of this name."""
        return self._bound(value, self._changelog(store), "value")

    def in_flight(self, serde: Serde, role: Role) -> Serde:
        """The serde of keys or values that an operator makes, before it is known where they go. One that is of a topic
        stays so; the schema of another is registered for no topic that there is, once for each type."""
        if not is_unbound(serde):
            return serde
        return self._bound(serde, f"{self.application_id}-{in_topic_names(serde.name)}", role)

    def _of_store(self, definition: StoreDefinition) -> StoreDefinition:
        topic = self._changelog(definition.name) if definition.source is None else definition.source.name
        key, value = self._bound(definition.key, topic, "key"), self._bound(definition.value, topic, "value")
        return replace(definition, key=key, value=value)

    def _changelog(self, store: str) -> str:
        """Kafka Streams registers schemas under the changelog's name for stores that have none, too."""
        return f"{self.application_id}-{store}-changelog"

    def _bound(self, serde: Serde, topic: str, role: Role) -> Serde:
        return bound(serde, topic, role, self.registry)

    def refuse_undeclared(self, operator: str, definition: StoreDefinition) -> None:
        """Raise `TopologyError` unless this store was declared."""
        if self._stores.get(definition.name) != definition:
            raise TopologyError(
                f"{operator} uses the store {definition.name!r}, which was not declared: "
                "pass what app.store(…) or app.table(…) returned."
            )

    def refuse_others(self, operator: str, definition: StoreDefinition) -> None:
        """Raise `TopologyError` unless this store, or global table, is one of this application's."""
        known = self._global_tables.get(definition.name)
        if definition not in (self._stores.get(definition.name), known and known.store):
            raise TopologyError(f"{operator}: {definition.name!r} is of another application, or was not declared.")

    # Functions and operators

    def processor(
        self,
        name: str,
        function: Callable[..., Any],
        source: Topic,
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic],
    ) -> None:
        """Declare a function that gets each record of `source`."""
        _refuse_second("processor", checked_name("processor", name), self._processors)
        _refuse_second("punctuation", name, self._punctuations)
        arguments = self._arguments(f"Processor {name!r}", function, "record", stores, forwards)
        self._processors[name] = Processor(name, function, source, *arguments)

    def punctuation(
        self,
        name: str,
        function: Callable[..., Any],
        punctuation: Punctuation,
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic],
    ) -> None:
        """Declare a function that is called as time goes by."""
        _refuse_second("punctuation", checked_name("punctuation", name), self._punctuations)
        _refuse_second("processor", name, self._processors)
        if not stores:
            raise TopologyError(f"Punctuation {name!r} has no stores: name at least one, whose tasks it is called in.")
        arguments = self._arguments(f"Punctuation {name!r}", function, "timestamp_ms", stores, forwards)
        self._punctuations[name] = Punctuated(function, *arguments, punctuation)

    def pipeline(self, pipeline: Pipeline) -> None:
        """Declare a pipeline. Raises `InvalidArgumentError` unless it can be run."""
        _refuse_second("pipeline", checked_name("pipeline", pipeline.name), self._pipelines)
        check_declared(pipeline)
        for topic in pipeline.inputs:
            refuse_in_pipeline(pipeline.name, topic.name, topic.event_time, topic.value)
            refuse_unparsable(pipeline.name, topic)
        refuse_shared_results(pipeline, self._pipelines.values())
        refuse_other_writers([pipeline], self._writers)
        inputs = (topic.name for topic in pipeline.inputs)
        check_function(f"Pipeline {pipeline.name!r}", pipeline.function, *inputs)
        self._pipelines[pipeline.name] = pipeline

    def _arguments(
        self,
        operator: str,
        function: Callable[..., Any],
        first: str,
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic],
    ) -> tuple[tuple[StoreDefinition, ...], tuple[Topic, ...]]:
        """What the function gets besides `first`. Raises `TopologyError` unless it takes that, all is declared, and it
        may write there."""
        stores, forwards = listed(operator, "stores", stores), listed(operator, "forwards", forwards)
        for definition in stores:
            if not isinstance(definition, StoreDefinition):
                raise wrong_kind(operator, definition, "store")
            self.refuse_undeclared(operator, definition)
        for topic in forwards:
            if not isinstance(topic, Topic):
                raise wrong_kind(operator, topic, "declared topic")
        check_function(operator, function, first, *(d.name for d in stores), *(t.name for t in forwards))
        self.claim_outputs(operator, forwards)
        return stores, forwards

    def stream_root(self, topic: Topic) -> Root:
        """Where the rows of a topic come in."""
        return self.root(topic, None, partial(StreamSource, topic))

    def root(self, topic: Topic, table: StoreDefinition | None, make: Callable[[OperatorContext], Source]) -> Root:
        """Where the operators of this topic, or of its table, begin."""
        roots = self._roots.setdefault(topic.name, [])
        for root in roots:
            if root.table == table:
                return root
        roots.append(Root(topic, make, table))
        return roots[-1]

    def topology(self) -> Topology:
        """Everything, grouped into subtopologies.

        Raises `TopologyError` for a store that no processor uses, and for writers to a store of another application.
        """
        operators = [processor_of(self._topics[topic], tuple(roots)) for topic, roots in self._roots.items()]
        processors = [*self._processors.values(), *operators]
        processors += [punctuator(name, each, processors) for name, each in self._punctuations.items()]
        refuse_writers(self._topics.values(), processors, self._pipelines.values())
        return Topology(
            self.application_id,
            subtopologies(self._stores.values(), processors),
            dict(self._stores),
            dict(self._pipelines),
            {table.store.name: table.store for table in self._global_tables.values()},
        )


def _refuse_second(what: str, name: str, taken: Mapping[str, object]) -> None:
    if name in taken:
        raise TopologyError(f"There is a {what} named {name!r} already: give one of them another name.")
