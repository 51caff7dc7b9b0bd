"""`App`: one application's topics, tables, stores, processors and pipelines.

A user's module declares them. Declaring starts nothing: `stateline run module:app` reads the declarations and starts
the application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.declarations import Declarations
from stateline.dsl.pipeline_checks import check_windowing
from stateline.dsl.punctuations import punctuation_of
from stateline.dsl.several_topics import read_topics
from stateline.dsl.streams import Stream, Table
from stateline.dsl.table_kinds import inner_key, kind_of_table, windows_table
from stateline.dsl.wrong_kinds import listed, wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.event_time import Extractor, OnInvalid, declared_event_time
from stateline.model.external_stores import changelog_of, kept_from
from stateline.model.function_checks import name_of
from stateline.model.java_names import HintsAtJavaNames
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.store_definition import GlobalTable, StoreDefinition
from stateline.model.topic import Topic, checked_name
from stateline.model.topic_patterns import NamePattern
from stateline.model.topology import Topology
from stateline.processing.operators import TableSource, VersionedTableSource
from stateline.serde.plain import Serde, shown
from stateline.serde.registered import json_of_text
from stateline.serde.schema_registry import SchemaRegistry
from stateline.stores import milliseconds
from stateline_store import ConfigurationError, InvalidArgumentError, TopologyError

_REGISTRY = "schema.registry."
F = TypeVar("F", bound=Callable[..., Any])


@says_where
class App(HintsAtJavaNames):
    """An application. `application_id` prefixes its internal topics, and names its directory and its group.

    `config` has settings under their dotted names (``{"processing.guarantee": "exactly_once_v2"}``). A file, the
    environment and flags override them. `examples` has existing keys, as a URL writes them (``{"totals": "alice"}``).
    The server's OpenAPI document shows them.

    Every method raises `TopologyError` for a name that is taken, `InvalidArgumentError` for a name that Kafka would
    refuse."""

    def __init__(
        self,
        application_id: str,
        *,
        config: Mapping[str, Any] | None = None,
        examples: Mapping[str, str] | None = None,
    ) -> None:
        self.application_id = application_id
        self.target = "MODULE:APP"  # as commands are given it, once one was
        self.examples: Mapping[str, str] = dict(examples or {})
        checked = _checked(config)
        self.config: dict[str, Any] = dict(config or {})
        named = {n.removeprefix(_REGISTRY): v for n, v in self.config.items() if n.startswith(_REGISTRY)}
        self._declarations = Declarations(application_id, SchemaRegistry(named))
        self._declarations.auto_repartition = checked is not None and checked.topology_auto_repartition
        self._declarations.patterns.pin(None if checked is None else checked.pattern_topics)

    def configure(self, config: Config) -> None:
        """Give serdes the settings that are in force, ``schema.registry.*``, in place of those of the `App`; as Kafka
        Streams' ``Serde.configure``. Tables and operators' stores get their format, ``dsl.store.format``, and
        self-joins their stores, ``topology.optimization``, and patterns their topics. Commands and the test driver do
        it before anything is written or read."""
        self._declarations.registry.configure(config.schema_registry)
        self._use(config)

    def configured_topology(self, config: Config) -> Topology:
        """Return the topology with tables and operators' stores in the format of ``dsl.store.format``. Workers and
        servers begin with it, so that an `App` that was not configured has the same stores."""
        self._use(config)
        return self.topology()

    def _use(self, config: Config) -> None:
        self._declarations.store_format = config.dsl_store_format
        self._declarations.optimization = config.topology_optimization
        self._declarations.patterns.use(config)
        wanted, declared = config.topology_auto_repartition, self._declarations.auto_repartition
        if "topology_auto_repartition" in config.model_fields_set and wanted != declared:
            raise ConfigurationError(
                f"topology.auto.repartition={str(wanted).lower()} comes too late, because steps are declared already: "
                "give it in App(config=…) alone."
            )

    def topic(
        self,
        name: str,
        *,
        key: Serde = serdes.bytes,
        value: Serde = serdes.bytes,
        schema: str | None = None,
        timestamp: str | Extractor | None = None,
        on_invalid_timestamp: OnInvalid | None = None,
    ) -> Topic:
        """Declare a topic with the types of its records. Its owner creates it.

        `timestamp` is the source of a record's time. By default, that is the log. Two others are possible:

        - The name of a field of the JSON value (``"ride.ended_at"`` for a nested one). It has milliseconds, or ISO 8601
          text with a zone.
        - A function that returns milliseconds. It gets the record (`InputRecord`, with the log's timestamp), and its
          partition's time so far (milliseconds, -1 before the first record).

        `on_invalid_timestamp` applies if the time is missing, negative or no number. `fail` (the default) treats the
        record as unreadable, `skip` drops it, `partition_time` takes the largest time of its partition so far.

        Raises `TopologyError` for a field if values are not JSON, and for a function with other parameters.
        """
        event_time = declared_event_time(checked_name("topic", name), value, timestamp, on_invalid_timestamp)
        return self._declarations.declare(Topic(name, key, value, schema, event_time=event_time))

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
        return self._declarations.repartition(name, key, value, schema, partitions)

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
        ttl: timedelta | None = None,
        own_ttl: bool = False,
        headers: bool = False,
        persistent: bool = True,
    ) -> StoreDefinition:
        """Keep the newest value and timestamp of every key of a topic, in a timestamped key-value store.

        With `versioned`, a versioned store keeps every value of that period, by the records' timestamps.

        With `windowed` the topic has windows of that size, with `sessions` it has sessions, as a pipeline with a
        `windowing` writes them. A timestamped window or session store keeps them for `retention`. `key` is the type of
        the inner key. The topic's own key is ``serdes.windowed(key)`` or ``serdes.session_windowed(key)``.

        With `ttl` an entry is deleted when its timestamp is that much older than the newest one of its partition. Only
        tables of the newest values take it. With `own_ttl`, which keeps headers, the header ``stateline-expires-at`` of
        a record says when its entry expires (i64, big-endian, milliseconds since the epoch). `headers` keeps the
        records' headers, except in versioned stores.

        The store has the topic's name unless `store` names it. A record without a value deletes its key. A record
        without a key is dropped and counted. The topic is the store's changelog."""
        kind = kind_of_table(versioned, windowed, sessions=sessions, retention=retention, ttl=ttl, own_ttl=own_ttl)
        if headers and versioned is not None:
            raise InvalidArgumentError("headers=True: a versioned table keeps none. Leave one of the two out.")
        if kind in ("window", "session"):
            wrap = serdes.windowed if kind == "window" else serdes.session_windowed
            known = key or (None if self._declarations.is_declared(topic) else serdes.bytes)
            key = known if known is None or isinstance(known, serdes.WindowedSerde) else wrap(known)
        source = self._declarations.topic("app.table", topic, key, value)
        name, value = store or source.name, source.value
        if kind in ("window", "session"):
            inner = inner_key(source, kind)
            kept = windows_table(name, inner, value, windowed, retention, persistent=persistent)
        elif versioned is not None:
            milliseconds("versioned", versioned)  # as the argument is named here
            kept = stores.versioned(name, key=source.key, value=value, history=versioned, persistent=persistent)
        else:
            kept = stores.timestamped_key_value(
                name, key=source.key, value=value, ttl=ttl, own_ttl=own_ttl, persistent=persistent
            )
        return self.store(replace(kept, source=source, headers=headers or kept.own_ttl))

    def external_store(
        self, definition: StoreDefinition, *, of: str, changelog: str | None = None, store: str | None = None
    ) -> StoreDefinition:
        """Serve a store of the Kafka Streams application whose ``application.id`` is `of`, read only.

        `definition` (see `stateline.stores`) has the store's name, kind and types in that application, and the size and
        retention of its windows. The store is filled from its changelog: `changelog`, or ``<of>-<name>-changelog``.
        `store` gives it another name here. Writes that the application has not committed are never seen. Stateline
        neither writes nor creates topics of it.
        """
        if not isinstance(definition, StoreDefinition):
            raise wrong_kind("app.external_store", definition, "new store")
        topic = self._declarations.declare(changelog_of(self.application_id, definition, of, changelog))
        return self.store(kept_from(topic, definition, store))

    def stream(
        self,
        topic: str | Topic | Sequence[str | Topic] | NamePattern,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
    ) -> Stream:
        """The records of a topic as a stream, to be filtered, mapped, grouped, joined, written (`docs/streams.md`).

        Several topics make one stream, ``app.stream(["a", "b"])``. They have the same types. If a later step has a
        store, rows come in the order of their timestamps, and the topics need equal partition counts. The same holds
        for all topics whose full names match a pattern, ``app.stream(re.compile("orders-.*"))``. They are looked up
        when the application starts, or are those of ``topology.pattern.topics``."""
        return Stream(self._declarations, *read_topics(self._declarations, topic, key, value))

    def ktable(self, table: StoreDefinition) -> Table:
        """A table that `app.table` has declared, to be joined, or to have its changes taken as a stream.

        Raises `TopologyError` for other stores, and for windowed tables.
        """
        if not isinstance(table, StoreDefinition):
            raise wrong_kind("app.ktable", table, "declared table")
        self._declarations.refuse_undeclared("app.ktable", table)
        if table.source is None or table.kind not in ("timestamped_key_value", "versioned"):
            raise TopologyError(f"{table.name!r} is no table of the values of keys: pass what app.table(…) returned.")
        source = VersionedTableSource if table.kind == "versioned" else TableSource
        root = self._declarations.root(table.source, table, partial(source, table.name))
        return Table(self._declarations, root, table)

    def global_table(
        self,
        topic: str | Topic,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        store: str | None = None,
        persistent: bool = True,
    ) -> GlobalTable:
        """Keep the newest value of every key of a topic, from all partitions, at every worker.

        Rows of streams can be joined with it by any key (`Stream.join` with `on`), from any partition. A worker first
        reads the topic to its end, then takes other records and keeps reading. A persistent table continues where it
        stopped. Without `persistent` it is in memory, and is read from the beginning.

        It has the topic's name unless `store` names it. If a record cannot be read, the worker stops when
        ``deserialization.exception.handler`` is `fail`, and leaves the record out otherwise."""
        source = self._declarations.topic("app.global_table", topic, key, value)
        kept = stores.timestamped_key_value(
            store or source.name, key=source.key, value=source.value, persistent=persistent
        )
        return self._declarations.global_table(replace(kept, source=source))

    def store(self, definition: StoreDefinition) -> StoreDefinition:
        """Declare a store (see `stateline.stores`); processors that name it share it."""
        if not isinstance(definition, StoreDefinition):
            raise wrong_kind("app.store", definition, "new store")
        return self._declarations.store(definition)

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

        The function gets the record (`stateline.InputRecord`), then one `StoreView` for each of `stores`, then one
        `Output` for each of `forwards`. A keyword-only parameter `context` gets a `ProcessorContext`.
        ``processing.exception.handler`` handles its exceptions.
        """
        source = self._declarations.topic("app.process", topic, key, value)

        def register(function: F) -> F:
            own_name = name_of("processor", name, function)
            self._declarations.processor(own_name, function, source, stores, forwards)
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
        """Call the decorated function repeatedly, in each task that has these stores. Give at least one.

        The function gets the time in milliseconds since the epoch, then one `StoreView` for each of `stores`, then one
        `Output` for each of `forwards`, and a `context` as with `process`. `stream_time` is the largest timestamp of
        the task's records so far. The function is called at the first record, and then when stream time reaches the
        next multiple of `every`. Without records, stream time stops. `wall_clock_time` is the worker's clock.

        Its writes are committed like those of a record, even without input. ``processing.exception.handler`` handles an
        exception. Without a record there is no dead letter: `dead-letter` acts like `skip`."""
        punctuation = punctuation_of(every, on)

        def register(function: F) -> F:
            own_name = name_of("punctuation", name, function)
            self._declarations.punctuation(own_name, function, punctuation, stores, forwards)
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
        """Run the decorated function on Spark. It gets a streaming DataFrame for each of `reads`, then `tables`, then
        `static` ones, and returns one. `stateline.model.pipeline.Pipeline` explains the other arguments.

        Result rows become JSON records of the topic `writes`. The columns `key` are the record's key. Several are
        joined with "|" (`docs/formats/keys-and-values.md`). With `windowing`, the times of a window or session are part
        of it. The column `timestamp` is the record's timestamp, else the time of the micro-batch. Columns that begin
        with "_" are left out. A replayed micro-batch has no effect (`stateline.spark.sink.epoch_sink`).
        """
        if windowing is not None:
            check_windowing(windowing)
        if not isinstance(key, Iterable):
            raise TopologyError(f"app.pipeline: key={shown(key)}: give the name of a column, or a list of them.")
        inputs, results = self._declarations.topics, self._declarations.results
        several = reads if isinstance(reads, Iterable) and not isinstance(reads, str) else [reads]
        nameless = Pipeline(
            "",
            _not_given,
            reads=inputs("app.pipeline", "reads", several),
            tables=inputs("app.pipeline", "tables", tables),
            static=inputs("app.pipeline", "static", static),
            writes=results([writes], partitions, windowing)[0],
            branches=results(listed("app.pipeline", "branches", branches), partitions, windowing),
            key=(key,) if isinstance(key, str) else tuple(key),
            timestamp=timestamp,
            output_mode=output_mode,
            windowing=windowing,
            whole_epochs=whole_epochs,
            trigger_ms=trigger_ms,
            result=result,
        )

        def register(function: F) -> F:
            own_name = name_of("pipeline", name, function)
            self._declarations.pipeline(replace(nameless, name=own_name, function=function))
            return function

        return register

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that a pattern of `stream` matches."""
        return self._declarations.patterns.matching(topics)

    def topology(self) -> Topology:
        """Return all declarations, grouped into subtopologies. Topics of patterns are those of the settings. Otherwise
        they are looked up in the log, once for each `configure`.

        Raises `TopologyError` for a store that no processor uses, for writers to a store of another application, and
        for `examples` of an unknown store or with a key of another type. For a pattern that matches no topic, or a
        topic that is read already, it raises this too. Raises `LogUnavailableError` if the log must be asked.
        """
        topology = self._declarations.topology()
        _check_examples(self.examples, topology.all_stores)
        return replace(topology, target=self.target)


def _checked(config: Mapping[str, Any] | None) -> Config | None:
    """Return the settings with their types, None if none are given. Raises `ConfigurationError` for names that no
    setting has, and values that theirs cannot have."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise InvalidArgumentError(f"config={shown(config)}: give a dict of settings, {{'commit.interval.ms': 1000}}.")
    from stateline.config.loading import check_settings  # here: few applications need all settings

    return check_settings(config, "App(config=…)")


def _check_examples(keys: Mapping[str, str], declared: Mapping[str, StoreDefinition]) -> None:
    for name, key in keys.items():
        if name not in declared:
            raise TopologyError(f"examples: there is no store {name!r}. There are: {', '.join(declared) or 'none'}.")
        try:
            json_of_text(declared[name].key, key)
        except InvalidArgumentError as error:
            raise TopologyError(f"examples: the key of {name!r}: {error}") from error


def _not_given(*frames: object) -> object:
    raise AssertionError("The pipeline's function is given by the decorator.")
