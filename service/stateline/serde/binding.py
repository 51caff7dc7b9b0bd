"""Serdes that need to know which topic they write for, as those of a Schema Registry do. Pure.

Such a serde has a method ``bound_to(topic, role, registry)``, which returns the one that writes keys, or values, of
this topic. It is called when a topic or a store is declared, with the topic's name or that of the store's changelog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from stateline.serde.plain import Serde
from stateline.serde.schema_registry import SchemaRegistry

Role: TypeAlias = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class Binding:
    """For which topic a serde writes, and by which registry. `before`: of which it was bound before, as the keys of a
    stream that a store takes over as they are."""

    topic: str
    role: Role
    registry: SchemaRegistry = field(compare=False)
    before: Binding | None = field(default=None, compare=False)

    @property
    def topics(self) -> list[str]:
        """This topic, and those before it."""
        return [self.topic, *([] if self.before is None else self.before.topics)]


@runtime_checkable
class Bindable(Protocol):
    """A serde that is bound."""

    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> Serde:
        """The serde that writes keys, or values, of this topic."""


@runtime_checkable
class Registering(Protocol):
    """A serde that registers a schema when it writes."""

    def looking_up(self) -> Serde:
        """The serde for what is asked for, which registers nothing. It raises `InvalidArgumentError` while its schema
        is not registered: nobody can have written it."""


@dataclass(frozen=True, slots=True)
class WrappingSerde:
    """A serde around `inner`, which is bound and looks up as the inner one does."""

    inner: Serde

    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> Self:
        return replace(self, inner=bound(self.inner, topic, role, registry))

    def looking_up(self) -> Self:
        return replace(self, inner=looking_up(self.inner))


def bound(serde: Serde, topic: str, role: Role, registry: SchemaRegistry) -> Serde:
    """The serde for this topic, where it asks for that; others are as they were."""
    return serde.bound_to(topic, role, registry) if isinstance(serde, Bindable) else serde


def looking_up(serde: Serde) -> Serde:
    """The serde for what is asked for, where that is another one."""
    return serde.looking_up() if isinstance(serde, Registering) else serde


def is_unbound(serde: Serde) -> bool:
    """Whether it was not told yet which topic it writes for, and wants to be."""
    inner = getattr(serde, "inner", None)
    if inner is not None:
        return is_unbound(inner)
    return isinstance(serde, Bindable) and getattr(serde, "binding", None) is None


def writes_as(one: Serde, other: Serde) -> bool:
    """Whether bytes that the one wrote are what the other would write: types of one name, for one topic."""
    if one.name != other.name:
        return False
    inner, others = getattr(one, "inner", None), getattr(other, "inner", None)
    if inner is not None and others is not None:
        return writes_as(inner, others)
    return one == other if isinstance(one, Bindable) else True


def in_topic_names(text: str) -> str:
    """The text as part of a topic's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
