"""The declarations of an application by name, shared by `App` and its streams and tables.

Every method raises `TopologyError` for a name that is taken or was not declared, and `InvalidArgumentError` for one
that Kafka would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stateline import serdes
from stateline.dsl.names import Names
from stateline.dsl.pipeline_checks import (
    check_declared,
    refuse_other_writers,
    refuse_shared_results,
    refuse_unparsable,
)
from stateline.dsl.punctuations import Punctuated, punctuator
from stateline.dsl.topic_patterns import TopicPatterns
from stateline.dsl.wrong_kinds import listed, wrong_kind
from stateline.model.declared_at import SourceLine, here
from stateline.model.event_time import refuse_in_pipeline
from stateline.model.external_stores import written_by_us
from stateline.model.function_checks import check_function
from stateline.model.nodes import OperatorNode, Root
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.processor import Processor, Punctuation, processor_of
from stateline.model.store_definition import GlobalTable, StoreDefinition, changelog_name
from stateline.model.topic import Topic, checked_name
from stateline.model.topology import Topology, subtopologies, unused_stores
from stateline.model.unnamed_stores import generated_join_name, generated_name, number_of_join
from stateline.processing.operators import StreamSource
from stateline.serde.binding import Role, bound, in_topic_names, is_unbound
from stateline.serde.plain import Serde, shown
from stateline.serde.schema_registry import SchemaRegistry
from stateline_store import InvalidArgumentError, TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.interface import OperatorContext, RecordSource


class Declarations:
    """Not thread-safe: an application is declared by one thread."""

    def __init__(self, application_id: str, registry: SchemaRegistry) -> None:
        """`registry` is for all serdes that name no other."""
        self.application_id = checked_name("application", application_id)
        self._names = Names()
        self.registry = registry
        self._processors: dict[str, Processor] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._punctuations: dict[str, Punctuated] = {}
        self._writers: dict[str, str] = {}  # topic → the first that writes to it and is no pipeline
        self._topics: dict[str, Topic] = {}
        self._stores: dict[str, StoreDefinition] = {}
        self._generated: dict[str, str] = {}  # generated store names, and where each is declared
        self._roots: dict[str, list[Root]] = {}
        self._global_tables: dict[str, GlobalTable] = {}
        self.patterns = TopicPatterns(self.application_id, self.chosen_topic)
        self._self_joins: dict[str, Callable[[bool], None]] = {}  # by the store that the optimisation saves
        self.store_format = "DEFAULT"  # until the settings in force are known (`App.configure`)
        self.optimization = "none"
        self.auto_repartition = False  # as the `App` says, before the first step
        self.moved: dict[str, OperatorNode | Root] = {}  # name of such a repartition → where its rows come from

    # Topics

    def topic(self, operator: str, topic: str | Topic, key: Serde | None = None, value: Serde | None = None) -> Topic:
        """Return the declared topic, or declare this name with these serdes (bytes by default). `operator` is named in
        errors."""
        if not isinstance(topic, str | Topic):
            raise wrong_kind(operator, topic, "topic")
        if isinstance(topic, Topic):
            wanted = self._topics.get(topic.name, topic)
            key, value = key or topic.key, value or topic.value
        else:
            new = Topic(checked_name("topic", topic), key or serdes.bytes, value or serdes.bytes)
            wanted = self._topics.get(new.name, new)
        if (key and key.name != wanted.key.name) or (value and value.name != wanted.value.name):
            raise TopologyError(
                f"Topic {wanted.name!r} is declared in {self._names.place('topic', wanted.name)}, already, with key "
                f"{wanted.key.name} and value {wanted.value.name}: declare it once, with app.topic, and pass what that "
                "returns."
            )
        return self.declare(wanted)

    def declare(self, topic: Topic) -> Topic:
        """Declare the topic, and return it with serdes bound to it."""
        key, value = self._bound(topic.key, topic.name, "key"), self._bound(topic.value, topic.name, "value")
        topic = replace(topic, key=key, value=value)
        known = self._topics.setdefault(topic.name, topic)
        if known != topic:
            raise TopologyError(
                f"Topic {topic.name!r} is declared in {self._names.place('topic', topic.name)}, already, with other "
                f"{' and '.join(_differences(known, topic))}: declare it once and pass what that returns."
            )
        self._names.take("topic", topic.name)
        return known

    def topics(self, operator: str, argument: str, given: Iterable[str | Topic]) -> tuple[Topic, ...]:
        """Return the declared topics of a list. `argument` is named in errors."""
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
        """Return the declared topic, which keeps its types. A name that is not declared yet gets these serdes."""
        known = not isinstance(topic, str) or topic in self._topics
        return self.topic(operator, topic) if known else self.topic(operator, topic, key, value)

    def chosen_topic(self, given: str | Topic, key: Serde, value: Serde) -> Topic:
        """Return the declared topic. Else a `Topic` keeps its types, a name gets these serdes, and both stay
        undeclared."""
        name = given if isinstance(given, str) else given.name
        if (known := self._topics.get(name)) is not None:
            return known if isinstance(given, str) else self.topic("to", given)
        new = Topic(checked_name("topic", name), key, value) if isinstance(given, str) else given
        return replace(new, key=self._bound(new.key, name, "key"), value=self._bound(new.value, name, "value"))

    def is_declared(self, topic: str | Topic) -> bool:
        """Whether the types of this topic are known."""
        return isinstance(topic, Topic) or topic in self._topics

    def repartition(
        self, name: str, key: Serde, value: Serde, schema: str | None = None, partitions: int | None = None
    ) -> Topic:
        """Declare the topic ``<application.id>-<name>-repartition``."""
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise InvalidArgumentError(f"partitions={shown(partitions)}: a whole number of 1 or more is accepted.")
        full_name = f"{self.application_id}-{checked_name('topic', name)}-repartition"
        return self.declare(Topic(full_name, key, value, schema, partitions, internal=True))

    def claim_repartition(self, topic: Topic) -> None:
        """Raise `TopologyError` if a stream goes through this topic already: the rows of both would mix there."""
        if topic.name in self._roots:
            raise TopologyError(
                f"A stream is already repartitioned through {topic.name!r} in {self._names.place('topic', topic.name)}."
                ' Give this one another name, with .repartition("a-name") before the step, or use the stream that the '
                "`repartition` or `group_by` there returned."
            )

    def claim_outputs(self, writer: str, topics: Iterable[Topic]) -> None:
        """Note that `writer`, which is no pipeline, writes to the topics. Raises `TopologyError` if a pipeline owns
        one."""
        writers = {topic.name: f"{writer} ({here()})" for topic in topics}
        for pipeline in self._pipelines.values():
            refuse_other_writers(pipeline, self._described(pipeline), writers)
        self._writers = {**writers, **self._writers}

    # Stores

    def store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare a store, and give it back with serdes that write for its changelog."""
        self._names.refuse_taken("store", definition.name)
        self._names.take("store", definition.name, _note(definition))
        kept = self._stores[definition.name] = self._of_store(definition)
        return kept

    def store_name(self, given: str | None, operator: str) -> str:
        """Return the given name, or generate Kafka Streams' name: ``KSTREAM-AGGREGATE-STATE-STORE-0000000002``. The
        number counts such stores in the order of declaration. A new store before others renames them and their
        changelogs."""
        if given is not None:
            return given
        name = generated_name(operator, len(self._generated))
        self._generated[name] = str(here())
        return name

    def join_store_name(self, operator: str, like: str | None = None, what: str = "store") -> str:
        """Generate Kafka Streams' name of a store of a join of streams: ``KSTREAM-JOINTHIS-0000000002-store``. The name
        `like` another one has its number."""
        number = len(self._generated) if like is None else number_of_join(like)
        name = generated_join_name(operator, number, what)
        self._generated[name] = str(here())
        return name

    def operators_store(
        self, definition: StoreDefinition, changelog: Mapping[str, object] | None = None
    ) -> StoreDefinition:
        """Declare the store of an operator. Processors may only read it. `changelog` has settings of its changelog."""
        if changelog is not None:
            definition = definition.with_logging(changelog)
        return self.store(replace(definition, is_operators=True))

    def self_join(self, right: str, use_one_store: Callable[[bool], None]) -> None:
        """Note an inner join of a stream with itself, which may do without the store `right`."""
        self._self_joins[right] = use_one_store

    def global_table(self, definition: StoreDefinition) -> GlobalTable:
        """Declare a global table that is kept in such a store."""
        self._names.refuse_taken("global table", definition.name)
        self._names.take("global table", definition.name, _note(definition))
        table = self._global_tables[definition.name] = GlobalTable(self._of_store(definition))
        return table

    def in_store(self, store: str, value: Serde) -> Serde:
        """The serde of values of an operator's store of this name."""
        return self._bound(value, self._changelog(store), "value")

    def in_flight(self, serde: Serde, role: Role) -> Serde:
        """Return the serde of keys or values that an operator makes. A serde bound to a topic is unchanged. Any other
        schema is registered once for each type, under the name of no real topic."""
        if not is_unbound(serde):
            return serde
        return self._bound(serde, f"{self.application_id}-{in_topic_names(serde.name)}", role)

    def _of_store(self, definition: StoreDefinition) -> StoreDefinition:
        topic = self._changelog(definition.name) if definition.source is None else definition.source.name
        key, value = self._bound(definition.key, topic, "key"), self._bound(definition.value, topic, "value")
        return replace(definition, key=key, value=value)

    def _changelog(self, store: str) -> str:
        """Kafka Streams also registers schemas under this name for stores without a changelog."""
        return changelog_name(self.application_id, store)

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

    def refuse_other_application(self, operator: str, other: Declarations) -> None:
        """Raise `TopologyError` if a stream, or a table, with these declarations is of another application."""
        if other is not self:
            raise TopologyError(
                f"{operator}: the other stream or table is of another application, {other.application_id!r}. Declare "
                f"it on this one, {self.application_id!r}."
            )

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
        self._names.refuse_taken("processor", checked_name("processor", name))
        arguments = self.arguments(f"Processor {name!r}", function, "record", stores, forwards)
        self._names.take("processor", name)
        self._processors[name] = Processor(name, function, source, *arguments)

    def name_step(self, node: OperatorNode | Root, name: str) -> None:
        """Give this step a name of its own. Raises `TopologyError` if it has one, or if another step or processor has
        it."""
        if isinstance(node, Root):
            raise TopologyError(f"named({name!r}): no step comes before it: call it behind the step that it names.")
        nodes = node.named_with or (node,)
        if nodes[0].title:
            raise TopologyError(f"named({name!r}): the step is named {nodes[0].title!r} already: name it once.")
        self._names.refuse_taken("step", checked_name("step", name))
        self._names.take("step", name)
        for each in nodes:
            each.title = name

    def punctuation(
        self,
        name: str,
        function: Callable[..., Any],
        punctuation: Punctuation,
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic],
    ) -> None:
        """Declare a function that is called as time goes by."""
        self._names.refuse_taken("punctuation", checked_name("punctuation", name))
        if not stores:
            raise TopologyError(f"Punctuation {name!r} has no stores: name at least one, whose tasks it is called in.")
        arguments = self.arguments(f"Punctuation {name!r}", function, "timestamp_ms", stores, forwards)
        self._names.take("punctuation", name)
        self._punctuations[name] = Punctuated(function, *arguments, punctuation)

    def pipeline(self, pipeline: Pipeline) -> None:
        """Declare a pipeline. Raises `InvalidArgumentError` unless it can be run."""
        self._names.refuse_taken("pipeline", checked_name("pipeline", pipeline.name))
        check_declared(pipeline)
        for topic in pipeline.inputs:
            refuse_in_pipeline(pipeline.name, topic.name, topic.event_time, topic.value)
            refuse_unparsable(pipeline.name, topic)
        refuse_shared_results(pipeline, {self._described(each): each for each in self._pipelines.values()})
        refuse_other_writers(pipeline, f"Pipeline {pipeline.name!r}", self._writers)
        inputs = (topic.name for topic in pipeline.inputs)
        check_function(f"Pipeline {pipeline.name!r}", pipeline.function, *inputs)
        self._names.take("pipeline", pipeline.name)
        self._pipelines[pipeline.name] = pipeline

    def arguments(
        self,
        operator: str,
        function: Callable[..., Any],
        first: str,
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic] = (),
        *,
        may_yield: bool = False,
    ) -> tuple[tuple[StoreDefinition, ...], tuple[Topic, ...]]:
        """Return the function's stores and output topics, its arguments after `first`. Raises `TopologyError` unless it
        accepts them, all are declared, and it may write there."""
        stores, forwards = listed(operator, "stores", stores), listed(operator, "forwards", forwards)
        for definition in stores:
            if not isinstance(definition, StoreDefinition):
                raise wrong_kind(operator, definition, "store")
            self.refuse_undeclared(operator, definition)
        for topic in forwards:
            if not isinstance(topic, Topic):
                raise wrong_kind(operator, topic, "declared topic")
        names = (first, *(d.name for d in stores), *(t.name for t in forwards))
        check_function(operator, function, *names, may_yield=may_yield, may_take_context=True)
        self.claim_outputs(operator, forwards)
        return stores, forwards

    def stream_root(self, topic: Topic) -> Root:
        return self.root(topic, None, partial(StreamSource, topic))

    def root(
        self, topic: Topic, table: StoreDefinition | None, make: Callable[[OperatorContext], RecordSource]
    ) -> Root:
        roots = self._roots.setdefault(topic.name, [])
        for root in roots:
            if root.table == table:
                return root
        roots.append(Root(topic, make, table))
        return roots[-1]

    def topology(self) -> Topology:
        """Everything, grouped into subtopologies.

        Raises `TopologyError` for a store that no processor uses, and for writers to a store of another application.
        Raises as `TopicPatterns.roots`.
        """
        saved = set(self._self_joins) if self.optimization == "single.store.self.join" else set()
        for right, use_one_store in self._self_joins.items():
            use_one_store(right in saved)
        stores = {name: definition for name, definition in self._stores.items() if name not in saved}
        every_root = self._roots | self.patterns.roots(self._read_by_name())
        operators = [processor_of(roots[0].topic, tuple(roots)) for roots in every_root.values()]
        processors = [*self._processors.values(), *operators]
        processors += self._punctuators(processors)
        self._refuse_writers()
        for store in unused_stores(stores.values(), processors):
            with self._names.at("store", store.name):
                raise TopologyError(
                    f"No processor uses the store {store.name!r}: name it in `stores=[…]` of one, or remove it."
                )
        kept = {name: self._formatted(definition) for name, definition in stores.items()}
        return Topology(
            self.application_id,
            subtopologies(kept.values(), processors),
            kept,
            dict(self._pipelines),
            {table.store.name: self._formatted(table.store) for table in self._global_tables.values()},
            generated={name: place for name, place in self._generated.items() if name not in saved},
            patterns=self.patterns.all,
        )

    def _read_by_name(self) -> dict[str, SourceLine]:
        """The topics that workers read by name, and where each is declared."""
        stores = [*self._stores.values(), *(table.store for table in self._global_tables.values())]
        sources = {store.source.name for store in stores if store.source is not None}
        sources |= {processor.source.name for processor in self._processors.values()}
        return {name: self._names.place("topic", name) for name in sorted(sources | self._roots.keys())}

    def _formatted(self, definition: StoreDefinition) -> StoreDefinition:
        """Return a table or an operator's store in the format of ``dsl.store.format``. Versioned stores have no
        headers."""
        is_of_dsl = definition.is_operators or (definition.source is not None and definition.external is None)
        wanted = self.store_format == "HEADERS" and is_of_dsl and definition.timestamped
        return replace(definition, headers=True) if wanted else definition

    def _punctuators(self, processors: Sequence[Processor]) -> list[Processor]:
        found = []
        for name, declared in self._punctuations.items():
            with self._names.at("punctuation", name):
                found.append(punctuator(name, declared, processors))
        return found

    def _refuse_writers(self) -> None:
        writers = {t.name: self._described(p) for p in self._pipelines.values() for t in p.results} | self._writers
        for topic in self._topics.values():
            if topic.external is not None and topic.name in writers:
                with self._names.at("topic", topic.name):
                    raise written_by_us(topic, writers[topic.name])

    def _described(self, pipeline: Pipeline) -> str:
        return f"Pipeline {pipeline.name!r} ({self._names.place('pipeline', pipeline.name)})"


def _note(definition: StoreDefinition) -> str:
    return "" if definition.source is None else f", as a table of topic {definition.source.name!r}"


def _differences(known: Topic, other: Topic) -> list[str]:
    types = [name for name in ("key", "value") if getattr(known, name).name != getattr(other, name).name]
    rest = ("schema", "partitions", "internal", "external", "event_time")
    others = [name.replace("event_time", "timestamp") for name in rest if getattr(known, name) != getattr(other, name)]
    return [*types, *others] or ["serdes"]
