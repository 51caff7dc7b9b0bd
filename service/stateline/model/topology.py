"""What an application consists of, and how it falls into subtopologies and tasks. Pure: no log, no files.

Whatever is connected must run together, on the same partition number: a source topic and the processors and
tables that read it, a processor and its stores, two processors that share a store. Each such group is a
**subtopology**; what one writes and another reads (`forwards`, a repartition topic, a pipeline's result) does not
connect them. Subtopologies are numbered in the order in which their first source topic was declared; a **task**
is one partition of one subtopology, `<subtopology>_<partition>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stateline.deployment.table_topics import table_settings
from stateline.model.store_definition import StoreDefinition
from stateline.serde.plain import Serde, check_serde
from stateline_store import InvalidArgumentError, TopicPartition, TopologyError

if TYPE_CHECKING:
    from stateline.model.nodes import Root

# Kafka's rule for topic names; store names become parts of topic names and of paths.
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
# Of a pipeline's result that nobody keeps a table of: every row counts. Retention is the broker's.
_STREAM_SETTINGS = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
_REPARTITION_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": "52428800",  # Kafka Streams': what was worked off is freed segment by segment
    "message.timestamp.type": "CreateTime",
}


def epochs_topic(application_id: str, pipeline: str) -> str:
    """The topic of a pipeline's markers (`stateline.spark.sink.marker`). On disk: never change."""
    return f"{application_id}-{pipeline}-epochs"


def checked_name(what: str, name: str) -> str:
    """The name itself. Raises `InvalidArgumentError` unless Kafka takes it as (part of) a topic name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidArgumentError(f"{name!r} cannot be used as {what} name: use 1 to 200 of a-z A-Z 0-9 . _ - only.")
    return name


def checked_store_name(name: str) -> str:
    """As `checked_name`; refuses also what is a file or a directory of something else in a task's directory."""
    taken = checked_name("store", name).startswith(".") or name in ("rocksdb", "topics.json")
    if taken or name.endswith(("-v2", ".notice", ".position")):
        raise InvalidArgumentError(
            f"{name!r} cannot be used as store name: Stateline's own files are called so. Taken are 'rocksdb', "
            "'topics.json', names that begin with '.', and those that end with '-v2', '.notice' or '.position'."
        )
    return name


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and how its records are read.

    `schema` is a Spark DDL string (``"tailnum string, delay double"``) of JSON values, for pipelines.
    Stateline creates `internal` topics and those that a pipeline writes, with `partitions` if it says so;
    every other topic is the user's and must exist. `external` names the Kafka Streams application whose changelog it
    is: only that creates it and writes to it.
    """

    name: str
    key: Serde
    value: Serde
    schema: str | None = None
    partitions: int | None = None
    internal: bool = False
    external: str | None = None

    def __post_init__(self) -> None:
        check_serde(self.key)
        check_serde(self.value)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """When a function is called that sees no records: by the timestamps of the task's records, or by the clock."""

    every_ms: int
    on: Literal["stream_time", "wall_clock_time"]


@dataclass(frozen=True, slots=True)
class Processor:
    """A user's function that sees each record of a topic, with its stores and the topics it writes to; or, with
    `roots`, the operators that take the topic's records (`stateline.streams`); or, with a `punctuation`, a function
    that is called as time goes by (`source` is then a topic that feeds its stores)."""

    name: str
    function: Callable[..., object]
    source: Topic
    stores: tuple[StoreDefinition, ...] = ()
    forwards: tuple[Topic, ...] = ()
    roots: tuple[Root, ...] = field(default=(), repr=False)
    punctuation: Punctuation | None = None


