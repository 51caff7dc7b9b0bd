"""Bytes, text and JSON of every serde, against Kafka's own layouts."""

import json
import math
import struct
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline import serdes
from stateline.serde.plain import Serde
from stateline_store import InvalidArgumentError


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (serdes.string, "Zürich", "Zürich".encode()),
        (serdes.string, "", b""),
        (serdes.int32, -2, b"\xff\xff\xff\xfe"),
        (serdes.int64, 2**40, struct.pack(">q", 2**40)),
        (serdes.float64, 1.5, struct.pack(">d", 1.5)),
        (serdes.bytes, b"\x00\xff", b"\x00\xff"),
        (serdes.json, {"a": [1, None]}, b'{"a":[1,null]}'),
        (serdes.windowed(serdes.string), ("k", 5), b"k" + struct.pack(">qi", 5, 0)),
        (serdes.session_windowed(serdes.int32), (7, 5, 9), struct.pack(">iqq", 7, 9, 5)),
    ],
)
def test_bytes_are_those_of_kafkas_serializers_and_read_back(serde: Serde, value: Any, data: bytes) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value
    serde.check(data)


@pytest.mark.parametrize(
    ("serde", "text", "data"),
    [
        (serdes.string, "a/b c", b"a/b c"),
        (serdes.int32, "-7", struct.pack(">i", -7)),
        (serdes.int64, "7", struct.pack(">q", 7)),
        (serdes.bytes, "_-8", b"\xff\xef"),
        (serdes.bytes, "_-8=", b"\xff\xef"),
        (serdes.json, '{"b":1,  "a":2}', b'{"b":1,  "a":2}'),
        (serdes.float64, "0.5", struct.pack(">d", 0.5)),
        (serdes.windowed(serdes.string), '["k", 5]', b"k" + struct.pack(">qi", 5, 0)),
        (serdes.session_windowed(serdes.bytes), '["aw", 5, 9]', b"k" + struct.pack(">qq", 9, 5)),
    ],
)
def test_text_in_a_url_becomes_the_bytes_of_the_key(serde: Serde, text: str, data: bytes) -> None:
    assert serde.parse_text(text) == data


@pytest.mark.parametrize(
    ("serde", "text"),
    [
        (serdes.int32, "2147483648"),
        (serdes.int32, "1.0"),
        (serdes.int64, "٣"),
        (serdes.int64, ""),
        (serdes.int64, "9" * 5_000),
        (serdes.bytes, "!!"),
        (serdes.bytes, "ü"),
        (serdes.json, "{"),
        (serdes.float64, "x"),
        (serdes.float64, "1e400"),
        (serdes.float64, "-" + "9" * 400),
        (serdes.string, "\ud800"),
    ],
)
def test_text_of_another_type_is_refused_with_the_value_shown_short(serde: Serde, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        serde.parse_text(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (serdes.string, b"\xff"),
        (serdes.int32, b"\x00" * 8),
        (serdes.int64, b""),
        (serdes.float64, b"1"),
        (serdes.json, b"NaN"),
        (serdes.json, b""),
    ],
)
def test_bytes_that_a_serde_cannot_read_are_refused_by_check_and_deserialize(serde: Serde, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        serde.check(data)
    with pytest.raises(InvalidArgumentError):
        serde.deserialize(data)


WINDOWED = serdes.windowed(serdes.string)


@pytest.mark.parametrize("value", ["k", ("k",), ("k", 5, 6), ("k", -1), ("k", 2**63), ("k", "5"), ("k", True), (7, 5)])
def test_what_is_no_windows_key_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        WINDOWED.serialize(value)
    with pytest.raises(InvalidArgumentError):
        WINDOWED.parse_text(json.dumps(value))


def test_a_session_does_not_end_before_it_starts_and_its_parts_are_named() -> None:
    sessions = serdes.session_windowed(serdes.string)
    key = sessions.deserialize(sessions.serialize(("k", 5, 5)))
    assert key == sessions.deserialize(b"k" + struct.pack(">qq", 5, 5))
    assert sessions.key_to_json(b"k" + struct.pack(">qq", 9, 5)) == ["k", 5, 9]
    for data in (b"short", b"k" + struct.pack(">qq", 5, 9), b"k" + struct.pack(">qq", 5, -9), b"\xff" * 17):
        with pytest.raises(InvalidArgumentError):
            sessions.check(data)
    with pytest.raises(InvalidArgumentError, match="the end not before the start"):
        sessions.serialize(("k", 9, 5))


def test_stored_json_appears_byte_for_byte() -> None:
    stored = b'{"b": 1.0,  "a":1e400}'
    assert orjson.dumps({"value": serdes.json.to_json(stored)}) == b'{"value":' + stored + b"}"


def test_a_number_that_json_does_not_have_appears_as_null() -> None:
    assert serdes.float64.to_json(struct.pack(">d", float("nan"))) is None


@given(st.binary())
def test_bytes_keys_survive_the_way_through_a_url(data: bytes) -> None:
    assert serdes.bytes.parse_text(serdes.bytes.key_to_json(data)) == data


LARGE = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**70, -(10**30), 10**400]


