"""What `stateline consume --format jsonl` writes, `stateline produce` makes the same record of, whatever its bytes."""

from __future__ import annotations

import io
import json
import struct
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgpack
import orjson
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from service.serde.shop import ORDER, WITH_NOTE, Order, of_topic, order_message, registry
from stateline import App, serdes
from stateline.cli.records.consume import consume, wanted_of
from stateline.cli.records.produce import produce, terms_of
from stateline.cli.records.record_json import read_record
from stateline.cli.records.record_lines import RecordLines
from stateline.config.loading import load_config
from stateline.log import Log
from stateline.log.interface import Record
from stateline.model.topic import Topic
from stateline.serde.binding import looking_up
from stateline.serde.plain import Serde
from stateline.serde.scalars import DatetimeSerde
from stateline_store import InvalidArgumentError, TopicPartition
from support.processes.running_worker import create

DOUBLES = [float(text) for text in ("nan", "inf", "-inf", "-0.0", "0.0", "1e22", "5e-324", "0.1")]
INTEGERS = [struct.pack(">q", n) for n in (0, -1, 1_700_000_000_000, 2**63 - 1, -(2**63))]
JSON = [b'{"a": 1}', b'"\\u0041"', b"1.0", b'{"b":1,"b":2}', b'{"b":1}', b'"n"', b"null", b" null", b"1" * 23]
PACKED: list[Any] = [{"a": [1, None]}, None, float("nan"), b"\x01", {1: "x"}, "x", 2**63, datetime.now(UTC)]
MSGPACK = [msgpack.packb(each, datetime=True) for each in PACKED]
UUIDS = [b"0198c0de-0000-7000-8000-0000000000ab", b"0198C0DE-0000-7000-8000-0000000000AB"]
TEXTS = ["", "a", "Zürich", "a\r\n\tb", "\u2028\x85\x00", '"quoted"', "null"]
TIMES = [struct.pack(">qi", *each) for each in ((5, 0), (-5, 0), (5, 7))]
WINDOWS = [key + times for key in (b"k", b'{"a": 1}', b"\xff") for times in TIMES]
MODELS = [b'{"amount":3,"note":"x"}', b'{"amount": 3}', b'{"note":"x","amount":3}', b'{"amount":"3"}']
CASES: dict[str, tuple[Serde | None, list[bytes]]] = {
    "string": (serdes.string, [text.encode() for text in TEXTS]),
    "json": (serdes.json, [*JSON, b'{"a":\r\n[1,\n 2]}', b"[NaN]", b"1e400", b"[" * 2000]),
    "bytes": (serdes.bytes, [b"\xff\x00", b"", b"\xfb\xff"]),
    "int32": (serdes.int32, [struct.pack(">i", -7)]),
    "int64": (serdes.int64, INTEGERS),
    "float64": (serdes.float64, [struct.pack(">d", number) for number in DOUBLES]),
    "another NaN": (serdes.float64, [b"\x7f\xf0\x00\x00\x00\x00\x00\x01"]),
    "uuid": (serdes.uuid, UUIDS),
    "datetime": (serdes.datetime, INTEGERS),
    "msgpack": (serdes.msgpack, [*MSGPACK, b"\xd6\xff\x00\x00\x00\x00", b"\xcd\x00\x01", b"\x81\xc0\x01"]),
    "model": (serdes.model(Order), MODELS),
    "windows": (serdes.windowed(serdes.string), WINDOWS),
    "windows of json": (serdes.windowed(serdes.json), WINDOWS),
    "windows of doubles": (serdes.windowed(serdes.float64), [struct.pack(">dqi", n, 5, 0) for n in DOUBLES]),
    "windows of Java": (serdes.time_windowed(serdes.string), [b"k" + struct.pack(">q", at) for at in (5, -5)]),
    "sessions": (serdes.session_windowed(serdes.string), [b"k" + struct.pack(">qq", 9, at) for at in (5, 9, 10, -1)]),
    "no type": (None, [b"text", b'{"a":1}', b"\xff", b"", b"null"]),
}  # fmt: skip


def line_of(serde: Serde | None, data: bytes | None) -> dict[str, Any]:
    """The line of a record with these bytes as its key and as its value."""
    own = None if serde is None else looking_up(serde)
    topics = {} if own is None else {"t": Topic("t", own, own)}
    return dict(json.loads(RecordLines(topics, "jsonl").line(Record("t", 0, 0, 5, data, data, []))))


