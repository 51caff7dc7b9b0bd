"""Binds serdes of a Schema Registry to the topic that they write. Pure.

Such a serde has a method ``bound_to(topic, role, registry)``, which returns the serde of this topic's keys or values. A
declaration of a topic or a store calls it, with the name of the topic or of the store's changelog."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import orjson

from stateline.serde.plain import Serde, check_serde, shown
from stateline.serde.schema_registry import SchemaRegistry
from stateline_store import InvalidArgumentError

Role: TypeAlias = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class Binding:
    """The topic that a serde writes, and its registry. `before` is an earlier binding, if a store takes over a stream's
    keys."""

    topic: str
    role: Role
    registry: SchemaRegistry = field(compare=False)
    before: Binding | None = field(default=None, compare=False)

    @property
    def topics(self) -> list[str]:
        """Return this topic and the topics of earlier bindings."""
        return [self.topic, *([] if self.before is None else self.before.topics)]


@runtime_checkable
class Bindable(Protocol):
    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> Serde:
        """Return the serde that writes keys, or values, of this topic."""


@runtime_checkable
class Registering(Protocol):
    def looking_up(self) -> Serde:
        """Return the serde for queries, which registers nothing. It raises `InvalidArgumentError` while its schema is
        not registered: no row can have such bytes."""


@dataclass(frozen=True, slots=True)
class WrappingSerde:
    """A serde around `inner`. Binding it binds `inner`."""

    inner: Serde

    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> Self:
        return replace(self, inner=bound(self.inner, topic, role, registry))

    def looking_up(self) -> Self:
        return replace(self, inner=looking_up(self.inner))


@dataclass(frozen=True, slots=True)
class PartsSerde(WrappingSerde, ABC):
    """Rows that an operator keeps or sends, with parts of the serde `inner`. Text and JSON show the parts. A subclass
    has what else a serde has, and may accept JSON."""

    def __post_init__(self) -> None:
        check_serde(self.inner)

    def parse_text(self, text: str) -> bytes:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = text  # which `from_json` refuses
        return self.from_json(value)

    def from_json(self, value: Any) -> bytes:
        raise InvalidArgumentError(f"{shown(value)}: only an operator of Stateline writes such values.")

    @abstractmethod
    def deserialize(self, data: bytes) -> Any: ...

    @abstractmethod
    def to_json(self, data: bytes) -> Any: ...

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def key_to_json(self, data: bytes) -> Any:
        return self.to_json(data)


@dataclass(frozen=True, slots=True)
class TwoPartsSerde(PartsSerde):
    """Parts of two serdes. Binding it binds both."""

    other: Serde

    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> Self:
        inner, other = (bound(each, topic, role, registry) for each in (self.inner, self.other))
        return replace(self, inner=inner, other=other)

    def looking_up(self) -> Self:
        return replace(self, inner=looking_up(self.inner), other=looking_up(self.other))


def bound(serde: Serde, topic: str, role: Role, registry: SchemaRegistry) -> Serde:
    """Return the serde bound to this topic. Return a serde without a registry unchanged."""
    return serde.bound_to(topic, role, registry) if isinstance(serde, Bindable) else serde


def looking_up(serde: Serde) -> Serde:
    """Return the serde that queries use."""
    return serde.looking_up() if isinstance(serde, Registering) else serde


def is_unbound(serde: Serde) -> bool:
    """Whether the serde needs a topic and has none yet."""
    inner = getattr(serde, "inner", None)
    if inner is not None:
        return is_unbound(inner)
    return isinstance(serde, Bindable) and getattr(serde, "binding", None) is None


def writes_as(one: Serde, other: Serde) -> bool:
    """Whether both serdes write the same bytes: types of one name, for one topic."""
    if one.name != other.name:
        return False
    inner, others = getattr(one, "inner", None), getattr(other, "inner", None)
    if inner is not None and others is not None:
        return writes_as(inner, others)
    return one == other if isinstance(one, Bindable) else True


def in_topic_names(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
