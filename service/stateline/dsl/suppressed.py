"""Declares a table whose changes are held back: its store, with Kafka Streams' name, and its operator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stateline.dsl.declarations import Declarations
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import checked_store_name
from stateline.model.unnamed_stores import number_in
from stateline.model.windows import UntilTimeLimit
from stateline.processing.operators import Bounds, Suppress
from stateline.serde.buffered_change import BufferedChangeSerde
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError


def checked_bounds(max_records: int | None, max_bytes: int | None, when_full: str) -> Bounds:
    """Return the bounds. Raises `InvalidArgumentError`."""
    for name, most in (("max_records", max_records), ("max_bytes", max_bytes)):
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
            raise InvalidArgumentError(f"{name}={shown(most)}: a number, 0 or more, or None is accepted.")
    if when_full not in ("emit", "stop"):
        raise InvalidArgumentError(
            f'when_full={shown(when_full)}: "emit" (changes leave early) or "stop" (the worker ends) is accepted.'
        )
    return Bounds(max_records, max_bytes, when_full == "stop")


def suppressed(
    declarations: Declarations,
    parent: OperatorNode | Root,
    table: StoreDefinition,
    name: str | None,
    until: UntilTimeLimit,
    bounds: Bounds,
    *,
    persistent: bool,
    changelog: Mapping[str, object] | None,
) -> tuple[OperatorNode, StoreDefinition]:
    """Return the node whose changes leave, and the store of what waits."""
    is_generated = name is not None and number_in(name, "KTABLE-SUPPRESS-STATE-STORE") is not None
    given = name if name is None or is_generated else f"{name}-store"
    store = checked_store_name(declarations.store_name(given, "KTABLE-SUPPRESS"))
    value = BufferedChangeSerde(table.value, is_change=True)
    definition = StoreDefinition(store, "key_value", table.key, value, persistent)
    kept = declarations.operators_store(definition, changelog)
    node = OperatorNode(f"suppress {store}", partial(Suppress, store, until.wait_ms, bounds), (kept,))
    return parent.then(node), kept