@pytest.mark.parametrize("number", LARGE, ids=lambda n: f"{n.bit_length()} bits")
@pytest.mark.parametrize("make", [lambda n: n, lambda n: {"at": 7, "n": [n, {"deep": n}]}, lambda n: [0.5, n, "x"]])
def test_an_integer_of_any_size_in_json_is_exact_both_ways(number: int, make: Any) -> None:
    value = make(number)
    data = serdes.json.serialize(value)
    assert json.loads(data) == value
    serdes.json.check(data)
    assert serdes.json.deserialize(data) == value
    assert serdes.json.serialize(serdes.json.deserialize(data)) == data


@given(st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_whatever_stands_around_a_large_integer_is_read_as_it_is(
    number: int, text: str, other: float, padding: int
) -> None:
    number <<= 60
    value = {"p" * padding: text, "n": number, "f": other, "l": [number, -number]}
    assert serdes.json.deserialize(json.dumps(value).encode()) == value
    assert serdes.json.deserialize(serdes.json.serialize(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"[123456789012345678901234567890, NaN]",
        b"[123456789012345678901234567890, Infinity]",
        b"[123456789012345678901234567890, 1e400]",
        b"[123456789012345678901234567890",
        b'["123456789012345678901234567890\xff"]',
        b"[" * 100_000 + b"123456789012345678901234567890",
        b"1" * 5_000,
    ],
)
def test_a_large_integer_opens_no_door_to_what_is_not_json(data: bytes) -> None:
    for read in (serdes.json.check, serdes.json.deserialize):
        with pytest.raises(InvalidArgumentError) as caught:
            read(data)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value", [{2**70: 1}, {2**70}, 10**5_000, [2**70, object()]], ids=["key", "set", "digits", "object"]
)
def test_what_json_cannot_hold_is_refused_beside_large_integers_too(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        serdes.json.serialize(value)


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Pair(NamedTuple):
    a: float
    b: float


@dataclass
class Point:
    x: float
    label: str | None = None


class Limit(float, Enum):
    LOW = 1.5
    NONE = -math.inf


NAN, INF = math.nan, math.inf
DOUBLE, WHEN, ID = np.float64(NAN), datetime(2026, 5, 1, tzinfo=UTC), UUID(int=7)
NULL_AND_TIMES = b'[null,"2026-05-01T00:00:00+00:00","2026-05-01","00:00:00","00000000-0000-0000-0000-000000000007"]'


@pytest.mark.parametrize("number", [NAN, INF, -INF, DOUBLE, np.float32(1.5)], ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: {"n": 0, "deep": [{"mean": n}]},
        lambda n: (1, (n, None)),
        lambda n: [2**70, n, None],
        lambda n: OrderedDict(rows=[None, n]),
        lambda n: {n: 1},
        lambda n: [None, {"at": Point(n)}],
        lambda n: {"limit": None if n == 1.5 else Limit.NONE, "n": n},
    ],
    ids=["alone", "nested", "tuple", "large-integer", "ordered", "key", "dataclass", "enum"],
)
def test_a_number_that_json_does_not_have_is_refused(number: Any, make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be written as JSON"):
        serdes.json.serialize(make(number))


@pytest.mark.parametrize(
    "other",
    [
        *(Point(NAN), Limit.NONE, Pair(1, 2), b"x", {1}, Decimal(1), {1: 2}, {ID: 1}, {Size.LARGE: 1}, object()),
    ],
)
def test_a_value_that_has_no_json_is_refused(other: Any) -> None:
    for value in (other, [None, {"in": other}], (2**70, other)):
        with pytest.raises(InvalidArgumentError, match="cannot be written as JSON"):
            serdes.json.serialize(value)


def test_the_refusal_of_a_value_names_the_number_and_its_place() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        serdes.json.serialize({"n": 0, "rows": [1, {"mean": NAN}]})
    assert "nan at 'rows[1].mean' is no JSON number" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ((1, (2, None)), b"[1,[2,null]]"),
        (OrderedDict(a=None), b'{"a":null}'),
        (Counter("aab"), b'{"a":2,"b":1}'),
        (Size.LARGE, b"3"),
        ([-0.0, 1e22, 5e-324], b"[-0.0,1e+22,5e-324]"),
        ({"a": True, "b": None, "c": (2**70,)}, b'{"a":true,"b":null,"c":[1180591620717411303424]}'),
        ([None, Point(1.0)], b'[null,{"x":1.0,"label":null}]'),
        ((2**70, Point(1.0)), b'[1180591620717411303424,{"x":1.0,"label":null}]'),
        ([None, Limit.LOW, Colour.RED], b'[null,1.5,"red"]'),
        ([None, WHEN, WHEN.date(), WHEN.time(), ID], NULL_AND_TIMES),
        ({"a": orjson.Fragment(b"null")}, b'{"a":null}'),
    ],
    ids=repr,
)
def test_subclasses_of_what_json_has_and_tuples_are_written(value: Any, data: bytes) -> None:
    assert serdes.json.serialize(value) == data


def test_an_integer_that_a_double_cannot_hold_is_refused_as_a_float64() -> None:
    with pytest.raises(InvalidArgumentError, match="beyond what a float64 holds"):
        serdes.float64.serialize(10**400)


def test_an_infinity_that_is_spelled_out_is_one() -> None:
    assert serdes.float64.parse_text("-inf") == struct.pack(">d", float("-inf"))
