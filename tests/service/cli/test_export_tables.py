"""Delta tables of stores in memory: after any changes a table is its store."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateline.backup.object_stores import object_store
from stateline.cli.export import delta, parquet
from stateline.cli.export.rows import Exported, StoreRows
from stateline.cli.progress import Progress
from stateline.model.windows import FOREVER_MS
from stateline_store import CursorExpiredError, Position, RetryLaterError
from support.run.length import long_or_short

Row = dict[str, Any]
_HEADERS = ("headers", pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())])))
KEY_VALUE = pa.schema([("key", pa.int64()), ("value", pa.float64()), ("timestamp", pa.int64()), _HEADERS])
WINDOW = pa.schema([("key", pa.binary()), ("start", pa.int64()), ("end", pa.int64()), ("value", pa.utf8())])
VERSIONED = pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("timestamp", pa.int64()), ("valid_to", pa.int64())])
FLOAT_KEYS = pa.schema([("key", pa.float64()), ("value", pa.utf8())])
DATETIMES = pa.schema([("key", pa.timestamp("ms", "UTC")), ("value", pa.timestamp("ms", "UTC"))])
NAN = float("nan")


class Store:
    """A store of these columns, whose parts are lists."""

    def __init__(self, columns: pa.Schema, tmp_path: Path) -> None:
        self._columns, self._url, self._offset = columns, str(tmp_path / "t"), 0
        self._place = object_store(self._url, "--to")

    def rows(self, *parts: Sequence[Row]) -> StoreRows:
        self._offset += 1
        position = Position.from_json({"topic": {"0": self._offset}})
        reads = tuple(partial(self._batches, part) for part in parts)
        progress = Progress(io.StringIO(), "")
        return StoreRows("app", "store", f"at-{self._offset:06}", position, self._columns, reads, progress)

    def export(self, *parts: Sequence[Row], is_log: bool = False, is_whole: bool = False) -> Exported:
        return delta.export(self.rows(*parts), self._url, self._place, is_log=is_log, is_whole=is_whole)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self._url)

    def shown(self) -> list[str]:
        """The table's rows, times in milliseconds."""
        return sorted(repr(_plain(row)) for row in self.table.to_pyarrow_table().to_pylist())

    def _batches(self, part: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(part), 7):
            yield pa.RecordBatch.from_pylist(list(part[first : first + 7]), schema=self._columns)


def _plain(row: Row) -> Row:
    return {
        name: round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value for name, value in row.items()
    }


def _key_value(dice: random.Random) -> list[Row]:
    headers = [None, [], [{"name": "x", "value": None}], [{"name": "x", "value": b""}, {"name": "", "value": b"1"}]]
    return [
        {
            "key": key,
            "value": dice.choice([0.5, NAN, float("inf"), 1e300, 0.0, -0.0]),
            "timestamp": dice.choice([None, 0, 1_700_000_000_000]),
            "headers": dice.choice(headers),
        }
        for key in (-1, 0, 1, 2**63 - 1, -(2**63), *range(100, 120))
        if dice.random() < 0.7
    ]


def _windows(dice: random.Random) -> list[Row]:
    """Windows with several rows each, as of a store that retains duplicates."""
    return [
        {"key": key, "start": start, "end": start + 60_000, "value": dice.choice(["a", "b"])}
        for key in (b"", b"\xff", b"k")
        for start in (0, 60_000, 120_000)
        for _ in range(dice.choice([0, 1, 1, 1, 2, 3]))
    ]


def _float_keys(dice: random.Random) -> list[Row]:
    """Keys that SQL takes for one, among others."""
    keys = (0.0, -0.0, 1.5, NAN, -NAN, float("-inf"))
    return [{"key": key, "value": dice.choice("ab")} for key in keys if dice.random() < 0.6]


def _versions(dice: random.Random) -> list[Row]:
    return [
        {
            "key": key,
            "value": dice.choice(["1", "2", "zürich"]),
            "timestamp": at,
            "valid_to": dice.choice([None, at + 5]),
        }
        for key in ("", "a", "ä")
        for at in range(0, 50, 10)
        if dice.random() < 0.6
    ]


