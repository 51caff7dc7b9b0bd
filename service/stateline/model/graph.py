"""A topology as nodes and edges, for who draws it: subtopologies, global tables, pipelines. Pure.

All is in the order of declaration, so that the same application gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stateline.model.nodes import OperatorNode, Root
from stateline.model.pipeline import Pipeline
from stateline.model.processor import Processor
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Subtopology, Topology

DrawnKind: TypeAlias = Literal["topic", "table", "store", "global table", "processor", "operator", "pipeline"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """`key` is unique in the graph; `note` has details, or is empty."""

    key: str
    kind: DrawnKind
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """Records flow along an edge. With `uses`, the first node reads or writes the second, a store."""

    start: Drawn
    end: Drawn
    kind: Literal["flow", "uses"] = "flow"


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Parts of the graph that run together. `entries` take records, or are called by the clock. Topics and global
    tables may be in several parts. `subtopology` is its number, None if the part is no subtopology."""

    title: str
    entries: tuple[Drawn, ...]
    edges: tuple[Edge, ...]
    subtopology: int | None = None

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """All that is in it, each once."""
        found = [*self.entries, *(each for edge in self.edges for each in (edge.start, edge.end))]
        return tuple(dict.fromkeys(found))


def graph_of(topology: Topology) -> tuple[GraphPart, ...]:
    """The parts: subtopologies by number, then global tables, then pipelines."""
    parts = [_subtopology(subtopology) for subtopology in topology.subtopologies]
    for name, store in topology.global_tables.items():
        if store.source is not None:
            topic = _topic(store.source.name)
            edges = (Edge(topic, _global_table(store)),)
            parts.append(GraphPart(f"Global table {name}, whole on every worker", (topic,), edges))
    return (*parts, *map(_pipeline, topology.pipelines.values()))


def _subtopology(subtopology: Subtopology) -> GraphPart:
    edges: list[Edge] = []
    for store in subtopology.stores:
        if store.source is not None:
            edges.append(Edge(_topic(store.source.name), _store(store)))
    numbers: dict[int, int] = {}
    for processor in subtopology.processors:
        edges += _operators(processor, numbers, subtopology.ordinal) if processor.roots else _processor(processor)
    entries = [_topic(topic.name) for topic in subtopology.sources]
    entries += [_drawn(processor) for processor in subtopology.processors if processor.is_called_by_clock]
    number = subtopology.ordinal
    return GraphPart(f"Subtopology {number}", tuple(entries), tuple(dict.fromkeys(edges)), number)


def _drawn(processor: Processor) -> Drawn:
    every = processor.punctuation and f"every {processor.punctuation.every_ms} ms of {processor.punctuation.on}"
    return Drawn(f"processor {processor.name}", "processor", processor.name, every or "")


def _processor(processor: Processor) -> Iterator[Edge]:
    drawn = _drawn(processor)
    if not processor.is_called_by_clock:
        yield Edge(_topic(processor.source.name), drawn)
    yield from (Edge(drawn, _store(store), "uses") for store in processor.stores)
    yield from (Edge(drawn, _topic(topic.name)) for topic in processor.forwards)


def _operators(processor: Processor, numbers: dict[int, int], ordinal: int) -> Iterator[Edge]:
    """The nodes of one topic that no topic before had, and the edges to others. `numbers` are those of the
    subtopology's nodes: only the number distinguishes two filters."""

    def drawn(node: OperatorNode) -> Drawn:
        number = numbers.setdefault(id(node), len(numbers))
        return Drawn(f"operator {number} of {ordinal}", "operator", node.title or node.name)

    waiting: list[tuple[Drawn, Sequence[OperatorNode]]] = [(_start(root), root.children) for root in processor.roots]
    while waiting:
        start, children = waiting.pop(0)
        for child in children:
            is_new = id(child) not in numbers
            yield Edge(start, drawn(child))
            if is_new:
                yield from (Edge(drawn(child), _store(store), "uses") for store in child.stores)
                if child.global_table is not None:
                    yield Edge(drawn(child), _global_table(child.global_table), "uses")
                yield from (Edge(drawn(child), _topic(topic.name)) for topic in child.forwards)
                waiting.append((drawn(child), child.children))


def _start(root: Root) -> Drawn:
    return _topic(root.topic.name) if root.table is None else _store(root.table)


def _pipeline(pipeline: Pipeline) -> GraphPart:
    drawn = Drawn(f"pipeline {pipeline.name}", "pipeline", pipeline.name, f"{pipeline.output_mode} mode, on Spark")
    inputs = tuple(dict.fromkeys(_topic(topic.name) for topic in pipeline.inputs))
    edges = [*(Edge(topic, drawn) for topic in inputs), *(Edge(drawn, _topic(t.name)) for t in pipeline.results)]
    return GraphPart(f"Pipeline {pipeline.name}", inputs, tuple(edges))


def _topic(name: str) -> Drawn:
    return Drawn(f"topic {name}", "topic", name)


def _store(store: StoreDefinition) -> Drawn:
    return Drawn(f"store {store.name}", "store" if store.source is None else "table", store.name, _types(store))


def _global_table(store: StoreDefinition) -> Drawn:
    return Drawn(f"global table {store.name}", "global table", store.name, _types(store))


def _types(store: StoreDefinition) -> str:
    return f"{store.kind}, {store.key.name} → {store.value.name}"
