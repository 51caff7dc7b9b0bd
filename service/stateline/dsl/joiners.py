"""Joiners as an application gives them: functions of two values, or of the key and two values. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stateline.model.function_checks import check_function, wants
from stateline.serde.plain import Serde

Joiner: TypeAlias = Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
"""Takes the left value, then the right one, and returns the result. None is no result. One with three parameters takes
the key before them (Kafka Streams' `ValueJoinerWithKey`)."""


def joiner_of(operator: str, joiner: Joiner, key: Serde, other: str) -> Callable[[bytes | None, Any, Any], Any]:
    """Return a function of the key's bytes and both values. `key` reads the key, if the joiner takes it. `other` names
    the right value in errors. Raises `TopologyError` for a joiner with other parameters."""
    called: Any = joiner
    if not wants(joiner, 3):
        check_function(operator, joiner, "value", other, role="joiner", before="the key")
        return lambda _, left, right: called(left, right)
    check_function(operator, joiner, "key", "value", other, role="joiner")
    read = key.deserialize
    return lambda data, left, right: called(None if data is None else read(data), left, right)
