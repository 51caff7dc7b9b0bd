"""`App`: one application's topics, tables, stores, processors and pipelines, declared in a module of the user's.

Declaring does nothing yet: `stateline run module:app` reads the declarations and starts what they describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stateline import serdes, stores
from stateline.dsl.function_checks import check_function, name_of
from stateline.dsl.pipeline_checks import check_declared, check_windowing, refuse_other_writers, refuse_shared_results
from stateline.dsl.punctuations import Punctuated, punctuation_of, punctuator
from stateline.dsl.stream import Stream
from stateline.dsl.table import Table
from stateline.dsl.table_kinds import inner_key, kind_of_table, windows_table
from stateline.dsl.wrong_kinds import listed, wrong_kind
from stateline.model.external_stores import changelog_of, kept_from, refuse_writers
from stateline.model.global_table import GlobalTable
from stateline.model.nodes import Root, processor_of
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import (
    Pipeline,
    Processor,
    Topic,
    Topology,
    Windowing,
    checked_name,
    subtopologies,
)
from stateline.processing.operators.sources import StreamSource, TableSource
from stateline.serde.plain import Serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.interface import OperatorContext, Source

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """An application; `application_id` prefixes its internal topics and names its directory and its group.

    `config` holds settings under their dotted names (``{"processing.guarantee": "exactly_once_v2"}``): defaults
    that a file, the environment and flags override. Every method raises `TopologyError` for a name that is
    taken, `InvalidArgumentError` for one that Kafka would refuse.
    """

    def __init__(self, application_id: str, *, config: Mapping[str, Any] | None = None) -> None:
        self.application_id = checked_name("application", application_id)
        self.config: dict[str, Any] = dict(config or {})
        self._topics: dict[str, Topic] = {}
        self._stores: dict[str, StoreDefinition] = {}
        self._processors: dict[str, Processor] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._punctuations: dict[str, Punctuated] = {}
        self._writers: dict[str, str] = {}  # topic → the first that writes to it and is no pipeline
        self._roots: dict[str, list[Root]] = {}
        self._global_tables: dict[str, GlobalTable] = {}

    def topic(
        self, name: str, *, key: Serde = serdes.bytes, value: Serde = serdes.bytes, schema: str | None = None
    ) -> Topic:
        """Declare a topic that exists or will be created by its owner, with the types of its records."""
        return self._declare(Topic(checked_name("topic", name), key, value, schema))

    def repartition(
        self,
        name: str,
        *,
        key: Serde,
        value: Serde,
        schema: str | None = None,
        partitions: int | None = None,
    ) -> Topic:
        """Declare the topic ``<application.id>-<name>-repartition``: what a processor forwards under a new key.

        It is created with `partitions`, else with as many as the topic that the forwarding processor reads.
        """
        full_name = f"{self.application_id}-{checked_name('topic', name)}-repartition"
        return self._declare(Topic(full_name, key, value, schema, partitions, internal=True))

    def table(
        self,
        topic: str | Topic,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        store: str | None = None,
        versioned: timedelta | None = None,
        windowed: timedelta | None = None,
        sessions: bool = False,
        retention: timedelta | None = None,
        persistent: bool = True,
    ) -> StoreDefinition:
        """Keep the newest value and timestamp of every key of a topic in a timestamped key-value store, or, with
        `versioned`, every value of the last so long, by the records' timestamps, in a versioned store.

        With `windowed` the topic is one of windows of that size, with `sessions` one of sessions, as a pipeline with a
        `windowing` writes it: they are kept for `retention` in a timestamped window or session store. `key` is the type
        of the key inside; the topic's own is ``serdes.windowed(key)`` or ``serdes.session_windowed(key)``.

        The store is named after the topic unless `store` says otherwise. A record without a value deletes its
        key; one without a key is an error that the deserialization policy handles. The topic is the store's
        changelog.
        """
        kind = kind_of_table(versioned, windowed, sessions=sessions, retention=retention)
        if kind in ("window", "session"):
            wrap = serdes.windowed if kind == "window" else serdes.session_windowed
            known = key or (None if isinstance(topic, Topic) or topic in self._topics else serdes.bytes)
            key = known if known is None or isinstance(known, serdes.WindowedSerde) else wrap(known)
        source = self._topic("app.table", topic, key, value)
        name, value = store or source.name, source.value
        if kind in ("window", "session"):
            inner = inner_key(source, kind)
            kept = windows_table(name, inner, value, windowed, retention, persistent=persistent)
        elif versioned is not None:
            kept = stores.versioned(name, key=source.key, value=value, history=versioned, persistent=persistent)
        else:
            kept = stores.timestamped_key_value(name, key=source.key, value=value, persistent=persistent)
        return self.store(replace(kept, source=source))

    def external_store(
        self, definition: StoreDefinition, *, of: str, changelog: str | None = None, store: str | None = None
    ) -> StoreDefinition:
        """Serve a store of the Kafka Streams application whose ``application.id`` is `of`, read only.

        `definition` (see `stateline.stores`) is the store as it is there: its name, its kind, the types of its keys and
        values, the size and retention of its windows. It is kept here from its changelog, ``<of>-<name>-changelog``
        unless `changelog` names another topic, under its own name unless `store` gives another. What the application
        has not committed, or has aborted, is never seen. Nothing is written to its topics, and none is created.
        """
        if not isinstance(definition, StoreDefinition):
            raise wrong_kind("app.external_store", definition, "new store")
        topic = self._declare(changelog_of(self.application_id, definition, of, changelog))
        return self.store(kept_from(topic, definition, store))

    def stream(self, topic: str | Topic, *, key: Serde | None = None, value: Serde | None = None) -> Stream:
        """The records of a topic as a stream, to be filtered, mapped, grouped, joined, written (`docs/streams.md`)."""
        source = self._topic("app.stream", topic, key, value)
        root = self._root(source, None, partial(StreamSource, source))
        return Stream(self, root, source.key, source.value)

    def ktable(self, table: StoreDefinition) -> Table:
        """A table that `app.table` has declared, to be joined, or to have its changes taken as a stream.

        Raises `TopologyError` for other stores, and for versioned and windowed tables.
        """
        if not isinstance(table, StoreDefinition):
            raise wrong_kind("app.ktable", table, "declared table")
        self._refuse_undeclared("app.ktable", table)
        if table.source is None or table.kind != "timestamped_key_value":
            raise TopologyError(f"{table.name!r} is no table of the newest values: pass what app.table(…) returned.")
        return Table(self, self._root(table.source, table, partial(TableSource, table.name)), table)

    def global_table(
        self, topic: str | Topic, *, key: Serde | None = None, value: Serde | None = None, store: str | None = None
    ) -> GlobalTable:
        """The newest value of every key of a topic, all partitions of it, in the memory of every worker: rows of
        streams can be joined with it by any key (`Stream.join` with `on`), whatever partition they are in.

        Each worker reads the whole topic when it starts, before it takes other records, and goes on reading. It is
        named after the topic unless `store` says otherwise, and not served; a record that cannot be read ends the
        worker, or is left out unless ``deserialization.exception.handler`` is `fail`.
        """
        source = self._topic("app.global_table", topic, key, value)
        name = store or source.name
        _refuse_second("store", name, self._stores)
        _refuse_second("global table", name, self._global_tables)
        kept = stores.timestamped_key_value(name, key=source.key, value=source.value, persistent=False)
        self._global_tables[name] = GlobalTable(replace(kept, source=source))
        return self._global_tables[name]

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

    def declared_topic(self, operator: str, topic: str | Topic, key: Serde, value: Serde) -> Topic:
        """This topic; a name that was not declared yet gets these types. `operator` is named in errors."""
        if not isinstance(topic, str) or topic in self._topics:
            return self._topic(operator, topic)
        return self.topic(topic, key=key, value=value)

    def _root(self, topic: Topic, table: StoreDefinition | None, make: Callable[[OperatorContext], Source]) -> Root:
        """Where the operators of this topic, or of its table, begin."""
        roots = self._roots.setdefault(topic.name, [])
        for root in roots:
            if root.table == table:
                return root
        roots.append(Root(topic, make, table))
        return roots[-1]

    def store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare a store (see `stateline.stores`); processors that name it share it."""
        if not isinstance(definition, StoreDefinition):
            raise wrong_kind("app.store", definition, "new store")
        _refuse_second("store", definition.name, self._stores)
        _refuse_second("global table", definition.name, self._global_tables)
        self._stores[definition.name] = definition
        return definition

    def refuse_others(self, what: str, definition: StoreDefinition) -> None:
        """Raise `TopologyError` unless this store, or global table, is one of this application's."""
        known = self._global_tables.get(definition.name)
        if definition not in (self._stores.get(definition.name), known and known.store):
            raise TopologyError(f"{what}: {definition.name!r} is of another application, or was not declared.")

    def operators_store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare the store of an operator: processors may name it, and only read it."""
        return self.store(replace(definition, is_operators=True))

    def process(
        self,
        topic: str | Topic,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        stores: Sequence[StoreDefinition] = (),
        forwards: Sequence[Topic] = (),
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Call the decorated function for each record of a topic, in offset order, on the worker.

        It gets the record (`stateline.worker.InputRecord`), then one `StoreView` for each of `stores`, then one
        `Output` for each of `forwards`. What it raises is handled by ``processing.exception.handler``.
        """
        source = self._topic("app.process", topic, key, value)

        def register(function: F) -> F:
            processor_name = checked_name("processor", name_of("processor", name, function))
            _refuse_second("processor", processor_name, self._processors)
            _refuse_second("punctuation", processor_name, self._punctuations)
            given = self._given(f"Processor {processor_name!r}", function, "record", stores, forwards)
            self._processors[processor_name] = Processor(processor_name, function, source, *given)
            return function

        return register

    def punctuate(
        self,
        *,
        every: timedelta,
        on: Literal["stream_time", "wall_clock_time"],
        stores: Sequence[StoreDefinition],
        forwards: Sequence[Topic] = (),
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Call the decorated function again and again, in each task that has these stores, at least one.

        It gets the time in milliseconds since the epoch, then one `StoreView` for each of `stores`, then one `Output`
        for each of `forwards`. By `stream_time`, the largest timestamp of the task's records so far, it is called at
        the first record and then whenever that has come to the next multiple of `every`; without records time stands
        still. By `wall_clock_time` it is called about every so long. What it writes is committed as a record's
        effects are, also when no input comes. What it raises is handled by ``processing.exception.handler``; there is
        no record for a dead letter, so that `dead-letter` does what `skip` does.
        """
        punctuation = punctuation_of(every, on)

        def register(function: F) -> F:
            punctuation_name = checked_name("punctuation", name_of("punctuation", name, function))
            _refuse_second("punctuation", punctuation_name, self._punctuations)
            _refuse_second("processor", punctuation_name, self._processors)
            if not stores:
                raise TopologyError(
                    f"Punctuation {punctuation_name!r} has no stores: name at least one, whose tasks it is called in."
                )
            given = self._given(f"Punctuation {punctuation_name!r}", function, "timestamp_ms", stores, forwards)
            self._punctuations[punctuation_name] = Punctuated(function, *given, punctuation)
            return function

        return register

    def pipeline(
        self,
        *,
        reads: str | Topic | Sequence[str | Topic],
        writes: str | Topic,
        key: str | Sequence[str],
        static: Sequence[str | Topic] = (),
        timestamp: str | None = None,
        output_mode: Literal["append", "update", "complete"] = "update",
        partitions: int | None = None,
        name: str | None = None,
        tables: Sequence[str | Topic] = (),
        branches: Sequence[str | Topic] = (),
        windowing: Windowing | None = None,
        whole_epochs: bool = False,
        trigger_ms: int | None = None,
        result: Literal["table", "stream"] = "table",
    ) -> Callable[[F], F]:
        """Run the decorated function on Spark: streaming DataFrames in (`reads`), then `tables`, then static ones, one
        DataFrame out. `stateline.model.topology.Pipeline` says what the rest means.

        Result rows become JSON records of the topic `writes`: the columns `key` make the record's key (several are
        joined with "|", see `docs/formats.md`), the column `timestamp` its timestamp (else the time of the
        micro-batch); columns that begin with "_" are left out. With `windowing` the times of a window or session are
        part of the key. A replayed micro-batch has no effect (see `stateline.spark.sink.epoch_sink`).
        """
        if windowing is not None:
            check_windowing(windowing)
        sources = [reads] if isinstance(reads, str | Topic) or not isinstance(reads, Iterable) else reads
        reads_topics = tuple(self._topic("app.pipeline", topic) for topic in listed("app.pipeline", "reads", sources))
        table_topics = tuple(self._topic("app.pipeline", topic) for topic in listed("app.pipeline", "tables", tables))
        static_topics = tuple(self._topic("app.pipeline", topic) for topic in listed("app.pipeline", "static", static))
        result_topic = self._result_topic(writes, partitions, windowing)
        branch_topics = tuple(
            self._result_topic(topic, partitions, windowing) for topic in listed("app.pipeline", "branches", branches)
        )

        def register(function: F) -> F:
            pipeline_name = checked_name("pipeline", name_of("pipeline", name, function))
            _refuse_second("pipeline", pipeline_name, self._pipelines)
            declared = Pipeline(
                pipeline_name,
                function,
                reads_topics,
                result_topic,
                (key,) if isinstance(key, str) else tuple(key),
                static_topics,
                timestamp,
                output_mode,
                table_topics,
                branch_topics,
                windowing,
                whole_epochs,
                trigger_ms,
                result,
            )
            check_declared(declared)
            refuse_shared_results(declared, self._pipelines.values())
            refuse_other_writers([declared], self._writers)
            check_function(f"Pipeline {pipeline_name!r}", function, *(topic.name for topic in declared.inputs))
            self._pipelines[pipeline_name] = declared
            return function

        return register

    def topology(self) -> Topology:
        """Everything declared, grouped into subtopologies.

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

    def _topic(self, operator: str, topic: str | Topic, key: Serde | None = None, value: Serde | None = None) -> Topic:
        """The declared topic; a name that was not declared yet is, with these serdes (bytes by default)."""
        if not isinstance(topic, str | Topic):
            raise wrong_kind(operator, topic, "topic")
        if isinstance(topic, Topic):
            topic_name = topic.name
            wanted = self._topics.get(topic_name, topic)
        else:
            topic_name = checked_name("topic", topic)
            new = Topic(topic_name, key or serdes.bytes, value or serdes.bytes)
            wanted = self._topics.get(topic_name, new)
        if (key and key.name != wanted.key.name) or (value and value.name != wanted.value.name):
            raise TopologyError(
                f"Topic {topic_name!r} was declared with key {wanted.key.name} and value {wanted.value.name}: "
                "declare it once, with app.topic, and pass what that returns."
            )
        return self._declare(wanted)

    def _declare(self, topic: Topic) -> Topic:
        known = self._topics.setdefault(topic.name, topic)
        if known != topic:
            raise TopologyError(
                f"Topic {topic.name!r} was declared twice, differently: declare it once and pass what that returns."
            )
        return known

    def _result_topic(self, topic: str | Topic, partitions: int | None, windowing: Windowing | None) -> Topic:
        if isinstance(topic, Topic):
            return self._declare(topic)
        if not isinstance(topic, str):
            raise wrong_kind("app.pipeline", topic, "topic")
        name = checked_name("topic", topic)
        key: Serde = serdes.string if windowing is None else serdes.WindowedSerde(serdes.string, windowing.kind)
        new = Topic(name, key, serdes.json, partitions=partitions)
        return self._declare(self._topics.get(name, new))

    def _given(
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
            self._refuse_undeclared(operator, definition)
        for topic in forwards:
            if not isinstance(topic, Topic):
                raise wrong_kind(operator, topic, "declared topic")
        check_function(operator, function, first, *(d.name for d in stores), *(t.name for t in forwards))
        self.claim_outputs(operator, forwards)
        return stores, forwards

    def _refuse_undeclared(self, operator: str, definition: StoreDefinition) -> None:
        if self._stores.get(definition.name) != definition:
            raise TopologyError(
                f"{operator} uses the store {definition.name!r}, which was not declared: "
                "pass what app.store(…) or app.table(…) returned."
            )


def _refuse_second(what: str, name: str, taken: Mapping[str, object]) -> None:
    if name in taken:
        raise TopologyError(f"There is a {what} named {name!r} already: give one of them another name.")