KINDS = {
    "key-value": (KEY_VALUE, _key_value),
    "window": (WINDOW, _windows),
    "versioned": (VERSIONED, _versions),
    "float keys": (FLOAT_KEYS, _float_keys),
}
MANY, FEW = 1_000_000, 3  # rows that are merged


@pytest.mark.parametrize(
    ("kind", "most_merged"),
    long_or_short(
        [*product(KINDS, (MANY, FEW))],
        [("key-value", FEW), ("window", MANY), ("versioned", FEW), ("float keys", MANY)],
    ),
)
def test_a_table_is_its_store_after_any_changes(
    kind: str, most_merged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, made = KINDS[kind]
    monkeypatch.setattr(delta, "_MOST_MERGED", most_merged)
    store, dice, rows = Store(columns, tmp_path), random.Random(3), list[Row]()
    for _ in range(long_or_short(25, 8)):
        rows = dice.choice([rows, made(dice), made(dice), [*rows[:3], *rows[5:]]])
        half = dice.randrange(len(rows) + 1)
        store.export(rows[:half], rows[half:])
        assert store.shown() == sorted(repr(row) for row in rows)
        said = next(each for each in store.table.history() if "stateline.position" in each)
        assert json.loads(said["stateline.position"]) == {"topic": {"0": store._offset}}


def test_the_same_rows_at_the_same_position_are_no_commit(tmp_path: Path) -> None:
    store, rows = Store(VERSIONED, tmp_path), _versions(random.Random(1))
    store.export(rows)
    assert store.export(rows) == Exported("nothing new")
    assert store.table.version() == 1, "of the new Position"
    store._offset -= 1
    assert store.export(rows) == Exported("nothing new")
    assert store.table.version() == 1


def test_a_log_refuses_windows_with_several_rows(tmp_path: Path) -> None:
    store = Store(WINDOW, tmp_path)
    one = {"key": b"k", "start": 0, "end": 1, "value": "a"}
    store.export([one], is_log=True)
    with pytest.raises(ValueError, match="several rows of one key and window"):
        store.export([one, {**one, "value": "b"}], is_log=True)
    assert store.table.version() == 0


@pytest.mark.parametrize("is_log", [False, True])
def test_a_value_that_changes_its_sign_alone_is_a_change(is_log: bool, tmp_path: Path) -> None:
    store, row = Store(KEY_VALUE, tmp_path), {"key": 1, "value": 0.0, "timestamp": None, "headers": None}
    store.export([row], is_log=is_log)
    assert store.export([{**row, "value": -0.0}], is_log=is_log) == Exported("changed", 1)
    assert "-0.0" in map(str, store.table.to_pyarrow_table()["value"].to_pylist())


@pytest.mark.parametrize("rows", [[0.0, -0.0], [NAN, -NAN]])
def test_a_log_refuses_keys_that_its_reader_cannot_tell_apart(rows: list[float], tmp_path: Path) -> None:
    store, changes = Store(FLOAT_KEYS, tmp_path), [{"key": key, "value": "a"} for key in rows]
    with pytest.raises(ValueError, match="several rows of one key"):
        store.export(changes, is_log=True)
    store.export(changes[:1], is_log=True)
    for rest in (changes, changes[1:]):
        with pytest.raises(ValueError, match="several rows of one key"):
            store.export(rest, is_log=True)
    assert store.table.version() == 0


def test_a_new_log_refuses_windows_with_several_rows(tmp_path: Path) -> None:
    store, one = Store(WINDOW, tmp_path), {"key": b"k", "start": 0, "end": 1, "value": "a"}
    with pytest.raises(ValueError, match="several rows of one key and window"):
        store.export([one], [one], is_log=True)
    assert not DeltaTable.is_deltatable(store._url)


def test_datetimes_that_python_does_not_have_are_in_the_table(tmp_path: Path) -> None:
    store, last_ms = Store(DATETIMES, tmp_path), 253_402_300_799_999
    times = [-62_135_596_800_001, -60_000_000_000_000, 0, last_ms, last_ms + 1, 9 * 10**15]
    arrays = [pa.array([each], pa.int64()).view(DATETIMES.types[0]) for each in times]
    batches = [pa.RecordBatch.from_arrays([each, each], schema=DATETIMES) for each in arrays]
    for few in (slice(1, 4), slice(None)):
        rows = replace(store.rows(), parts=(partial(iter, batches[few]),))
        delta.export(rows, store._url, store._place, is_log=False, is_whole=True)
        found = store.table.to_pyarrow_table()
        assert found["key"].cast(pa.int64()).to_pylist() == [each * 1000 for each in times[few]]
        log = (tmp_path / f"t/_delta_log/{store.table.version():020}.json").read_text().splitlines()
        (stats,) = [json.loads(each["add"]["stats"]) for each in map(json.loads, log) if "add" in each]
        assert stats["numRecords"] == found.num_rows
        assert stats["minValues"].get("key") == ("0068-09-03T13:20:00.000000Z" if few.start else None)


def test_two_applications_do_not_write_to_one_table(tmp_path: Path) -> None:
    store, rows = Store(VERSIONED, tmp_path), _versions(random.Random(1))
    store.export(rows)
    other = replace(store.rows(rows), application_id="other")
    with pytest.raises(ValueError, match="is not a table of 'store' of other by stateline export"):
        delta.export(other, store._url, store._place, is_log=False, is_whole=True)
    assert store.rows(rows).name != replace(store.rows(rows), application_id="other", moment="at-000004").name


def test_an_unlimited_window_ends_with_the_year_9999(tmp_path: Path) -> None:
    store = Store(WINDOW, tmp_path)
    store.export([{"key": b"k", "start": 0, "end": FOREVER_MS, "value": "a"}])
    (row,) = store.table.to_pyarrow_table().to_pylist()
    assert row["end"].isoformat() == "9999-12-31T23:59:59.999000+00:00"


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_source_that_fails_is_told_as_it_is_and_nothing_is_written(is_whole: bool, tmp_path: Path) -> None:
    store = Store(VERSIONED, tmp_path)
    store.export(_versions(random.Random(1)))

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(_versions(random.Random(2)), schema=VERSIONED)
        raise CursorExpiredError("gone")

    rows = StoreRows("app", "store", "at", Position(), VERSIONED, (broken,), Progress(io.StringIO(), ""))
    with pytest.raises(CursorExpiredError, match="gone"):
        delta.export(rows, store._url, store._place, is_log=False, is_whole=is_whole)
    with pytest.raises(CursorExpiredError, match="gone"):
        parquet.export(rows, store._url, store._place)
    assert store.table.version() == 0
    assert not list(tmp_path.glob("t/at*.parquet"))


def test_readers_skip_files_by_the_keys_and_times_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 7)
    store = Store(VERSIONED, tmp_path)
    rows = [{"key": f"k{n:03}", "value": "x" * 100, "timestamp": n * 1000, "valid_to": None} for n in range(70)]
    store.export(rows)
    added = store.table.get_add_actions(flatten=True)
    assert sorted(added["num_records"].to_pylist()) == [14, 28, 28]
    assert sorted(added["min.key"].to_pylist()) == ["k000", "k028", "k056"]
    assert sorted(added["max.key"].to_pylist()) == ["k027", "k055", "k069"]
    assert sorted(round(each.timestamp()) for each in added["max.timestamp"].to_pylist()) == [27, 55, 69]
    for file in tmp_path.glob("t/*.parquet"):
        keys = pq.read_table(file)["key"].to_pylist()
        assert keys == sorted(keys)
        assert pq.ParquetFile(file).num_row_groups == len(keys) // 7


