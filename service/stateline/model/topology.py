"""The parts of an application, and its division into subtopologies and tasks. Pure: no log, no files.

Whatever is connected must run together, on the same partition number: a source topic and the processors and
tables that read it, a processor and its stores, two processors that share a store. Each such group is a
**subtopology**; what one writes and another reads (`forwards`, a repartition topic, a pipeline's result) does not
connect them. Subtopologies are numbered in the order in which their first source topic was declared; a **task**
is one partition of one subtopology, `<subtopology>_<partition>`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from stateline.model.external_stores import changelog_key
from stateline.model.nodes import nodes_of
from stateline.model.pipeline import Pipeline, epochs_topic
from stateline.model.processor import Processor
from stateline.model.store_definition import StoreDefinition, changelog_name
from stateline.model.topic import Topic
from stateline_store import TopicPartition, TopologyError
from stateline_store.task_id import TaskId


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Topics, processors and stores that run together on one partition number."""

    ordinal: int
    sources: tuple[Topic, ...]
    stores: tuple[StoreDefinition, ...]
    processors: tuple[Processor, ...]

    def task_id(self, partition: int) -> TaskId:
        """The task that this partition of it is."""
        return TaskId(self.ordinal, partition)

    def tables(self, topic: str) -> tuple[StoreDefinition, ...]:
        """The tables kept of this source topic."""
        return tuple(s for s in self.stores if s.source is not None and s.source.name == topic)

    def readers(self, topic: str) -> tuple[Processor, ...]:
        """The processors of this source topic, in the order of declaration."""
        return tuple(p for p in self.processors if p.source.name == topic)

    def is_read_by_group(self, *, dead_letters: bool) -> bool:
        """Whether the group's committed offsets say where to go on in the source topics, and not the tables' own.

        So it must be when reading a record again would do more than put it into a table again, and when processors look
        tables up: their rows must meet a table that is no further than they are. `dead_letters`: records that cannot
        be read are written to a topic.
        """
        return bool(self.processors) or dead_letters

    def stores_fed_by(self, topic: str) -> tuple[str, ...]:
        """Names of the stores whose contents, and so whose Position, follow this source topic."""
        names = [store.name for store in self.tables(topic)]
        names += [s.name for p in self.readers(topic) for s in p.stores if s.source is None]
        return tuple(dict.fromkeys(names))

    def sources_of(self, store: str) -> tuple[Topic, ...]:
        """The source topics that this store's Position follows."""
        return tuple(topic for topic in self.sources if store in self.stores_fed_by(topic.name))

    def is_called_by_clock(self, store: str) -> bool:
        """Whether a function that the clock calls may write this store: then the store changes without input."""
        return any(kept.name == store for p in self.processors if p.is_called_by_clock for kept in p.stores)

    def needs_order(self) -> bool:
        """Whether records of its several topics must be taken by their timestamps."""
        roots = [root for processor in self.processors for root in processor.roots]
        return len(self.sources) > 1 and any(node.in_order for node in nodes_of(roots))


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole application. Built by `App.topology`. `target` is what commands are given for it. `generated`: each
    store that the application has not named, and where it is declared. `patterns`: those of topics that it reads."""

    application_id: str
    subtopologies: tuple[Subtopology, ...]
    stores: Mapping[str, StoreDefinition]
    pipelines: Mapping[str, Pipeline]
    global_tables: Mapping[str, StoreDefinition] = field(default_factory=dict)  # every worker has each of them whole
    target: str = "MODULE:APP"
    generated: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[re.Pattern[str], ...] = ()

    @property
    def all_stores(self) -> Mapping[str, StoreDefinition]:
        """Those of tasks, and global tables."""
        return {**self.stores, **self.global_tables}

    def digest(self) -> str:
        """Return 16 hex digits, equal for applications with the same tasks that can read each other's stores. Other
        nodes compare it. On the wire and in topics: never change."""
        return self._digest_of(lambda store: store.description)

    def tasks_digest(self) -> str:
        """Return a `digest` that ignores whether stores have timestamps. Applications with equal digests have the same
        tasks and changelogs, and can show each other's rows. On the wire and in topics: never change."""
        return self._digest_of(lambda store: store.plain_description)

    def _digest_of(self, described: Callable[[StoreDefinition], str]) -> str:
        told = [
            [s.ordinal, [topic.name for topic in s.sources], [[store.name, described(store)] for store in s.stores]]
            for s in self.subtopologies
        ]
        return hashlib.sha256(orjson.dumps(told)).hexdigest()[:16]

    def subtopology_of(self, store: str) -> Subtopology:
        """The subtopology that holds this store. Raises `TopologyError` when none does."""
        for subtopology in self.subtopologies:
            if any(definition.name == store for definition in subtopology.stores):
                return subtopology
        raise TopologyError(f"No subtopology holds a store named {store!r}.")

    def subtopology_at(self, ordinal: int) -> Subtopology | None:
        """The subtopology with this number, None if there is none."""
        return next((each for each in self.subtopologies if each.ordinal == ordinal), None)

    def whole_epochs(self) -> dict[str, frozenset[str]]:
        """For pipelines with `whole_epochs`: the topic of their markers → the result topics that the application
        reads itself."""
        read = {topic.name for subtopology in self.subtopologies for topic in subtopology.sources}
        found = {}
        for pipeline in self.pipelines.values():
            results = frozenset(t.name for t in pipeline.results) & read
            if pipeline.whole_epochs and results:
                found[epochs_topic(self.application_id, pipeline.name)] = results
        return found

    def epoch_numbers(self) -> dict[str, tuple[TopicPartition, ...]]:
        """Store → the names under which it keeps the numbers of its epochs (`deployment.pipelines.epoch_marker`).
        Stores without epochs are left out."""
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

    def topics_known(self) -> dict[str, Topic]:
        """Topics that the application reads or writes, by name: `topics_read`, those that processors forward to, and
        results of pipelines."""
        found = {topic.name: topic for s in self.subtopologies for each in s.processors for topic in each.forwards}
        found |= {topic.name: topic for pipeline in self.pipelines.values() for topic in pipeline.results}
        return found | self.topics_read()

    def changelogs(self) -> dict[str, Topic]:
        """The stores' own changelogs, by name, with the types of their records. Those of stores of a user's own kind
        are left out."""
        found = {}
        for store in self.stores.values():
            if store.source is None and store.logged and store.plain_kind != "custom":
                name = changelog_name(self.application_id, store.name)
                found[name] = Topic(name, changelog_key(store), store.value, internal=True)
        return found

    def external_topics(self) -> dict[str, str]:
        """Changelogs of Kafka Streams applications that stores are kept of → the application's id."""
        sources = [topic for subtopology in self.subtopologies for topic in subtopology.sources]
        return {topic.name: topic.external for topic in sources if topic.external is not None}


def unused_stores(stores: Iterable[StoreDefinition], processors: Sequence[Processor]) -> list[StoreDefinition]:
    """Those that nothing reads or writes, and no topic feeds."""
    used = {store.name for processor in processors for store in processor.stores}
    return [store for store in stores if store.source is None and store.name not in used]


def subtopologies(stores: Iterable[StoreDefinition], processors: Iterable[Processor]) -> tuple[Subtopology, ...]:
    """Group what is connected (rules above). None of the stores is unused."""
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
