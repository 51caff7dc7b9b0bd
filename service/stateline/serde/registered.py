"""The common part of a Schema Registry's serdes (Avro, Protobuf, JSON Schema), by confluent-kafka's serializers.

Their bytes have Confluent's wire format: a 0, the schema's id (4 bytes, big-endian), the payload. Reading an id needs
no topic. Writing registers the schema under the topic's subject, so a declaration **binds** a serde to its topic with
`bound_to`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal, Self

import orjson

from stateline.serde.binding import Binding, Role
from stateline.serde.json_view import json_text
from stateline.serde.plain import Serde, shown
from stateline.serde.schema_registry import SchemaRegistry, explained, import_extra
from stateline_store import ConfigurationError, InvalidArgumentError

_MAGIC = 0
# confluent-kafka's default asks the registry for associations first, which few registries have.
_STRATEGY = {"subject.name.strategy.type": "TOPIC"}


@dataclass(frozen=True)
class RegisteredSerde(ABC):
    """`registry` has settings of the serde's own registry, `conf` those of confluent's serializer. A serde that
    `looks_up` registers no schema. Serdes are equal if they write the same bytes for the same topic.

    Every method raises as `explained` and the protocol say."""

    registry: Mapping[str, object] | None = field(default=None, kw_only=True, hash=False)
    conf: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    binding: Binding | None = field(default=None, kw_only=True)
    looks_up: bool = field(default=False, kw_only=True, compare=False)
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    @abstractmethod
    def name(self) -> str:
        """Format and type, as ``avro(shop.Order)``, for all versions of the schema. In stores' files: never change."""

    @abstractmethod
    def _writer(self, client: Any) -> Any:
        """Confluent's serializer."""

    @abstractmethod
    def _reader(self, client: Any) -> Any:
        """Confluent's deserializer."""

    @abstractmethod
    def _plain(self, value: Any) -> Any:
        """The value as JSON has it."""

    @abstractmethod
    def _of_plain(self, value: Any) -> Any:
        """Return the value of this JSON. Raises `InvalidArgumentError`."""

    def bound_to(self, topic: str, role: Role, registry: SchemaRegistry) -> RegisteredSerde:
        own = registry if self.registry is None else SchemaRegistry(self.registry)
        return replace(self, binding=Binding(topic, role, own, self.binding))

    @property
    def is_looked_up(self) -> bool:
        """Whether the registry knew the schema's id."""
        return "registered" in self._made

    def looking_up(self) -> Self:
        return replace(self, looks_up=True)

    def serialize(self, value: Any) -> bytes:
        with explained(f"{shown(value)} cannot be written as {self.name}"):
            if value is None:
                raise InvalidArgumentError("there is no value")
            written: bytes = self._as_registered(value) if self.looks_up else self._call("_writer", value)
            return written

    def deserialize(self, data: bytes) -> Any:
        if not data or data[0] != _MAGIC:
            raise InvalidArgumentError(
                f"{shown(data)} is no {self.name}: it does not begin with 0 and a schema's id, so no serializer of a "
                "Schema Registry wrote it."
            )
        with explained(f"{shown(data)} cannot be read as {self.name}"):
            return self._call("_reader", data)

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        return self.from_json(_parsed(text, self))

    def from_json(self, value: Any) -> bytes:
        return self.serialize(self._of_plain(value))

    def to_json(self, data: bytes) -> Any:
        return orjson.Fragment(json_text(self._plain(self.deserialize(data))))

    key_to_json = to_json

    def _as_registered(self, value: Any) -> bytes:
        """Write with the schema's id, which is the same for every topic."""
        errors = import_extra("confluent_kafka.schema_registry.error", "avro")
        topics = self._made.get("registered") or self._bound().topics
        for topic in topics:
            try:
                written: bytes = self._call("_writer", value, topic)
            except errors.SchemaRegistryError as error:
                if error.http_status_code != HTTPStatus.NOT_FOUND:
                    raise
            else:
                self._made["registered"] = [topic]
                return written
        raise InvalidArgumentError(
            f"this schema is not registered for {self._bound().role}s of {' or '.join(topics)}, so nothing was written "
            "with it yet; one with other attributes, as avro.java.string, is another schema: declare what is registered"
        )

    def _call(self, what: Literal["_writer", "_reader"], given: Any, topic: str | None = None) -> Any:
        """`topic` overrides the serde's own topic."""
        binding = self._bound()
        client = binding.registry.client()
        if self._made.get("client") is not client:  # at first use or after a change of settings
            self._made.clear()
            self._made["client"] = client
        made = self._made.get(what)
        if made is None:
            made = self._made[what] = getattr(self, what)(client)
        name = ("context", topic)
        context = self._made.get(name)
        if context is None:
            kinds = import_extra("confluent_kafka.serialization", "avro")
            field_ = kinds.MessageField.KEY if binding.role == "key" else kinds.MessageField.VALUE
            context = self._made[name] = kinds.SerializationContext(topic or binding.topic, field_)
        return made(given, context)

    def _settings(self, kind: Any) -> dict[str, Any]:
        """Return the settings of `conf` that this serializer or deserializer knows. Each refuses those of the other."""
        known = kind._default_conf
        registers = {"auto.register.schemas": False} if self.looks_up else {}
        given = {**self.conf, **registers}
        return {**_STRATEGY, **{name: value for name, value in given.items() if name in known}}

    def _reader_settings(self, kind: Any) -> dict[str, Any]:
        """The reader uses the declared schema, not the registry's newest one."""
        return {**self._settings(kind), "use.latest.version": False}

    def _bound(self) -> Binding:
        if self.binding is None:
            raise ConfigurationError(
                f"This {self.name} serde is of no topic yet, and its schema is registered under a topic's name: take "
                "the `key` or `value` of what app.topic(…), app.table(…) or app.store(…) returned."
            )
        return self.binding

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}  # clients hold connections and locks


def json_of_text(serde: Serde, text: str) -> Any:
    """Return the JSON of a key that is written as this text. No registry is asked. For types of a registry, the text is
    the JSON, and is not checked against the schema. Raises `InvalidArgumentError` for a text of another type."""
    if not isinstance(innermost(serde), RegisteredSerde):
        return serde.to_json(serde.parse_text(text))
    return _parsed(text, serde)


def _parsed(text: str, serde: Serde) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"{shown(text)} is not the JSON of {serde.name}: {error}.") from error


def awaits_registry(serde: Serde) -> bool:
    """Whether the registry must be asked for the schema before the first key can be written."""
    inner = innermost(serde)
    return isinstance(inner, RegisteredSerde) and not inner.is_looked_up


def innermost(serde: Any) -> Any:
    """Return the innermost serde of wrapped ones, like windowed keys."""
    while (inner := getattr(serde, "inner", None)) is not None:
        serde = inner
    return serde