ROWS = [{"key": f"k{n}", "value": "1", "timestamp": n, "valid_to": None} for n in range(20)]
CHANGED = [{**row, "value": "2"} for row in ROWS]


@pytest.mark.parametrize(("is_log", "advice"), [(False, "again with --full"), (True, "Choose another location")])
def test_a_value_of_another_type_is_told_with_both_types(is_log: bool, advice: str, tmp_path: Path) -> None:
    Store(VERSIONED, tmp_path).export(ROWS, is_log=is_log)
    columns = pa.schema([each if each.name != "value" else ("value", pa.int64()) for each in VERSIONED])
    other, rows = Store(columns, tmp_path), [{**row, "value": 1} for row in ROWS]
    with pytest.raises(ValueError, match=rf"\(value: string there, long now\)\. .*{advice}"):
        other.export(rows, is_log=is_log)
    if not is_log:
        other.export(rows, is_whole=True)
        assert {row["value"] for row in other.table.to_pyarrow_table().to_pylist()} == {1}


def _garbage(log: Path) -> None:
    log.write_text("garbage")


def _newer(log: Path) -> None:
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    actions = map(json.loads, log.read_text().splitlines())
    log.write_text("\n".join(json.dumps({"protocol": features} if "protocol" in each else each) for each in actions))


