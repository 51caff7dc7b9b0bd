"""Avro, by confluent-kafka's `AvroSerializer` and `AvroDeserializer`, which read and write with fastavro.

Values are what fastavro has: a dict for a record, `datetime` in UTC for timestamps, `Decimal` for decimals. The
declared schema is the reader's; the writer's comes from the registry by its id, so that fields which one of the two
does not have are dropped, or get their default (Avro's schema resolution; `stateline.serde.avro_defaults`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from stateline.serde.avro_defaults import Defaults
from stateline.serde.avro_json import of_json, type_of
from stateline.serde.plain import shown
from stateline.serde.registered import RegisteredSerde
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

_CONFLUENT = "confluent_kafka.schema_registry.avro"


@dataclass(frozen=True)
class AvroSerde(RegisteredSerde):
    """`schema` is the text of an Avro schema. Raises `InvalidArgumentError` for one that Avro does not know,
    `ConfigurationError` where the packages of the extra are missing."""

    schema: str

    _defaults: Defaults = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import_extra(_CONFLUENT, "avro")
        import_extra("fastavro", "avro")
        try:
            object.__setattr__(self, "_defaults", Defaults(self.schema))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"schema={shown(self.schema)} has a wrong default: {error}.") from error
        except Exception as error:  # fastavro raises whatever it stumbles over
            raise InvalidArgumentError(
                f"schema={shown(self.schema)} is no Avro schema ({type(error).__name__}: {error}): give its JSON, as "
                '\'{"type": "record", "name": "Order", "fields": […]}\' or \'"long"\'.'
            ) from error

    @property
    def name(self) -> str:
        return f"avro({type_of(orjson.loads(self.schema))})"

    def parse_text(self, text: str) -> bytes:
        """A string stands in a path as it is; others as their JSON."""
        return self.serialize(text) if self.name == "avro(string)" else super().parse_text(text)

    def _writer(self, client: Any) -> Any:
        kind, defaults = import_extra(_CONFLUENT, "avro").AvroSerializer, self._defaults
        complete = (lambda value, context: defaults.completed(value)) if defaults else None
        return kind(client, self.schema, to_dict=complete, conf=self._settings(kind))

    def _reader(self, client: Any) -> Any:
        kind, defaults = import_extra(_CONFLUENT, "avro").AvroDeserializer, self._defaults
        settings = self._reader_settings(kind)
        if not defaults:
            return kind(client, self.schema, conf=settings)
        return kind(client, defaults.marked_schema, lambda value, context: defaults.filled(value), conf=settings)

    def _plain(self, value: Any) -> Any:
        return value

    def _of_plain(self, value: Any) -> Any:
        return of_json(orjson.loads(self.schema), value)


def schema_text(schema: object) -> str:
    """The text of a schema that is given as text, or as what its JSON is in Python."""
    return schema if isinstance(schema, str) else orjson.dumps(schema).decode()
