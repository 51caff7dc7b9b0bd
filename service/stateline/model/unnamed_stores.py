"""Stores that the application has given no name: their names have a number, which moves when another one is declared
before them. A store with other inputs and operators than before is another store. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from stateline.model.nodes import OperatorNode, Root
from stateline.model.reset_command import reset_command
from stateline.model.topology import Topology
from stateline_store.errors import ConfigurationError

_GENERATED = re.compile(r" ?\b[A-Z-]+-(?:STATE-STORE-\d{10}|\d{10}-(?:store|Buffer))\b")


def generated_name(operator: str, number: int) -> str:
    """Kafka Streams' name of a store without one. In topics: never change."""
    return f"{operator}-STATE-STORE-{number:010d}"


def generated_join_name(operator: str, number: int, what: str = "store") -> str:
    """Kafka Streams' name of a store, or ``Buffer``, of a join without a name. In topics: never change."""
    return f"{operator}-{number:010d}-{what}"


def number_of_join(name: str) -> int:
    """Return the number in the name of a join's store."""
    return int(name.removesuffix("-store").rpartition("-")[2])


def number_in(name: str, before: str, after: str = "") -> int | None:
    """Return the number in a generated name of Kafka Streams that an application gives, None for another name."""
    found = re.fullmatch(rf"{before}-(\d{{10}}){after}", name)
    return None if found is None else int(found[1])


def check_names(topology: Topology, *, explicit: bool) -> None:
    """Raise `ConfigurationError` if names must be `explicit` and a store, with its changelog, has a generated one.
    Repartition topics always have names of the application's."""
    if not explicit or not topology.generated:
        return
    found = []
    for store, place in topology.generated.items():
        changelog = topology.stores[store].changelog(topology.application_id)
        topic = "without a changelog" if changelog is None else f"changelog {changelog!r}"
        found.append(f"{store!r} ({topic}, {place}: write store={store!r} to keep its rows)")
    raise ConfigurationError(
        f"ensure.explicit.internal.resource.naming = true, and these stores have generated names: {', '.join(found)}. "
        "A generated name changes when another store is declared before it. Name each store where it is declared."
    )


def made_of(topology: Topology) -> dict[str, str]:
    """Each such store → the topic and the operators that its rows come by, ``orders → filter → count``. On disk."""
    found: dict[str, str] = {}
    for subtopology in topology.subtopologies:
        for processor in subtopology.processors:
            for root in processor.roots:
                for store, path in _stores(root):
                    if store in topology.generated:
                        found.setdefault(store, path)
    return found


def taken_over(topology: Topology, before: Mapping[str, str], created: Collection[str]) -> Iterator[str]:
    """Yield a warning for each store with rows that has other operators than `before`. A store whose changelog this
    start `created` has no rows."""
    for store, path in made_of(topology).items():
        changelog = topology.stores[store].changelog(topology.application_id)
        if before.get(store, path) != path and changelog not in created:
            yield (
                f"Store {store!r} has a generated name, and was made of `{before[store]}`, now of `{path}`. It keeps "
                "its rows. If you declared or removed stores without a name before it, these rows belong to another "
                "store: stop the application everywhere, start over "
                f"({reset_command(topology, [store])}), and give it a name."
            )


def _stores(root: Root) -> Iterator[tuple[str, str]]:
    """Each that is made here, and by which way; a node that makes one ends with its name."""
    waiting: list[tuple[OperatorNode, str]] = [(child, root.topic.name) for child in root.children]
    seen: set[int] = set()
    while waiting:
        node, before = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        path = f"{before} → {_GENERATED.sub('', node.name)}"
        for store in node.stores if node.looks_up is None else ():
            if _GENERATED.fullmatch(store.name) and node.name.endswith(f" {store.name}"):
                yield store.name, path
        waiting += [(child, path) for child in node.children]
