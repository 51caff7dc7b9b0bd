"""JSON with a schema in the registry, by confluent-kafka's `JSONSerializer` and `JSONDeserializer`.

Values are what their JSON is in Python. Values that the declared schema does not allow are refused, when written and
when read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from stateline.serde.plain import JsonSerde, shown
from stateline.serde.registered import RegisteredSerde
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

_CONFLUENT, _EXTRA = "confluent_kafka.schema_registry.json_schema", "json-schema"
_JSON = JsonSerde()


@dataclass(frozen=True)
class JsonSchemaSerde(RegisteredSerde):
    """JSON checked against `schema`, the text of a JSON Schema. Raises `InvalidArgumentError` for other text,
    `ConfigurationError` if the packages of the extra are missing."""

    schema: str

    def __post_init__(self) -> None:
        import_extra(_CONFLUENT, _EXTRA)
        validators = import_extra("jsonschema.validators", _EXTRA)
        try:
            schema = orjson.loads(self.schema)
            validators.validator_for(schema).check_schema(schema)
        except Exception as error:  # jsonschema's own, and whatever it stumbles over
            raise InvalidArgumentError(
                f"schema={shown(self.schema)} is no JSON Schema ({type(error).__name__}: {str(error)[:200]})."
            ) from error

    @property
    def name(self) -> str:
        schema = orjson.loads(self.schema)
        title = schema.get("title") if isinstance(schema, dict) else None
        return "json_schema" if title is None else f"json_schema({title})"

    def _writer(self, client: Any) -> Any:
        kind = import_extra(_CONFLUENT, _EXTRA).JSONSerializer
        return kind(self.schema, client, conf=self._settings(kind), json_encode=_JSON.serialize)

    def _reader(self, client: Any) -> Any:
        kind = import_extra(_CONFLUENT, _EXTRA).JSONDeserializer
        conf = self._reader_settings(kind)
        return kind(self.schema, schema_registry_client=client, conf=conf, json_decode=_JSON.deserialize)

    def _plain(self, value: Any) -> Any:
        return orjson.Fragment(_JSON.serialize(value))

    def _of_plain(self, value: Any) -> Any:
        return value