@pytest.mark.parametrize(("harm", "told"), [(_garbage, "Json error"), (_newer, "'?new'? is not supported")])
def test_a_table_that_cannot_be_read_is_told(harm: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    store = Store(VERSIONED, tmp_path)
    store.export(ROWS)
    harm(tmp_path / "t/_delta_log/00000000000000000000.json")
    with pytest.raises(ValueError, match=rf"t is no Delta table that .* reads: .*{told}.* Choose another location"):
        store.export(CHANGED, is_whole=True)


def test_a_table_that_only_grows_is_told(tmp_path: Path) -> None:
    store = Store(VERSIONED, tmp_path)
    store.export(ROWS)
    store.table.alter.set_table_properties({"delta.appendOnly": "true"})
    for is_whole in (False, True):
        with pytest.raises(ValueError, match=r"t is append-only \(delta\.appendOnly\)"):
            store.export(CHANGED, is_whole=is_whole)


def test_a_constraint_that_rows_break_is_told(tmp_path: Path) -> None:
    store = Store(VERSIONED, tmp_path)
    store.export(ROWS)
    store.table.alter.add_constraint({"small": "value < '2'"})
    with pytest.raises(ValueError, match=r"A constraint of .*t refuses rows of 'store'.*20 rows .*Drop the constraint"):
        store.export(CHANGED)


@pytest.mark.parametrize(("is_log", "advice"), [(False, "again with --full"), (True, "Restore it")])
def test_a_file_of_a_table_that_is_gone_is_told(is_log: bool, advice: str, tmp_path: Path) -> None:
    store = Store(VERSIONED, tmp_path)
    store.export(ROWS, is_log=is_log)
    for file in tmp_path.glob("t/*.parquet"):
        file.unlink()
    with pytest.raises(RetryLaterError, match=rf"The table of 'store' cannot be read: .*not found.* {advice}") as told:
        store.export(CHANGED, is_log=is_log)
    assert "\n" not in str(told.value)
    if not is_log:
        assert store.export(CHANGED, is_whole=True) == Exported("written", len(CHANGED))


def test_a_bucket_that_refuses_is_told_with_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bucket(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with closing(server.socket):
        given = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true", "REGION": "here"}
        for name, value in {**given, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        url, store = "s3://bucket/t", Store(VERSIONED, tmp_path)
        place = object_store(url, "--to")
        with pytest.raises(
            RetryLaterError, match=r"403 Forbidden.* AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) as one:
            delta.export(store.rows(ROWS), url, place, is_log=False, is_whole=False)
        with pytest.raises(RetryLaterError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            parquet.export(store.rows(ROWS), url, place)
        server.shutdown()
    assert "\n" not in str(one.value)
    assert "\x1b" not in str(one.value)
