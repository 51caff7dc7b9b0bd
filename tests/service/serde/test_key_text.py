"""Keys as text: the text of a key, or else its JSON, has the bytes of that key. Every serde of `stateline.serdes`."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from service.serde.shop import ORDER, ORDER_JSON, of_topic, order_message, registry
from stateline import serdes
from stateline.serde.key_text import key_of_text, key_text
from stateline.serde.plain import Serde


@dataclass
class Place:
    name: str


KEYS: dict[str, tuple[Callable[[], Serde], list[bytes]]] = {
    "string": (lambda: serdes.string, [b"", b"7", b"null", b"base64:AA"]),
    "json": (lambda: serdes.json, [b'{"a":1}', b'{ "a": 1 }', b"7.0"]),
    "bytes": (lambda: serdes.bytes, [b"\xff\xfe", b"~~~"]),
    "int32": (lambda: serdes.int32, [b"\xff\xff\xff\xff"]),
    "int64": (lambda: serdes.int64, [b"\x7f" + b"\xff" * 7]),
    "float64": (lambda: serdes.float64, [struct.pack(">d", x) for x in (0.5, math.nan, math.inf, -math.inf)]),
    "uuid": (lambda: serdes.uuid, [b"0198c0de-0000-7000-8000-0000000000aB"]),
    "datetime": (lambda: serdes.datetime, [struct.pack(">q", 1_700_000_000_123)]),
    "msgpack": (lambda: serdes.msgpack, [b"\x01", b"\xd0\x02", b"\xc4\x01a"]),
    "model": (lambda: serdes.model(Place), [b'{"name":"Bern"}', b'{ "name": "Ulm" }']),
    "avro": (lambda: of_topic(serdes.avro(ORDER), registry()), []),
    "protobuf": (lambda: of_topic(serdes.protobuf(order_message()), registry()), []),
    "json_schema": (lambda: of_topic(serdes.json_schema(ORDER_JSON), registry()), []),
}
AROUND: dict[str, tuple[Callable[[Serde], Serde], Callable[[bytes], bytes]]] = {
    "windowed": (serdes.windowed, lambda key: key + struct.pack(">qi", 60_000, 0)),
    "session_windowed": (serdes.session_windowed, lambda key: key + struct.pack(">qq", 60_001, 60_000)),
    "time_windowed": (serdes.time_windowed, lambda key: key + struct.pack(">q", 60_000)),
    "subscriber": (
        lambda serde: serdes.subscriber(serde, serdes.string),
        lambda key: struct.pack(">i", len(key)) + key + b"p",
    ),
    "unmatched_key": (serdes.unmatched_key, lambda key: struct.pack(">qb", 60_000, 1) + key),
}
NO_KEYS = {"held_back", "subscription", "unmatched_values"}


def keys_of(name: str) -> tuple[Serde, list[bytes]]:
    """The serde of this name, and keys of it; of a Schema Registry's types those that the serde writes."""
    make, keys = KEYS[name]
    serde = make()
    if name == "avro":
        keys = [serde.from_json({"amount": 3, "price": "10.50", "at": "2026-05-01T12:00:00Z", "scan": None})]
    elif name == "protobuf":
        keys = [serde.from_json({"amount": 3})]
    elif name == "json_schema":
        keys = [serde.serialize({"amount": 3})]
    return serde, keys


def found_by(serde: Serde, data: bytes) -> bytes:
    """The bytes of the key that an answer shows for these bytes, when it is sent back."""
    if (text := key_text(serde, data)) is not None:
        return key_of_text(serde, text)
    return serde.from_json(orjson.loads(orjson.dumps(serde.key_to_json(data))))


def test_there_are_keys_of_every_serde() -> None:
    made: set[Any] = {name for name in serdes.__all__ if name[0].islower()}
    assert made == {*KEYS, *AROUND, *NO_KEYS}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_finds_itself_as_an_answer_shows_it(name: str) -> None:
    serde, keys = keys_of(name)
    assert [found_by(serde, key) for key in keys] == keys


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_several_parts_finds_itself_as_an_answer_shows_it(name: str, around: str) -> None:
    wrap, whole = AROUND[around]
    inner, keys = keys_of(name)
    assert [found_by(wrap(inner), whole(key)) for key in keys] == [whole(key) for key in keys]
