"""Whether every serde of a Schema Registry has one: found out before a process is started that would end at its first
record. Nobody is asked."""

from __future__ import annotations

from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.serde.registered import RegisteredSerde, innermost


def check_registries(topology: Topology) -> None:
    """Raise `ConfigurationError` for the first topic or store whose types are of a registry that no setting names."""
    declared: list[Topic | StoreDefinition] = [*topology.topics_known().values(), *topology.all_stores.values()]
    for what in declared:
        for serde in (what.key, what.value):
            inner = innermost(serde)
            if isinstance(inner, RegisteredSerde) and inner.binding is not None:
                inner.binding.registry.check(f"{what.name!r} has {inner.name}")
