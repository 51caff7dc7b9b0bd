"""Protobuf, by confluent-kafka's `ProtobufSerializer` and `ProtobufDeserializer`. Values are messages of one class.

JSON is Protobuf's own mapping of messages (protobuf.dev/programming-guides/json): names in lowerCamelCase, 64-bit
integers as text, bytes as base64. Fields that this class does not have are kept, and not shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateline.serde.plain import shown
from stateline.serde.registered import RegisteredSerde
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

_CONFLUENT = "confluent_kafka.schema_registry.protobuf"


@dataclass(frozen=True)
class ProtobufSerde(RegisteredSerde):
    """`message` is a class that protoc generated. Raises `InvalidArgumentError` for anything else,
    `ConfigurationError` where the packages of the extra are missing."""

    message: type[Message]

    def __post_init__(self) -> None:
        import_extra(_CONFLUENT, "protobuf")
        if not isinstance(self.message, type) or not hasattr(self.message, "DESCRIPTOR"):
            raise InvalidArgumentError(
                f"{shown(self.message)} is no class of messages: give one that protoc generated."
            )

    @property
    def name(self) -> str:
        return f"protobuf({self.message.DESCRIPTOR.full_name})"

    @property
    def is_unordered(self) -> bool:
        """Whether the same message may become different bytes: maps have no order."""
        return _has_map(self.message.DESCRIPTOR, set())

    def _writer(self, client: Any) -> Any:
        kind = import_extra(_CONFLUENT, "protobuf").ProtobufSerializer
        return kind(self.message, client, conf=self._settings(kind))

    def _reader(self, client: Any) -> Any:
        kind = import_extra(_CONFLUENT, "protobuf").ProtobufDeserializer
        return kind(self.message, conf=self._reader_settings(kind), schema_registry_client=client)

    def _plain(self, value: Any) -> Any:
        from google.protobuf import json_format

        return json_format.MessageToDict(value)

    def _of_plain(self, value: Any) -> Any:
        from google.protobuf import json_format

        try:
            return json_format.ParseDict(value, self.message())
        except (json_format.ParseError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"{shown(value)} is not the JSON of {self.name}: {error}.") from error


def _has_map(descriptor: Any, seen: set[str]) -> bool:
    if descriptor.GetOptions().map_entry:
        return True
    seen.add(descriptor.full_name)
    inner = [field.message_type for field in descriptor.fields if field.message_type is not None]
    return any(_has_map(each, seen) for each in inner if each.full_name not in seen)
