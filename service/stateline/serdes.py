"""The ready-made serdes.

- plain: `string`, `json`, `bytes`, `int32`, `int64`, `float64`, `uuid`, `datetime`, `msgpack`
- of your own types: `model`
- of a Schema Registry: `avro`, `protobuf`, `json_schema`
- around one of these, for keys of windows or sessions: `windowed`, `session_windowed`, and `time_windowed` for Java
- around one of these, for stores of joins and of `suppress`: `held_back`, `subscriber`, `subscription`,
  `unmatched_key`, `unmatched_values`

docs/serdes.md and the modules of `stateline.serde` describe their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from stateline.serde.avro import AvroSerde, schema_text
from stateline.serde.buffered_change import BufferedChangeSerde
from stateline.serde.json_schema import JsonSchemaSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.plain import BytesSerde, FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde, shown
from stateline.serde.protobuf import ProtobufSerde
from stateline.serde.scalars import DatetimeSerde, UuidSerde
from stateline.serde.subscription import SubscriberSerde, SubscriptionSerde
from stateline.serde.unmatched import UnmatchedKeySerde, UnmatchedValuesSerde
from stateline.serde.windowed import TimeWindowedSerde, WindowedSerde
from stateline_store import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from stateline.serde.model import ModelSerde

__all__ = [
    "Serde",
    "TimeWindowedSerde",
    "WindowedSerde",
    "avro",
    "bytes",
    "datetime",
    "float64",
    "held_back",
    "int32",
    "int64",
    "json",
    "json_schema",
    "model",
    "msgpack",
    "protobuf",
    "session_windowed",
    "string",
    "subscriber",
    "subscription",
    "time_windowed",
    "unmatched_key",
    "unmatched_values",
    "uuid",
    "windowed",
]

string = StringSerde()
json = JsonSerde()
bytes = BytesSerde()  # shadows the builtin in this module alone, so that users write `serdes.bytes`
int32 = IntegerSerde("int32", 4)
int64 = IntegerSerde("int64", 8)
float64 = FloatSerde()
uuid = UuidSerde()
datetime = DatetimeSerde()
msgpack = MsgpackSerde()

_INSTEAD = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("int", "integer", "long", "bigint"), "int64"),
    **dict.fromkeys(("float", "double"), "float64"),
    **dict.fromkeys(("dict", "list", "object"), "json"),
    **dict.fromkeys(("bytearray", "binary"), "bytes"),
    **dict.fromkeys(("UUID",), "uuid"),
    **dict.fromkeys(("timestamp", "instant"), "datetime"),
    **dict.fromkeys(("dataclass", "pydantic"), "model"),
    **dict.fromkeys(("messagepack",), "msgpack"),
    **dict.fromkeys(("proto",), "protobuf"),
    **dict.fromkeys(("jsonschema",), "json_schema"),
}

if not TYPE_CHECKING:  # a type checker knows what there is, and says so itself

    def __getattr__(name: str) -> NoReturn:
        import difflib

        there = __all__[3:]
        near = [_INSTEAD[name]] if name in _INSTEAD else difflib.get_close_matches(name.lower(), there, n=1)
        use = f"use serdes.{near[0]}. There" if near else "there"
        raise AttributeError(f"There is no serde {name!r}: {use} are serdes.{', serdes.'.join(there)}.")


def avro(
    schema: str | Mapping[str, Any] | list[Any],
    *,
    registry: str | Mapping[str, object] | None = None,
    conf: Mapping[str, Any] | None = None,
) -> AvroSerde:
    """Avro in Confluent's wire format. `schema` is used to read and to write: JSON as text or as Python values.
    `registry`: the URL of a Schema Registry, or settings of confluent-kafka's client, instead of the application's
    ``schema.registry.*``. `conf`: settings of confluent-kafka's serializer, such as ``auto.register.schemas``.

    Raises `InvalidArgumentError` for an invalid schema, `ConfigurationError` without ``stateline[avro]``.
    """
    return AvroSerde(schema_text(schema), registry=_settings(registry), conf=conf or {})


def protobuf(
    message: type[Message], *, registry: str | Mapping[str, object] | None = None, conf: Mapping[str, Any] | None = None
) -> ProtobufSerde:
    """Protobuf in Confluent's wire format, for a class that protoc generated. Other parameters as for `avro`. Raises
    `InvalidArgumentError` for another class, `ConfigurationError` without ``stateline[protobuf]``."""
    return ProtobufSerde(message, registry=_settings(registry), conf=conf or {})


def json_schema(
    schema: str | Mapping[str, Any],
    *,
    registry: str | Mapping[str, object] | None = None,
    conf: Mapping[str, Any] | None = None,
) -> JsonSchemaSerde:
    """JSON with a schema in Confluent's wire format. Without a registry use `json`. Other parameters as for `avro`.
    Raises `InvalidArgumentError` for an invalid schema, `ConfigurationError` without ``stateline[json-schema]``."""
    return JsonSchemaSerde(schema_text(schema), registry=_settings(registry), conf=conf or {})


def model(of: type) -> ModelSerde:
    """JSON of a pydantic model, a dataclass or a TypedDict, validated when it is read. Raises `InvalidArgumentError`
    for a class that pydantic does not accept."""
    from stateline.serde.model import ModelSerde  # pydantic is slow to load, and most have it for no serde

    return ModelSerde(of)


def _settings(registry: str | Mapping[str, object] | None) -> Mapping[str, object] | None:
    if registry is None:
        return None
    settings = {"url": registry} if isinstance(registry, str) else registry
    if not isinstance(settings, Mapping):
        raise InvalidArgumentError(
            f"registry={shown(registry)}: give its URL, as 'http://localhost:8081', or a dict of settings."
        )
    if "://" not in str(settings.get("url")):
        raise InvalidArgumentError(f"registry={_public(settings)}: its url has to be one, as 'http://localhost:8081'.")
    return settings


def _public(settings: Mapping[str, object]) -> str:
    """Names, and the URL without its user: other values may be secret."""
    if "url" not in settings:
        return f"{{{', '.join(map(repr, settings))}}}"
    return repr(str(settings["url"]).rpartition("@")[2])


def windowed(inner: Serde) -> WindowedSerde:
    """Keys of a topic of windows, around keys of this serde."""
    return WindowedSerde(inner, "window")


def session_windowed(inner: Serde) -> WindowedSerde:
    """Keys of a topic of sessions, around keys of this serde."""
    return WindowedSerde(inner, "session")


def held_back(value: Serde) -> Serde:
    """Values of Kafka Streams' store of `suppress`, around values of this serde."""
    return BufferedChangeSerde(value)


def subscriber(foreign_key: Serde, key: Serde) -> Serde:
    """Keys of Kafka Streams' store of subscriptions: (foreign key, key)."""
    return SubscriberSerde(foreign_key, key)


def subscription(key: Serde) -> Serde:
    """Values of Kafka Streams' store of subscriptions, around the left table's keys."""
    return SubscriptionSerde(key)


def unmatched_key(key: Serde) -> Serde:
    """Keys of Kafka Streams' store of rows that wait in a join of streams: (timestamp, side, key)."""
    return UnmatchedKeySerde(key)


def unmatched_values(left: Serde, right: Serde) -> Serde:
    """Values of Kafka Streams' store of rows that wait in a join of streams: lists of values of one side."""
    return UnmatchedValuesSerde(left, right)


def time_windowed(inner: Serde) -> TimeWindowedSerde:
    """Keys of a topic of windows, around keys of this serde, for Java's windowed deserializers to read."""
    return TimeWindowedSerde(inner)