def check_same(serde: Serde | None, data: bytes | None) -> dict[str, Any]:
    shown = line_of(serde, data)
    others: list[Serde] = [serdes.json, serdes.string, serdes.bytes, serdes.int64]
    for read_by in others if serde is None else [serde]:
        again = read_record(json.dumps(shown), read_by, read_by)
        assert (again.key, again.value) == (data, data), shown
    return shown


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_of_every_serde_are_the_same_again(case: str) -> None:
    serde, rows = CASES[case]
    for data in [*rows, b"\xff\xfe", None]:
        check_same(serde, data)


@given(st.sampled_from(sorted(CASES)), st.binary(max_size=24) | st.text(max_size=9).map(str.encode))
def test_any_bytes_are_the_same_again(case: str, data: bytes) -> None:
    check_same(CASES[case][0], data)


PACKED_INTEGERS = st.integers(-(2**63), 2**64 - 1)
PACKABLE = st.none() | st.booleans() | PACKED_INTEGERS | st.floats() | st.text(max_size=4) | st.binary()
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN, st.booleans())
def test_any_json_is_the_same_again_and_stays_readable(value: Any, is_compact: bool) -> None:
    data = json.dumps(value, separators=(",", ":") if is_compact else None).encode()
    shown = check_same(serdes.json, data)
    try:
        read = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    assert read is None or json.loads(json.dumps(shown["value"])) == json.loads(data)


@given(st.recursive(PACKABLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PACKABLE, inner, max_size=3)))
def test_any_messagepack_is_the_same_again(value: Any) -> None:
    check_same(serdes.msgpack, msgpack.packb(value))


def test_values_of_a_registry_are_the_same_again_and_registered_by_nobody_who_only_reads() -> None:
    at = registry()
    avro, older = of_topic(serdes.avro(WITH_NOTE), at), of_topic(serdes.avro(ORDER), at)
    value = {"amount": 3, "price": "10.50", "at": "2026-05-01T12:00:00.250000Z", "scan": "AP8="}
    assert "value_base64" not in check_same(avro, avro.from_json({**value, "note": "rush"}))
    shown = check_same(avro, older.from_json(value))  # of a version that has no note: it would be written with one
    assert shown["value"]["note"] == "none"
    union = of_topic(serdes.avro(["null", "double"]), at, "unions")
    doubles = [union.serialize(each) for each in (1.5, float("nan"))]
    for data in (*doubles, doubles[0][:5] + b"\0"):
        assert ("value" in check_same(union, data)) == (data == doubles[0])
    message = order_message()
    order = of_topic(serdes.protobuf(message), at, "messages")
    check_same(order, order.serialize(message(amount=3, scan=b"\x00")))
    later = of_topic(serdes.protobuf(order_message(with_note=True)), at, "messages")
    check_same(order, later.from_json({"amount": 3, "note": "rush"}))  # a field that the class does not have
    elsewhere = of_topic(serdes.avro('"string"'), at, "others")
    data = avro.from_json({**value, "note": "rush"})[:5] + elsewhere.serialize("text")[5:]
    before = at.client().get_subjects()
    check_same(looking_up(of_topic(serdes.avro(WITH_NOTE), at, "read-only")), data)
    assert at.client().get_subjects() == before


def test_messages_with_maps_are_shown_with_their_bytes_because_maps_have_no_order() -> None:
    counts = of_topic(serdes.protobuf(message_of_a_map()), registry(), "counts")
    assert {"value", "value_base64"} <= check_same(counts, counts.from_json({"counts": {"a": 1, "b": 2}})).keys()


