"""The operators of one task, made from the declarations and run slice by slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateline.log.interface import Record
from stateline.model.nodes import (
    OperatorNode,
    calls_on_changes,
    is_met_twice,
    joins_in_order,
    looks_up_its_own,
    meet_in_joins_alone,
    nodes_of,
    shares_with_others,
)
from stateline.model.topology import Subtopology
from stateline.processing.operators.interface import Operator, OperatorContext, RecordSource
from stateline.processing.operators.rows import Changes, Rows, SideRows, merged
from stateline.processing.records import OutputRecord


class OperatorGraph:
    """One task's, for one thread. A node with several parents, such as a join's, is made once. Stores are open and
    restored."""

    def __init__(self, subtopology: Subtopology, context: OperatorContext) -> None:
        self._context, self.times = context, context.times
        self._made: dict[int, Operator] = {}
        self._sources: dict[str, list[tuple[RecordSource, Sequence[OperatorNode]]]] = {}
        self._one_by_one: set[str] = set()
        for processor in subtopology.processors:
            if processor.roots:
                topic = processor.source.name
                roots = sorted(processor.roots, key=lambda root: root.table is None)  # tables are there to look up in
                self._sources[topic] = [(root.make(context), root.children) for root in roots]
                if (
                    looks_up_its_own(roots)
                    or shares_with_others(roots)
                    or is_met_twice(roots)
                    or (context.failures.undoes_writes and calls_on_changes(roots))
                ):
                    self._one_by_one.add(topic)
                # All of them now: one that begins later would find what others have kept meanwhile.
                for node in nodes_of(roots):
                    self._operator(node)
        every_root = [root for processor in subtopology.processors for root in processor.roots]
        self._joins = joins_in_order(every_root)
        self.takes_together = meet_in_joins_alone(every_root) and not self._one_by_one
        self._for_joins: dict[int, list[SideRows]] = {}

    def takes(self, topic: str) -> bool:
        return topic in self._sources

    def takes_one_by_one(self, topic: str) -> bool:
        """Return whether each record of this topic must go through all operators before the next."""
        return topic in self._one_by_one

    def before_tables(self, topic: str, records: Sequence[Record]) -> None:
        """Show the operators readable records before the topic's tables take them."""
        for source, _ in self._sources.get(topic, ()):
            source.before(records)

    def process(self, topic: str, records: Sequence[Record]) -> list[OutputRecord]:
        """Process the same records afterwards. Returns the output."""
        return self.process_together({topic: records}, {})

    def process_together(
        self, records: Mapping[str, Sequence[Record]], order: Mapping[tuple[str, int], int]
    ) -> list[OutputRecord]:
        """Process records of several topics at once, if the graph `takes_together`. `order` has the place of each topic
        and offset in the slice. Returns the output."""
        for topic, of_topic in records.items():
            for source, children in self._sources.get(topic, ()):
                self._hand_on(source.read(of_topic), children)
        for node in self._joins:
            if rows := self._for_joins.pop(id(node), None):
                self._process(node, rows[0] if len(rows) == 1 else merged(rows, order))
        outputs, self._context.outputs = self._context.outputs, []
        return outputs

    def _hand_on(self, batch: Rows | SideRows | Changes | None, children: Sequence[OperatorNode]) -> None:
        if batch is None or not batch.records:
            return
        for node in children:
            if isinstance(batch, SideRows):
                self._for_joins.setdefault(id(node), []).append(batch)
            else:
                self._process(node, batch)

    def _process(self, node: OperatorNode, batch: Rows | SideRows | Changes) -> None:
        self._context.failures.give(_step(node), len(batch.records))
        self._context.has_readers, self._context.title = bool(node.children), node.title
        self._hand_on(self._operator(node).process(batch), node.children)

    def _operator(self, node: OperatorNode) -> Operator:
        if id(node) not in self._made:
            self._made[id(node)] = node.make(self._context)
        return self._made[id(node)]


def _step(node: OperatorNode) -> str:
    """Name a node's step. A lookup's has its table, because there may be several of one kind."""
    if node.title:
        return node.title
    table = node.looks_up or node.global_table
    return node.name if table is None else f"{node.name} {table.name}"
