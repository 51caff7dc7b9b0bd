"""UUIDs, times, MessagePack, and classes of an application's own."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, SecretStr, computed_field

from service.serde.shop import Line, Order
from stateline import serdes
from stateline.serde.plain import Serde, type_name
from stateline_store import InvalidArgumentError

ID = UUID("0198c0de-0000-7000-8000-0000000000ab")


def as_json(serde: Serde, data: bytes) -> bytes:
    return orjson.dumps(serde.to_json(data))


def test_a_uuid_is_the_text_that_kafkas_serializer_writes_and_is_written_in_lower_case() -> None:
    assert serdes.uuid.serialize(ID) == b"0198c0de-0000-7000-8000-0000000000ab"
    assert serdes.uuid.parse_text(ID.hex.upper()) == serdes.uuid.serialize(ID)
    assert serdes.uuid.parse_text(str(ID).upper()) == str(ID).upper().encode()
    assert serdes.uuid.deserialize(str(ID).upper().encode()) == ID
    assert as_json(serdes.uuid, str(ID).encode()) == b'"%b"' % str(ID).encode()


@pytest.mark.parametrize("data", [b"", b"x" * 36, ID.bytes, b"{%b}" % str(ID).encode(), str(ID)[:-1].encode()])
def test_other_bytes_are_no_uuid(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the text of a UUID"):
        serdes.uuid.check(data)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_datetime_is_eight_bytes_of_milliseconds_and_read_back_to_the_millisecond(at: datetime) -> None:
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    data = serdes.datetime.serialize(at)
    assert data == struct.pack(">q", (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
    assert serdes.datetime.deserialize(data) == at
    assert serdes.datetime.parse_text(serdes.datetime.to_json(data)) == data


def test_a_datetime_of_another_zone_is_the_same_moment_and_one_without_a_zone_is_refused() -> None:
    at = datetime(2026, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert serdes.datetime.serialize(at) == serdes.datetime.serialize(datetime(2026, 5, 1, 12, tzinfo=UTC))
    assert as_json(serdes.datetime, serdes.datetime.serialize(at)) == b'"2026-05-01T12:00:00.000Z"'
    with pytest.raises(InvalidArgumentError, match="has no zone"):
        serdes.datetime.serialize(at.replace(tzinfo=None))
    with pytest.raises(InvalidArgumentError, match="with a zone"):
        serdes.datetime.parse_text("2026-05-01T12:00:00")


def test_a_datetime_may_be_written_as_a_number_and_what_no_calendar_has_is_refused() -> None:
    assert serdes.datetime.parse_text("1500") == serdes.datetime.from_json(1500) == struct.pack(">q", 1500)
    for wrong in (b"", b"1234", struct.pack(">q", 2**62)):
        with pytest.raises(InvalidArgumentError):
            serdes.datetime.check(wrong)
    for text in ("soon", str(2**62), ""):
        with pytest.raises(InvalidArgumentError):
            serdes.datetime.parse_text(text)


_PACKED: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(_PACKED)
def test_msgpack_is_what_the_package_writes_and_reads(value: Any) -> None:
    data = serdes.msgpack.serialize(value)
    assert data == msgpack.packb(value)
    assert serdes.msgpack.deserialize(data) == value
    serdes.msgpack.check(data)
    as_json(serdes.msgpack, data)


def test_msgpack_keeps_times_and_bytes_and_json_shows_both() -> None:
    value = {"at": datetime(2026, 5, 1, tzinfo=UTC), "scan": b"\xff", 7: [1]}
    data = serdes.msgpack.serialize(value)
    assert serdes.msgpack.deserialize(data) == value
    assert as_json(serdes.msgpack, data) == b'{"at":"2026-05-01T00:00:00Z","scan":"/w==","7":[1]}'


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\xa1\xff"])
def test_bytes_that_are_no_single_msgpack_value_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="is not MessagePack"):
        serdes.msgpack.check(data)


@pytest.mark.parametrize("value", [object(), 2**64, datetime(2026, 5, 1), {"a": {1, 2}}])
def test_what_msgpack_has_no_type_for_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be written as MessagePack"):
        serdes.msgpack.serialize(value)


def test_a_pydantic_model_and_a_dataclass_are_json_and_come_back_as_the_class() -> None:
    orders, lines = serdes.model(Order), serdes.model(Line)
    assert orders.serialize(Order(amount=3)) == b'{"amount":3,"note":"none"}'
    assert orders.deserialize(b'{"amount": 3}') == Order(amount=3)
    assert lines.deserialize(lines.serialize(Line("a-1", 2))) == Line("a-1", 2)
    assert orders.from_json({"amount": 3}) == orders.parse_text('{"amount": 3}') == orders.serialize(Order(amount=3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"amount":"x"}', r"model\(Order\): amount: Input should be a valid integer"),
        (b'{"note":"n"}', r"amount: Field required"),
        (b'{"amount":', r"Invalid JSON"),
        (b"\xff", r"Invalid JSON"),
    ],
)
def test_json_of_another_shape_cannot_be_read_and_the_field_is_named(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        serdes.model(Order).check(data)
    with pytest.raises(InvalidArgumentError):
        serdes.model(Order).serialize(Line("a", 1))


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's documentation has it
    @property
    def twice(self) -> int:
        return 2 * self.x


class Measured(BaseModel):
    x: float


class Hidden(BaseModel):
    word: SecretStr


@pytest.mark.parametrize(
    "value", [Forbidding(x=1), Measured(x=float("nan")), Measured(x=float("inf")), Hidden(word=SecretStr("a"))]
)
def test_what_would_not_come_back_as_it_was_is_not_written(value: BaseModel) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be read again as|would come back as"):
        serdes.model(type(value)).serialize(value)


def test_a_model_is_known_by_the_name_of_its_class_and_answers_have_its_json_in_one_line() -> None:
    assert type_name(serdes.model(Order)) == "model(Order)"
    assert serdes.model(Order) == serdes.model(Order)
    assert as_json(serdes.model(Order), b'{\n "amount": 3}') == b'{  "amount": 3}'


def test_a_class_without_known_fields_is_refused_where_it_is_declared() -> None:
    class Plain:
        pass

    with pytest.raises(InvalidArgumentError, match="use a pydantic model, a dataclass or a TypedDict"):
        serdes.model(Plain)


def test_messagepack_that_could_not_be_read_again_is_refused_where_it_is_written() -> None:
    for value in ({(1, 2): 3}, [{"in": {(1,): None}}]):
        with pytest.raises(InvalidArgumentError, match="is not MessagePack that can be read"):
            serdes.msgpack.serialize(value)


def test_an_integer_of_any_size_stands_in_the_json_of_a_model() -> None:
    class Counted(BaseModel):
        n: int

    serde = serdes.model(Counted)
    assert serde.deserialize(serde.from_json({"n": 2**70})) == Counted(n=2**70)