def message_of_a_map() -> type:
    file = descriptor_pb2.FileDescriptorProto(name="counts.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Counts")
    entry = message.nested_type.add(name="CountsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    for at, (name, kind) in enumerate((("key", "TYPE_STRING"), ("value", "TYPE_INT32")), start=1):
        entry.field.add(name=name, number=at, type=kind, label="LABEL_OPTIONAL")
    of_entries = {"type": "TYPE_MESSAGE", "type_name": ".shop.Counts.CountsEntry", "label": "LABEL_REPEATED"}
    message.field.add(name="counts", number=1, **of_entries)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Counts"))
    return found


def test_a_line_whose_bytes_are_not_what_it_shows_is_refused() -> None:
    shown = line_of(serdes.json, b'{"a": 1}')
    assert shown["value"] == {"a": 1}
    changed = json.dumps({**shown, "value": {"a": 2}})
    with pytest.raises(InvalidArgumentError, match="value and value_base64 are both given, and they differ: give one"):
        read_record(changed, serdes.json, serdes.json)
    del shown["value_base64"]
    assert read_record(json.dumps(shown), serdes.json, serdes.json).value == b'{"a":1}'


def test_a_serde_of_ones_own_that_shows_less_than_it_stores_loses_nothing() -> None:
    class Seconds(DatetimeSerde):
        name = "seconds"

        def to_json(self, data: bytes) -> str:
            return self.deserialize(data).isoformat(timespec="seconds")

        key_to_json = to_json

    check_same(Seconds(), struct.pack(">q", 1_700_000_000_123))
    assert "value_base64" not in check_same(Seconds(), struct.pack(">q", 1_700_000_000_000))


RECORDS: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = [
    (b'"a"', b'{"n":  1}', 1_367_409_600_123, [("h", b"x"), ("h", None), ("raw", b"\xff"), ("", b"")]),
    (b"[1, 2]", None, 1, []),
    (None, b"null", -1, []),
    (b"no JSON", b"\x00", -62_135_596_800_000, [("h", b"")]),
    (None, None, 7, []),
]


def test_records_are_the_same_again_with_their_timestamps_and_headers(bootstrap: str, log: Log, tmp_path: Path) -> None:
    name = f"again-{uuid4().hex[:8]}"
    create(log, {name: 1, f"{name}-copy": 1})
    config = load_config("again", environment={}, overrides=[f"state.dir={tmp_path}", f"bootstrap.servers={bootstrap}"])
    app = App("again")
    for each in (name, f"{name}-copy"):
        app.table(app.topic(each, key=serdes.json, value=serdes.json))
    with closing(log.producer()) as producer:
        for key, value, at, headers in RECORDS:
            producer.produce(name, key, value, timestamp_ms=at, headers=headers, partition=0, is_copy=True)
        producer.flush()
    out = io.StringIO()
    how = wanted_of("earliest", None, (), None, "read_committed", "jsonl", follow=False)
    assert consume(app, config, [name], how, out) == len(RECORDS)
    lines = out.getvalue().split("\n")[:-1]
    assert produce(app, config, f"{name}-copy", (), terms_of("jsonl", "stop", None, [], None), lines).records == 5
    with closing(log.consumer()) as consumer:
        consumer.assign({TopicPartition(f"{name}-copy", 0): 0})
        found: list[Record] = []
        while len(found) < len(RECORDS):
            found += consumer.poll(100, 1.0)
    assert [(r.key, r.value, r.timestamp_ms, list(r.headers)) for r in found] == RECORDS


def test_keys_of_windows_go_to_the_partition_of_the_key_alone(log: Log, bootstrap: str, tmp_path: Path) -> None:
    from confluent_kafka import murmur2

    name = f"windows-{uuid4().hex[:8]}"
    create(log, {name: 4})
    config = load_config("again", environment={}, overrides=[f"state.dir={tmp_path}", f"bootstrap.servers={bootstrap}"])
    app = App("again")
    app.stream(app.topic(name, key=serdes.windowed(serdes.string), value=serdes.int64)).peek(lambda k, v: None)
    lines = [f'{{"key": ["{key}", {at}], "value": 1}}' for key in "abcdef" for at in (5, 6)]
    produce(app, config, name, (), terms_of("jsonl", "stop", None, [], None), lines)
    with closing(log.consumer()) as consumer:
        consumer.assign({TopicPartition(name, n): 0 for n in range(4)})
        found: list[Record] = []
        while len(found) < len(lines):
            found += consumer.poll(100, 1.0)
    assert all(r.partition == murmur2((r.key or b"")[:1], 4) for r in found)


@pytest.mark.parametrize("at", [-5, 1 << 63, 1.5])
def test_a_timestamp_that_no_log_had_is_refused(at: Any) -> None:
    line = {"key": "a", "value": "b", "timestamp": at}
    with pytest.raises(InvalidArgumentError, match="is not a number of milliseconds"):
        read_record(json.dumps(line), serdes.string, serdes.string)
    if at != -5:
        with pytest.raises(InvalidArgumentError, match="is not a number of milliseconds"):
            read_record(json.dumps({**line, "offset": 3}), serdes.string, serdes.string)
