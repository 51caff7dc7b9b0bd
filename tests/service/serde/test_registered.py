"""Serdes of a Schema Registry, against confluent-kafka's own serializers; its registry is in memory."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from service.serde.shop import ORDER, ORDER_JSON, WITH_CITY, WITH_NOTE, of_topic, order_message, registry
from stateline import serdes
from stateline.serde.binding import bound, looking_up, writes_as
from stateline.serde.external import ExternalKey, ExternalValue
from stateline.serde.plain import Serde, type_name
from stateline.serde.schema_registry import SchemaRegistry
from stateline.serde.windowed import SessionKey, WindowKey
from stateline_store import ConfigurationError, InvalidArgumentError, SchemaRegistryUnavailableError

CONTEXT = SerializationContext("orders", MessageField.VALUE)
AT = datetime(2026, 5, 1, 12, 0, 0, 250_000, UTC)
VALUE: dict[str, Any] = {"amount": 3, "price": Decimal("10.50"), "at": AT, "scan": b"\x00\xff"}
JSON: dict[str, Any] = {"amount": 3, "price": "10.50", "at": "2026-05-01T12:00:00.250000Z", "scan": "AP8="}


def as_json(serde: Serde, data: bytes) -> Any:
    return orjson.loads(orjson.dumps(serde.to_json(data)))


def test_avro_is_what_confluents_serializer_writes_and_its_deserializer_reads() -> None:
    at = registry()
    serde = of_topic(serdes.avro(ORDER), at)
    data = serde.serialize(VALUE)
    assert data == AvroSerializer(at.client(), orjson.dumps(ORDER).decode())(VALUE, CONTEXT)
    assert AvroDeserializer(at.client())(data, CONTEXT) == VALUE
    assert serde.deserialize(data) == VALUE
    assert at.client().get_latest_version("orders-value").schema_id == int.from_bytes(data[1:5], "big")


def test_a_record_of_an_older_schema_has_the_defaults_of_the_declared_one_and_a_newer_one_loses_what_that_lacks() -> (
    None
):
    at = registry()
    older, newer = of_topic(serdes.avro(ORDER), at), of_topic(serdes.avro(WITH_NOTE), at)
    assert newer.deserialize(older.serialize(VALUE)) == {**VALUE, "note": "none"}
    assert older.deserialize(newer.serialize({**VALUE, "note": "rush"})) == VALUE


def test_a_field_without_a_default_makes_older_records_unreadable_and_the_message_names_it() -> None:
    at = registry()
    data = of_topic(serdes.avro(ORDER), at).serialize(VALUE)
    with pytest.raises(InvalidArgumentError, match=r"No default value for field city"):
        of_topic(serdes.avro(WITH_CITY), at).check(data)


def test_json_shows_bytes_as_base64_decimals_digit_for_digit_and_times_as_text_and_reads_them_so() -> None:
    serde = of_topic(serdes.avro(ORDER), registry())
    assert as_json(serde, serde.serialize(VALUE)) == JSON
    assert serde.deserialize(serde.from_json(JSON)) == VALUE
    assert serde.parse_text(orjson.dumps(JSON).decode()) == serde.serialize(VALUE)
    assert as_json(serde, serde.from_json({**JSON, "scan": None}))["scan"] is None


def test_in_a_path_avro_text_stands_as_it_is_and_other_types_as_their_json() -> None:
    at = registry()
    text, number = of_topic(serdes.avro('"string"'), at), of_topic(serdes.avro('"long"'), at, "numbers")
    assert (text.name, number.name) == ("avro(string)", "avro(long)")
    assert text.deserialize(text.parse_text("a/b")) == "a/b"
    assert number.deserialize(number.parse_text("7")) == 7


@pytest.mark.parametrize(
    ("json", "message"),
    [
        ({**JSON, "amont": 1}, "'amont' is no field of shop.Order"),
        ({**JSON, "at": "2026-05-01T12:00:00"}, "has no zone"),
        ({**JSON, "price": "ten"}, "'ten' is no decimal"),
        ({**JSON, "scan": "%"}, "'%' is of none of the types null, bytes"),
        ({**JSON, "amount": "three"}, "amount"),
        (None, "there is no value"),
    ],
)
def test_json_of_another_shape_is_refused_and_what_is_wrong_is_named(json: Any, message: str) -> None:
    serde = of_topic(serdes.avro(ORDER), registry())
    with pytest.raises(InvalidArgumentError, match=message):
        serde.from_json(json)


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00\x00\x00\x00\x63xyz", b"\x00\x00", b"\x01" + bytes(20)])
def test_bytes_without_a_known_schema_are_none_of_the_type(data: bytes) -> None:
    for serde in (serdes.avro(ORDER), serdes.protobuf(order_message()), serdes.json_schema(ORDER_JSON)):
        with pytest.raises(InvalidArgumentError, match=rf"{serde.name.split('(')[0]}\("):
            of_topic(serde, registry()).check(data)


def test_a_registry_that_is_away_is_something_to_try_again_and_no_fault_of_the_record() -> None:
    away = SchemaRegistry({"url": "http://127.0.0.1:9", "max.retries": 0})
    with pytest.raises(SchemaRegistryUnavailableError, match=r"schema\.registry\.url"):
        of_topic(serdes.avro(ORDER), away).check(b"\x00\x00\x00\x00\x01abc")
    with pytest.raises(SchemaRegistryUnavailableError):
        of_topic(serdes.avro(ORDER), away).serialize(VALUE)


def test_without_an_address_the_setting_is_named_and_a_serde_of_no_topic_says_where_to_take_one() -> None:
    with pytest.raises(ConfigurationError, match=r"set schema\.registry\.url"):
        of_topic(serdes.avro(ORDER), SchemaRegistry({})).serialize(VALUE)
    with pytest.raises(ConfigurationError, match=r"of no topic yet"):
        serdes.avro(ORDER).serialize(VALUE)
    with pytest.raises(ConfigurationError, match=r"Unrecognized properties: urll"):
        of_topic(serdes.avro(ORDER), SchemaRegistry({"url": "http://h", "urll": "x"})).serialize(VALUE)


def test_a_registry_at_the_serde_goes_before_that_of_the_application() -> None:
    other = serdes.avro(ORDER, registry="mock://of-its-own")
    data = of_topic(other, SchemaRegistry({})).serialize(VALUE)
    assert SchemaRegistry({"url": "mock://of-its-own"}).client().get_subjects() == ["orders-value"]
    assert data[0] == 0


def test_settings_of_confluents_serializer_are_passed_on() -> None:
    serde = of_topic(serdes.avro(ORDER, conf={"auto.register.schemas": False}), registry())
    with pytest.raises(InvalidArgumentError, match="Not Found"):
        serde.serialize(VALUE)


@pytest.mark.parametrize("schema", ["record", {"type": "record"}, '{"type": "recrd"}', "", {"type": "array"}])
def test_what_is_no_avro_schema_is_refused_where_it_is_declared(schema: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is no Avro schema"):
        serdes.avro(schema)


def test_the_type_on_disk_is_format_and_name_whatever_version_of_the_schema() -> None:
    assert type_name(serdes.avro(ORDER)) == type_name(serdes.avro(WITH_NOTE)) == "avro(shop.Order)"
    assert type_name(serdes.protobuf(order_message())) == "protobuf(shop.Order)"
    assert type_name(serdes.json_schema(ORDER_JSON)) == "json_schema(Order)"
    assert type_name(serdes.avro({"type": "array", "items": ORDER})) == "avro(array of shop.Order)"
    assert type_name(serdes.avro(["null", ORDER])) == "avro(union)"
    assert type_name(serdes.windowed(serdes.avro('"string"'))) == "windowed-avro(string)"


def test_protobuf_is_what_confluents_deserializer_reads_and_json_is_protobufs_own_mapping() -> None:
    at, message = registry(), order_message()
    serde = of_topic(serdes.protobuf(message), at)
    order = message(amount=3, order_number=2**40, scan=b"\x00\xff")
    data = serde.serialize(order)
    assert ProtobufDeserializer(message, schema_registry_client=at.client())(data, CONTEXT) == order
    assert serde.deserialize(data) == order
    assert as_json(serde, data) == {"amount": 3, "orderNumber": str(2**40), "scan": "AP8="}
    assert serde.from_json({"amount": 3, "orderNumber": 2**40, "scan": "AP8="}) == data
    with pytest.raises(InvalidArgumentError, match="amont"):
        serde.from_json({"amont": 3})
    with pytest.raises(InvalidArgumentError, match=r"cannot be written as protobuf\(shop.Order\)"):
        serde.serialize({"amount": 3})


def test_a_protobuf_message_of_a_later_version_is_read_by_the_class_of_an_earlier_one() -> None:
    at = registry()
    older, newer = order_message(), order_message(with_note=True)
    data = of_topic(serdes.protobuf(newer), at).serialize(newer(amount=3, note="rush"))
    assert of_topic(serdes.protobuf(older), at).deserialize(data).amount == 3


def test_json_schema_is_what_confluents_deserializer_reads_and_what_the_schema_forbids_is_refused() -> None:
    at = registry()
    serde = of_topic(serdes.json_schema(ORDER_JSON), at)
    data = serde.serialize({"amount": 2**70})
    read = JSONDeserializer(orjson.dumps(ORDER_JSON).decode(), schema_registry_client=at.client())
    assert read(data, CONTEXT) == serde.deserialize(data) == {"amount": 2**70}
    assert orjson.dumps(serde.to_json(data)) == b'{"amount":%d}' % 2**70
    with pytest.raises(InvalidArgumentError, match="'three' is not of type 'integer'"):
        serde.serialize({"amount": "three"})
    with pytest.raises(InvalidArgumentError, match="'three' is not of type 'integer'"):
        serde.check(data[:5] + b'{"amount":"three"}')
    with pytest.raises(InvalidArgumentError, match="is no JSON Schema"):
        serdes.json_schema({"type": "integr"})


def test_a_serde_can_be_pickled_after_it_was_used() -> None:
    serde = of_topic(serdes.avro(ORDER), SchemaRegistry({"url": "mock://pickled"}))
    data = serde.serialize(VALUE)
    assert pickle.loads(pickle.dumps(serde)).deserialize(data) == VALUE


def test_one_of_the_same_schema_writes_the_same_only_for_the_same_topic_and_version() -> None:
    at = registry()
    one, windows = of_topic(serdes.avro(ORDER), at), serdes.windowed(serdes.avro(ORDER))
    assert writes_as(one, of_topic(serdes.avro(ORDER), at))
    assert not writes_as(one, of_topic(serdes.avro(ORDER), at, "others"))
    assert not writes_as(one, of_topic(serdes.avro(WITH_NOTE), at))
    assert not writes_as(bound(windows, "a", "key", at), bound(windows, "b", "key", at))
    assert writes_as(serdes.windowed(serdes.string), serdes.windowed(serdes.string))
    assert not writes_as(serdes.string, serdes.json)


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("fastavro", lambda: serdes.avro(ORDER), "avro"),
        ("confluent_kafka.schema_registry.protobuf", lambda: serdes.protobuf(order_message()), "protobuf"),
        ("jsonschema.validators", lambda: serdes.json_schema(ORDER_JSON), "json-schema"),
        ("msgpack", lambda: serdes.msgpack.serialize(1), "msgpack"),
    ],
)
def test_without_its_packages_a_serde_says_what_to_install(
    module: str, make: Callable[[], object], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'stateline\[{extra}\]'"):
        make()


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (serdes.avro('"string"'), "a"),
        (serdes.windowed(serdes.avro('"string"')), WindowKey("a", 0)),
        (serdes.session_windowed(serdes.avro('"string"')), SessionKey("a", 0, 1)),
        (serdes.time_windowed(serdes.avro('"string"')), WindowKey("a", 0)),
        (ExternalValue(serdes.avro('"string"'), "another's"), "a"),
        (ExternalKey(serdes.avro('"string"'), "another's", "key_value"), "a"),
    ],
    ids=["plain", "windowed", "session-windowed", "time-windowed", "external-value", "external-key"],
)
def test_what_is_asked_for_registers_nothing_whatever_is_around_it(serde: Serde, value: Any) -> None:
    at = registry()
    asking = looking_up(of_topic(serde, at))
    with pytest.raises(InvalidArgumentError, match="is not registered"):
        asking.serialize(value)
    assert at.client().get_subjects() == []
    written = of_topic(serde, at).serialize(value)
    assert asking.serialize(value) == written
