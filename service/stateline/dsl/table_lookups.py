"""Declares joins of a stream with a table: lookups of each row's key, at once or after a grace period."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from stateline import serdes
from stateline.dsl.declarations import Declarations
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import checked_store_name
from stateline.processing.operators import HoldBack, StreamTableJoin
from stateline.serde.buffered_change import BufferedChangeSerde
from stateline.serde.plain import Serde
from stateline.stores import milliseconds
from stateline_store import TopologyError

_KINDS = ("key_value", "timestamped_key_value", "versioned")


class Grace(NamedTuple):
    """How long rows wait for older versions of the table, the type of their values, and the buffer's name, place and
    changelog settings."""

    time: timedelta
    value: Serde
    store: str | None
    persistent: bool
    changelog: Mapping[str, object] | None


def look_up(
    declarations: Declarations,
    parent: OperatorNode | Root,
    what: str,
    table: StoreDefinition,
    joiner: Callable[[bytes | None, Any, Any], Any],
    value: Serde,
    grace: Grace | None,
) -> OperatorNode:
    """Join the rows of `parent` with the table's value under their key. `what` is ``join`` or ``left_join``. Returns
    the node with the results. Raises `TopologyError` for a store that cannot be joined, and for a grace with a table
    that does not keep its versions for so long."""
    if table.kind not in _KINDS or not (table.is_operators or table.source is not None):
        raise TopologyError(
            f"{what}: {table.name!r} is no table of the values of keys: pass a Table, or what app.table(…) returned."
        )
    if grace is not None:
        parent = parent.then(_held_back(declarations, what, table, grace))
    name = f"{what} {table.name}"
    make = partial(StreamTableJoin, name, table, joiner, value, what == "left_join", None)
    return parent.then(OperatorNode(name, make, (table,), looks_up=table, in_order=True))


def _held_back(declarations: Declarations, what: str, table: StoreDefinition, grace: Grace) -> OperatorNode:
    grace_ms = milliseconds("grace", grace.time)
    if table.kind != "versioned" or grace_ms > table.retention_ms:
        history = f"keeps versions for {table.retention_ms} ms" if table.kind == "versioned" else "keeps no versions"
        raise TopologyError(
            f"{what} with grace={grace.time!r}: table {table.name!r} {history}. Declare it with versioned=…, a time of "
            "at least the grace."
        )
    left = what == "left_join"
    generate = partial(declarations.join_store_name, "KSTREAM-LEFTJOIN" if left else "KSTREAM-JOIN", what="Buffer")
    name = checked_store_name(generate() if grace.store is None else f"{grace.store}-Buffer")
    definition = StoreDefinition(name, "key_value", serdes.bytes, BufferedChangeSerde(grace.value), grace.persistent)
    kept = declarations.operators_store(definition, grace.changelog)
    return OperatorNode(f"hold back {name}", partial(HoldBack, f"{what} {name}", name, grace_ms, left), (kept,))