@dataclass(frozen=True, slots=True)
class Windowing:
    """A pipeline's results are of windows or sessions: the struct column `column` (``start``, ``end``: timestamps, as
    Spark's `window` and `session_window` make it) is part of the key. `size_ms`: of a window its size, of a session the
    gap after which it ends."""

    kind: Literal["window", "session"]
    column: str
    size_ms: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A user's function from streaming DataFrames to one; `key` names the columns of the result's key.

    It is called with the `reads`, the `tables` (as `stateline.spark.KTable`) and the `static` topics. A row goes
    to `writes`, or to the one of `branches` that it names. `result` says what topics of its own the pipeline writes:
    the newest row of each key, or every row (`stateline.deployment.table_topics`). `trigger_ms` is the pause between
    the starts of two micro-batches, None for the configuration's.
    """

    name: str
    function: Callable[..., Any]
    reads: tuple[Topic, ...]
    writes: Topic
    key: tuple[str, ...]
    static: tuple[Topic, ...] = ()
    timestamp: str | None = None
    output_mode: Literal["append", "update", "complete"] = "update"
    tables: tuple[Topic, ...] = ()
    branches: tuple[Topic, ...] = ()
    windowing: Windowing | None = None
    whole_epochs: bool = False
    trigger_ms: int | None = None
    result: Literal["table", "stream"] = "table"

    @property
    def inputs(self) -> tuple[Topic, ...]:
        """All topics that it reads."""
        return (*self.reads, *self.tables, *self.static)

    @property
    def results(self) -> tuple[Topic, ...]:
        """All topics that it writes."""
        return (self.writes, *self.branches)


@dataclass(frozen=True, slots=True)
class Subtopology:
    """What runs together on one partition number."""

    ordinal: int
    sources: tuple[Topic, ...]
    stores: tuple[StoreDefinition, ...]
    processors: tuple[Processor, ...]

    def task_id(self, partition: int) -> str:
        """``<subtopology>_<partition>``."""
        return f"{self.ordinal}_{partition}"

    def tables(self, topic: str) -> tuple[StoreDefinition, ...]:
        """The tables kept of this source topic."""
        return tuple(s for s in self.stores if s.source is not None and s.source.name == topic)

    def readers(self, topic: str) -> tuple[Processor, ...]:
        """The processors of this source topic, in the order of declaration."""
        return tuple(p for p in self.processors if p.source.name == topic)

    def stores_fed_by(self, topic: str) -> tuple[str, ...]:
        """Names of the stores whose contents, and so whose Position, follow this source topic."""
        names = [store.name for store in self.tables(topic)]
        names += [s.name for p in self.readers(topic) for s in p.stores if s.source is None]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that Stateline creates; as many partitions as `like` has, unless `partitions` says."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: int | None = None
    like: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole application. Built by `App.topology`."""

    application_id: str
    subtopologies: tuple[Subtopology, ...]
    stores: Mapping[str, StoreDefinition]
    pipelines: Mapping[str, Pipeline]
    global_tables: Mapping[str, StoreDefinition] = field(default_factory=dict)  # every worker has each of them whole

    def subtopology_of(self, store: str) -> Subtopology:
        """The subtopology that holds this store. Raises `TopologyError` when none does."""
        for subtopology in self.subtopologies:
            if any(definition.name == store for definition in subtopology.stores):
                return subtopology
        raise TopologyError(f"No subtopology holds a store named {store!r}.")

    def whole_epochs(self) -> dict[str, frozenset[str]]:
        """Of pipelines whose micro-batches are to be seen whole: the topic of their markers → the result topics that
        the application reads itself."""
        read = {topic.name for subtopology in self.subtopologies for topic in subtopology.sources}
        found = {}
        for pipeline in self.pipelines.values():
            results = frozenset(t.name for t in pipeline.results) & read
            if pipeline.whole_epochs and results:
                found[epochs_topic(self.application_id, pipeline.name)] = results
        return found

    def epoch_numbers(self) -> dict[str, tuple[TopicPartition, ...]]:
        """Store → under which names it keeps the numbers of its epochs (`stateline.worker.epochs`); without the stores
        that have none."""
        found: dict[str, tuple[TopicPartition, ...]] = {}
        for topic, results in self.whole_epochs().items():
            fed = {name for s in self.subtopologies for result in results for name in s.stores_fed_by(result)}
            for name in fed:
                found[name] = (*found.get(name, ()), TopicPartition(topic, 0))
        return found

    def topics_read(self) -> dict[str, Topic]:
        """Topics that the application reads, by name: of processors, operators and tables, of pipelines, and those of
        which global tables are kept."""
        topics = [t for s in self.subtopologies for t in s.sources]
        topics += [t for p in self.pipelines.values() for t in p.inputs]
        topics += [d.source for d in self.global_tables.values() if d.source is not None]
        return {topic.name: topic for topic in topics}

    def required_topics(self) -> tuple[str, ...]:
        """Topics that the user must have created: sources, and what processors and pipelines use besides."""
        topics = [t for s in self.subtopologies for t in s.sources]
        topics += [t for s in self.subtopologies for p in s.processors for t in p.forwards]
        topics += [t for p in self.pipelines.values() for t in p.inputs]
        topics += [d.source for d in self.global_tables.values() if d.source is not None]
        created = {topic.name for topic in self.created_topics()}
        return tuple(dict.fromkeys(t.name for t in topics if t.name not in created))

    def external_topics(self) -> dict[str, str]:
        """Changelogs of Kafka Streams applications that stores are kept of → the application's id."""
        sources = [topic for subtopology in self.subtopologies for topic in subtopology.sources]
        return {topic.name: topic.external for topic in sources if topic.external is not None}

    def _beside(self, topic: Topic) -> tuple[str, ...]:
        """The users' topics that are processed together with this one, as those of the other side of a join are."""
        readers = [s for s in self.subtopologies if topic in s.sources]
        return tuple(t.name for s in readers for t in s.sources if not t.internal)

    def created_topics(self) -> tuple[InternalTopic, ...]:
        """Topics that Stateline creates when they are missing, each after those it takes its partitions from. A
        repartition topic takes them from the topics that it is joined with, else from those that its records are of."""
        topics: dict[str, InternalTopic] = {}
        tables = table_settings(self)
        for pipeline in self.pipelines.values():
            like = tuple(t.name for t in (*pipeline.reads, *pipeline.tables))
            for topic in pipeline.results:
                settings = tables.get(topic.name, _STREAM_SETTINGS)
                topics[topic.name] = InternalTopic(topic.name, settings, topic.partitions, like)
        for subtopology in self.subtopologies:
            like = tuple(t.name for t in subtopology.sources)
            for processor in subtopology.processors:
                for topic in processor.forwards:
                    if topic.internal:
                        beside = self._beside(topic) or like
                        topics[topic.name] = InternalTopic(topic.name, _REPARTITION_SETTINGS, topic.partitions, beside)
        for subtopology in self.subtopologies:
            like = tuple(t.name for t in subtopology.sources)
            for store in subtopology.stores:
                if store.source is None and (name := store.changelog(self.application_id)):
                    topics[name] = InternalTopic(name, store.changelog_settings(), None, like)
        return tuple(topics.values())


