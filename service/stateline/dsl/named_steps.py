"""Names of steps, which Kafka Streams calls `Named`."""

from __future__ import annotations

from typing import Self

from stateline.dsl.declarations import Declarations
from stateline.model.declared_at import says_where
from stateline.model.java_names import HintsAtJavaNames
from stateline.model.nodes import OperatorNode, Root


@says_where
class NamedStep(HintsAtJavaNames):
    """The result of a step, which may have a name."""

    _declarations: Declarations
    _node: OperatorNode | Root

    def named(self, name: str) -> Self:
        """Name the last step, in figures, drawings, logs and dead letters (Kafka Streams' `Named.as`). Names of stores
        and topics stay. Raises `TopologyError` for a name that another step or processor has."""
        self._declarations.name_step(self._node, name)
        return self
