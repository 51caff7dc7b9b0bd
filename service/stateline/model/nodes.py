"""Operators as an application declares them, and what follows on each. Pure: the worker makes the operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic


@dataclass(eq=False, slots=True)
class OperatorNode:
    """One operator. Each task calls `make` with its `OperatorContext` (`stateline.processing.operators.interface`). The
    operator's results go to the `children`, in this order.

    The operator reads or writes `stores`, and writes to the topics `forwards`.
    - `looks_up`: it needs the table's rows as they were when each record was read.
    - `global_table`: it reads the current rows of a table beside the tasks.
    - `on_changes`: it calls a user's function for each change, and a failure costs only that change.
    - `in_order`: it needs the records of several topics in the order of their timestamps.
    - `joins_streams`: it takes `SideRows`, of several slices in the order of their records.
    - `chooses_topic`: it also writes to topics that are not known before.
    - `shares_stores`: for each record, it needs exactly the writes that other operators made up to that record.

    `title` is the name that the application gives to the step, empty for none. At the end of a step of several nodes,
    `named_with` are those that get its name instead.
    """

    name: str
    make: Callable[[Any], Any]
    stores: tuple[StoreDefinition, ...] = ()
    forwards: tuple[Topic, ...] = ()
    looks_up: StoreDefinition | None = None
    global_table: StoreDefinition | None = None
    on_changes: bool = False
    in_order: bool = False
    joins_streams: bool = False
    chooses_topic: bool = False
    shares_stores: bool = False
    title: str = ""
    named_with: tuple[OperatorNode, ...] = ()
    children: list[OperatorNode] = field(default_factory=list)

    def then(self, child: OperatorNode) -> OperatorNode:
        """Pass rows on to this node too, and return it."""
        self.children.append(child)
        return child


@dataclass(eq=False, slots=True)
class Root:
    """Where the records of a topic come in: as a stream, or as changes of a table that is kept of it."""

    topic: Topic
    make: Callable[[Any], Any]
    table: StoreDefinition | None = None
    children: list[OperatorNode] = field(default_factory=list)

    def then(self, child: OperatorNode) -> OperatorNode:
        self.children.append(child)
        return child


def nodes_of(roots: Iterable[Root]) -> list[OperatorNode]:
    """All that follows on these, each once."""
    waiting, found = [child for root in roots for child in root.children], dict[int, OperatorNode]()
    while waiting:
        node = waiting.pop(0)
        if id(node) not in found:
            found[id(node)] = node
            waiting += node.children
    return list(found.values())


def looks_up_its_own(roots: Sequence[Root]) -> bool:
    """Whether operators look up in a table that records of the same topic change. Then each record must go through all
    of them before the next one."""
    nodes = nodes_of(roots)
    changed = {root.table.name for root in roots if root.table is not None}
    changed |= {root.topic.name for root in roots}  # tables are looked for by their topic, too
    for node in nodes:
        if node.looks_up is None:
            changed |= {store.name for store in node.stores}
    wanted = [node.looks_up for node in nodes if node.looks_up is not None]
    return any(t.name in changed or (t.source is not None and t.source.name in changed) for t in wanted)


def shares_with_others(roots: Sequence[Root]) -> bool:
    """Whether a function sees stores that other operators change for records of the same topic. Then each record must
    go through all operators before the next one."""
    nodes = nodes_of(roots)
    tables = {root.topic.name for root in roots}
    for node in nodes:
        if node.shares_stores and node.on_changes and node.stores:
            return True  # it counts changes, say: a slice would show it the last ones alone
        if node.shares_stores:
            others = {store.name for each in nodes if each is not node for store in each.stores}
            if any(s.name in others or (s.source is not None and s.source.name in tables) for s in node.stores):
                return True
    return False


def is_met_twice(roots: Sequence[Root]) -> bool:
    """Whether rows of one topic part and meet again, in an operator or in a topic. Then each record must go through all
    operators before the next one, or a slice would come in another order."""
    parents: list[Root | OperatorNode] = [*roots, *nodes_of(roots)]
    met = [id(child) for parent in parents for child in parent.children]
    writers = [node for node in parents if isinstance(node, OperatorNode) and (node.forwards or node.chooses_topic)]
    topics = [topic.name for node in writers for topic in node.forwards]
    if len(writers) > 1 and any(node.chooses_topic for node in writers):
        return True  # it may be a topic of another one
    return len(set(met)) < len(met) or len(set(topics)) < len(topics)


def joins_in_order(roots: Iterable[Root]) -> list[OperatorNode]:
    """Return the joins of streams, each behind those whose results it takes."""
    found: dict[int, OperatorNode] = {}

    def visit(node: OperatorNode) -> None:
        if id(node) not in found:
            for child in node.children:
                visit(child)
            found[id(node)] = node

    for root in roots:
        for child in root.children:
            visit(child)
    return [node for node in reversed(found.values()) if node.joins_streams]


def meet_in_joins_alone(roots: Sequence[Root]) -> bool:
    """Whether rows of several topics meet in joins of streams, and nowhere else. Then operators may take the records of
    a slice topic by topic: the joins put them in order again."""
    nodes = nodes_of(roots)
    parents: list[Root | OperatorNode] = [*roots, *nodes]
    met = Counter(id(child) for parent in parents for child in parent.children)
    written = [topic.name for node in nodes for topic in node.forwards]
    written += [node.name for node in nodes if node.chooses_topic]
    aggregates = any(node.stores for node in nodes if not node.joins_streams)
    return (
        any(node.joins_streams for node in nodes)
        and all(met[id(node)] == 1 or node.joins_streams for node in nodes)
        and len(written) < 2  # in the order of its records, which several operators would mix
        and not aggregates  # of a slice of one topic, they would give the last changes alone
        and not any(root.table for root in roots)
        and not any(node.looks_up or node.global_table or node.shares_stores for node in nodes)
    )


def calls_on_changes(roots: Iterable[Root]) -> bool:
    """Whether a user's function is called with changes. One change may stand for several records of a key."""
    return any(node.on_changes for node in nodes_of(roots))