def subtopologies(stores: Iterable[StoreDefinition], processors: Iterable[Processor]) -> tuple[Subtopology, ...]:
    """Group what is connected (rules above). Raises `TopologyError` for a store that nothing reads or writes."""
    stores, processors = list(stores), list(processors)
    groups = _Groups()
    topics: dict[str, Topic] = {}
    for source in [*(store.source for store in stores), *(processor.source for processor in processors)]:
        if source is not None:
            topics.setdefault(source.name, source)
    for store in stores:
        if store.source is not None:
            groups.join(("topic", store.source.name), ("store", store.name))
    for processor in processors:
        groups.join(("topic", processor.source.name), ("processor", processor.name))
        for store in processor.stores:
            groups.join(("processor", processor.name), ("store", store.name))
    roots = list(dict.fromkeys(groups.root(("topic", name)) for name in topics))
    for store in stores:
        if groups.root(("store", store.name)) not in roots:
            raise TopologyError(
                f"No processor uses the store {store.name!r}: name it in `stores=[…]` of one, or remove it."
            )
    return tuple(
        Subtopology(
            ordinal,
            tuple(t for t in topics.values() if groups.root(("topic", t.name)) == root),
            tuple(s for s in stores if groups.root(("store", s.name)) == root),
            tuple(p for p in processors if groups.root(("processor", p.name)) == root),
        )
        for ordinal, root in enumerate(roots)
    )


_Node = tuple[str, str]


class _Groups:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._parents: dict[_Node, _Node] = {}

    def root(self, node: _Node) -> _Node:
        parent = self._parents.get(node, node)
        return node if parent == node else self.root(parent)

    def join(self, one: _Node, other: _Node) -> None:
        self._parents[self.root(other)] = self.root(one)
