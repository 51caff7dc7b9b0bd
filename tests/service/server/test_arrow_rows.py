"""Rows as Arrow: every kind of store and every type, compared with what the serdes themselves say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateline import serdes
from stateline.model.store_definition import DeclaredKind, StoreDefinition
from stateline.rows.arrow_rows import arrow_schema, record_batch, stream_batch, stream_start
from stateline.rows.columns import STREAM_END
from stateline.serde.plain import Serde
from stateline_store import DamagedDataError, InvalidArgumentError
from stateline_store.reads.session_reads import sessions_of
from stateline_store.reads.versioned_reads import VersionedRecord
from stateline_store.reads.window_reads import windows_of
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import join
from stateline_store.rows.windowed_keys import Windowed, session_key, window_key
from support import TESTS


def definition(kind: DeclaredKind, key: Serde = serdes.string, value: Serde = serdes.json) -> StoreDefinition:
    return StoreDefinition("flights", kind, key, value, window_size_ms=10)


SAMPLES: list[tuple[Serde, list[Any]]] = [
    (serdes.string, ["", "a", "grüße", "\0"]),
    (serdes.json, [{"a": [1]}, None, 1e3]),
    (serdes.bytes, [b"", b"\xff\0", b"a"]),
    (serdes.int32, [0, -1, 2**31 - 1, -(2**31)]),
    (serdes.int64, [0, -1, 2**63 - 1, -(2**63)]),
    (serdes.float64, [0.0, -1.5, float("inf")]),
]


@pytest.mark.parametrize(("serde", "values"), SAMPLES, ids=lambda part: getattr(part, "name", ""))
def test_values_and_keys_have_the_type_of_their_serde(serde: Serde, values: list[Any]) -> None:
    store = definition("key_value", serde, serde)
    stored = [serde.serialize(value) for value in values]
    batch = record_batch(store, [(item, item) for item in stored], arrow_schema(store))
    expected = [item.decode() for item in stored] if serde is serdes.json else values
    assert batch.to_pydict() == {"key": expected, "value": expected}
    batch.validate(full=True)


def test_a_serde_of_ones_own_shows_the_stored_bytes() -> None:
    class Reversed(type(serdes.string)):  # type: ignore[misc]  # the type of a ready-made serde, whatever it is
        name = "reversed"

    store = definition("key_value", Reversed(), serdes.int32)
    assert arrow_schema(store).field("key").type == pa.binary()


def test_a_timestamp_is_milliseconds_and_null_when_it_is_unknown() -> None:
    store = definition("timestamped_key_value")
    batch = record_batch(
        store, [(b"a", join(b"1", 7)), (b"b", join(b"", -1)), (b"c", join(b"2", 0))], arrow_schema(store)
    )
    assert batch.to_pydict() == {"key": ["a", "b", "c"], "value": ["1", "", "2"], "timestamp": [7, None, 0]}
    assert batch.schema.field("timestamp").type == pa.int64()


@pytest.mark.parametrize("kind", ["window", "session"])
def test_windows_and_sessions_have_start_and_end(kind: DeclaredKind) -> None:
    store = definition(kind)
    batch = record_batch(
        store, [(Windowed(b"a", 5, 15), b"1"), (Windowed(b"b", 0, 2**63 - 1), b"2")], arrow_schema(store)
    )
    assert batch.to_pydict() == {"key": ["a", "b"], "start": [5, 0], "end": [15, 2**63 - 1], "value": ["1", "2"]}


def test_versions_have_their_validity_and_the_latest_no_end() -> None:
    store = definition("versioned")
    rows = [(b"a", VersionedRecord(b"1", 5, 9)), (b"a", VersionedRecord(b"2", 9, None))]
    batch = record_batch(store, rows, arrow_schema(store))
    assert batch.to_pydict() == {
        "key": ["a", "a"], "value": ["1", "2"], "timestamp": [5, 9], "valid_to": [9, None],
    }  # fmt: skip


@pytest.mark.parametrize(("serde", "values"), SAMPLES, ids=lambda part: getattr(part, "name", ""))
def test_stored_windows_are_the_batch_of_their_entries(serde: Serde, values: list[Any]) -> None:
    store = definition("timestamped_window", serde, serde)
    starts = (0, 5, 2**63 - 11, 2**63 - 10, 2**63 - 1)
    pairs = [(serde.serialize(value), start) for value in values for start in starts]
    stored = [(PREFIX.pack(start // 7) + window_key(key, start, 3), join(key, start - 1)) for key, start in pairs]
    batch = record_batch(store, stored, arrow_schema(store), stored=True)
    assert batch == record_batch(store, windows_of(stored, 10), arrow_schema(store))
    assert [row["start"] for row in batch.to_pylist()] == [start for _, start in pairs]
    assert record_batch(store, [], arrow_schema(store), stored=True).num_rows == 0
    with pytest.raises(DamagedDataError, match="flights"):
        record_batch(store, [(b"too short", join(b"", 1))], arrow_schema(store), stored=True)


@pytest.mark.parametrize(("serde", "values"), SAMPLES, ids=lambda part: getattr(part, "name", ""))
def test_stored_sessions_are_the_batch_of_their_entries(serde: Serde, values: list[Any]) -> None:
    store = definition("timestamped_session", serde, serde)
    times = ((0, 0), (0, 5), (5, 2**63 - 1), (2**63 - 1, 2**63 - 1))
    pairs = [(serde.serialize(value), start, end) for value in values for start, end in times]
    stored = [(PREFIX.pack(end // 7) + session_key(key, start, end), join(key, end - 1)) for key, start, end in pairs]
    batch = record_batch(store, stored, arrow_schema(store), stored=True)
    assert batch == record_batch(store, sessions_of(stored), arrow_schema(store))
    assert [(row["start"], row["end"]) for row in batch.to_pylist()] == [(start, end) for _, start, end in pairs]
    assert record_batch(store, [], arrow_schema(store), stored=True).num_rows == 0
    with pytest.raises(DamagedDataError, match="flights"):
        record_batch(store, [(b"too short for a session", join(b"", 1))], arrow_schema(store), stored=True)


def test_columns_come_as_they_were_named_and_others_are_refused() -> None:
    store = definition("timestamped_window")
    schema = arrow_schema(store, ["timestamp", "key"])
    batch = record_batch(store, [(Windowed(b"a", 5, 15), join(b"1", 7))], schema)
    assert batch.to_pydict() == {"timestamp": [7], "key": ["a"]}
    for refused in (["keys"], ["key", "key"], [], ["valid_to"]):
        with pytest.raises(InvalidArgumentError, match="columns"):
            arrow_schema(store, refused)


def test_no_rows_are_an_empty_batch_of_the_same_schema() -> None:
    for kind in ("timestamped_key_value", "timestamped_window", "timestamped_session", "versioned"):
        store = definition(kind, serdes.int64, serdes.float64)
        batch = record_batch(store, [], arrow_schema(store))
        assert (batch.num_rows, batch.schema) == (0, arrow_schema(store))


@pytest.mark.parametrize(
    ("key", "value", "row"),
    [
        (serdes.string, serdes.json, (b"\xff", join(b"1", 1))),
        (serdes.int32, serdes.json, (b"12345", join(b"1", 1))),
        (serdes.string, serdes.float64, (b"a", join(b"1", 1))),
        (serdes.string, serdes.json, (b"a", b"short")),
    ],
)
def test_bytes_of_another_type_are_damage(key: Serde, value: Serde, row: tuple[bytes, bytes]) -> None:
    store = definition("timestamped_key_value", key, value)
    with pytest.raises(DamagedDataError, match="flights"):
        record_batch(store, [row], arrow_schema(store))


def test_the_pieces_of_a_stream_are_one_that_arrow_reads() -> None:
    store = definition("key_value")
    schema = arrow_schema(store)
    batches = [record_batch(store, [(b"a", b"1")], schema), record_batch(store, [(b"b", b"2")], schema)]
    data = stream_start(schema) + b"".join(map(stream_batch, batches)) + STREAM_END
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    assert table.to_pydict() == {"key": ["a", "b"], "value": ["1", "2"]}
    assert table.schema.metadata[b"stateline.store"] == b"flights"


def test_rows_are_made_without_pandas_which_would_be_imported_on_the_event_loop(tmp_path: Path) -> None:
    """In a process of its own: this one has pandas already."""
    code = """
