"""Rows as CSV: cells of every type, read by another reader and compared with the JSON of the same entry."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import orjson
import pytest

from stateline import serdes
from stateline.model.store_definition import DeclaredKind, StoreDefinition
from stateline.serde.plain import Serde
from stateline.server.contract.answers import entry_members
from stateline.server.rows import csv_rows
from stateline_store import DamagedDataError
from stateline_store.reads.versioned_reads import VersionedRecord
from stateline_store.rows.timestamped_rows import join
from stateline_store.rows.windowed_keys import Windowed

SAMPLES: list[tuple[Serde, list[Any]]] = [
    (serdes.string, ["", "a,b", 'say "a"', "line\r\nbreak", "\0", "é"]),
    (serdes.json, [{"a": [1]}, "text", None, True, 1e3, 2**70]),
    (serdes.msgpack, [{"a": 1}, "text", None, True, 1.5, b"\xff"]),
    (serdes.bytes, [b"", b"\xff\0", b"a"]),
    (serdes.int64, [0, -1, 2**63 - 1]),
    (serdes.float64, [0.1, -1.5, 1e300]),
]


def definition(kind: DeclaredKind, key: Serde = serdes.string, value: Serde = serdes.json) -> StoreDefinition:
    return StoreDefinition("flights", kind, key, value, window_size_ms=10)


def read(data: bytes, columns: list[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), columns))


@pytest.mark.parametrize(("serde", "values"), SAMPLES, ids=lambda part: getattr(part, "name", ""))
def test_a_cell_is_the_json_of_the_value_and_a_text_is_without_quotes(serde: Serde, values: list[Any]) -> None:
    store = definition("key_value", serdes.string, serde)
    entries: list[Any] = [(b"k", serde.serialize(value)) for value in values]
    rows = read(csv_rows.lines(store, entries, ("value", "key")), ["value", "key"])
    for row, entry in zip(rows, entries, strict=True):
        value = json.loads(orjson.dumps(entry_members(store, entry)["value"]))
        whole = not isinstance(value, str) or serde is serdes.json
        assert (json.loads(row["value"]) if whole else row["value"]) == value


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_its_name(text: str) -> None:
    store = definition("key_value", serdes.float64, serdes.float64)
    stored = serdes.float64.serialize(float(text))
    assert csv_rows.lines(store, [(stored, stored)], ("key", "value")) == f"{text},{text}\r\n".encode()


def test_every_line_ends_as_rfc_4180_says_and_an_unknown_timestamp_is_an_empty_cell() -> None:
    store = definition("timestamped_key_value", value=serdes.string)
    entries: list[Any] = [(b"a", join(b"1", 7)), (b"b", join(b"", -1)), (b"c", None)]
    columns = ("key", "found", "value", "timestamp")
    assert csv_rows.header(columns) == b"key,found,value,timestamp\r\n"
    assert csv_rows.lines(store, entries, columns) == b"a,true,1,7\r\nb,true,,\r\nc,false,,\r\n"


def test_windows_have_their_bounds_and_versions_their_end() -> None:
    windows = definition("timestamped_window", value=serdes.int64)
    entries: list[Any] = [(Windowed(b"a", 10, 20), join(serdes.int64.serialize(3), 11))]
    assert csv_rows.lines(windows, entries, ("key", "start", "end", "value")) == b"a,10,20,3\r\n"
    versions = definition("versioned", value=serdes.string)
    version: list[Any] = [(b"a", VersionedRecord(b"x", 1, None)), (b"b", VersionedRecord(b"y", 1, 5))]
    assert csv_rows.lines(versions, version, ("value", "timestamp", "valid_to")) == b"x,1,\r\ny,1,5\r\n"


def test_a_value_that_cannot_be_shown_is_named() -> None:
    store = definition("key_value", value=serdes.int64)
    with pytest.raises(DamagedDataError, match=r"value of 'flights'.*x01"):
        csv_rows.lines(store, [(b"good", serdes.int64.serialize(1)), (b"bad", b"\x01")], ("key", "value"))
