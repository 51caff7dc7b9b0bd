"""The terms of a query: isolation level, bound, wait, and the copies that may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

import orjson

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError, IsolationLevel, Position

Level = IsolationLevel | Literal["read_committed", "read_uncommitted"]
GivenPosition = Position | Mapping[str, Mapping[str, int]] | Mapping[str, Mapping[int, int]]
"""A Position, or its JSON, as `stateline produce` prints it: topic → partition → offset."""


class TermArguments(TypedDict, total=False):
    """Terms as keyword arguments of a client, a store or a call. A call's win over a store's, and those over a
    client's."""

    isolation_level: Level
    bound: GivenPosition
    wait_ms: int
    require_active: bool
    max_staleness_ms: int
    partitions: Sequence[int]
    allow_partial: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a query. None leaves a term to the server."""

    isolation_level: Level | None = None
    bound: Position | None = None
    """The Position that the answer must cover."""
    wait_ms: int | None = None
    """Milliseconds that the server waits for the bound. It refuses more than its `server.wait.max.ms`."""
    require_active: bool = False
    partitions: Sequence[int] | None = None
    allow_partial: bool = False
    max_staleness_ms: int | None = None
    """If another machine may have the partition, a copy at most this many milliseconds behind may answer."""

    def with_(self, given: TermArguments) -> Terms:
        """Return these terms, replaced by the given ones. Raises `InvalidArgumentError` for an unknown level, and for a
        bound that is no Position."""
        if (bound := given.get("bound")) is not None:
            given = {**given, "bound": position_of("bound", bound)}
        terms = replace(self, **cast(Any, given))
        if terms.isolation_level is not None and terms.isolation_level not in list(IsolationLevel):
            levels = ", ".join(level.value for level in IsolationLevel)
            raise InvalidArgumentError(f"isolation_level={terms.isolation_level!r} is not one of {levels}.")
        return terms

    def at_least(self, seen: Position, wait_ms: int) -> Terms:
        """Return these terms with a bound that also covers `seen`. `wait_ms` applies if they have no wait."""
        if not seen:
            return self
        bound = seen if self.bound is None else self.bound.merge(seen)
        return replace(self, bound=bound, wait_ms=wait_ms if self.wait_ms is None else self.wait_ms)

    def members(self) -> dict[str, Any]:
        """Return the terms as members of a JSON body, by HTTP's names."""
        members = {
            "isolation_level": None if self.isolation_level is None else IsolationLevel(self.isolation_level).value,
            "position_bound": self.bound.to_json() if self.bound else None,
            "wait_ms": self.wait_ms,
            "require_active": self.require_active or None,
            "max_staleness_ms": self.max_staleness_ms,
            "partition": None if self.partitions is None else list(self.partitions),
            "allow_partial": self.allow_partial or None,
        }
        return {name: value for name, value in members.items() if value is not None}


def position_of(name: str, value: object) -> Position:
    """Return a Position that was given as one, or as JSON. Raises `InvalidArgumentError` for anything else."""
    if isinstance(value, Position):
        return value
    try:
        return Position.from_json(_with_text(value))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{name}={shown(value)} is no Position: {error} Give the position of an answer, or a dict of it in JSON."
        ) from error


def _with_text(value: object) -> object:
    """Return the value with partition numbers as texts, as in JSON."""
    if not isinstance(value, Mapping):
        return value
    return {
        topic: {str(p) if type(p) is int else p: offset for p, offset in each.items()}
        if isinstance(each, Mapping)
        else each
        for topic, each in value.items()
    }


def parameter_text(value: Any) -> str:
    """Return a member as the text of a URL's parameter: lists with commas, booleans and objects as JSON."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()