import sys
from pathlib import Path
from service.server.snapshot_scene import KINDS, Scene
from stateline.log import Record
from stateline.server.changes.batches import change_batch, change_schema
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.rows.arrow_rows import arrow_schema, record_batch, stream_batch, stream_start
from stateline.rows import snapshot_rows as rows
from stateline.server.snapshots.filter import read_selection
from stateline_store import VersionedRecord, Windowed

for kind in KINDS:
    scene = Scene(kind, Path(sys.argv[1]) / kind)
    definition = scene.definition
    for query in ("", "lower=a&upper=b", *(("from=0&to=1000",) if kind != "key_value" else ())):
        wanted = read_selection(Arguments(from_query_string(query.encode())), definition)
        for batch in rows.batches(scene.checkpoint, definition, wanted):
            stream_batch(batch)
    scene.checkpoint.close()
    stored = (8 * b"\\xff" if definition.timestamped else b"") + b"1"
    row = (b"k", stored) if definition.key_value else (Windowed(b"k", 1, 2), stored)
    row = (b"k", VersionedRecord(b"1", 1, None)) if definition.kind == "versioned" else row
    stream_batch(record_batch(definition, [row], arrow_schema(definition)))
    records = [Record("log", 0, 3, 1, bytes(24), None), Record("log", 0, 4, 1, bytes(24), b"1")]
    stream_batch(change_batch(definition, records, change_schema(definition)))
    stream_start(arrow_schema(definition))
print("pandas" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=TESTS, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")
