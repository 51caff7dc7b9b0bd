"""Stores of a backup that are read without a server: the rows of a snapshot over HTTP, and what the records make."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.spark.source.scenes import STORES, Kinds, as_counted, kinds_that_run
from stateline import serdes, stores
from stateline.backup.cut import BackupCut, find_cut
from stateline.backup.location import BackupLocation
from stateline.client import Client, backup
from stateline.model.store_definition import StoreDefinition
from stateline.rows.arrow_rows import arrow_schema
from stateline.serde.plain import StringSerde, type_name
from stateline_store import (
    ConfigurationError,
    DamagedDataError,
    DoesNotExistError,
    InvalidArgumentError,
    TopologyError,
)
from stateline_store.snapshots.backup import Backup, task_of
from stateline_store.snapshots.store_copies import StoreCopy
from support.apps.matrix_app import PARTITIONS
from support.run.length import long_only

OVER_S3 = pytest.mark.parametrize(
    "url", ["directory", pytest.param("s3", marks=long_only("test_pod_without_volumes.py reads S3"))], indirect=True
)
_ROWS = 'select columns(*)::varchar from "{}" order by all'
_TYPES = 'select column_name, column_type from (describe "{}")'


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    with kinds_that_run(tmp_path_factory.mktemp("k")) as kinds:
        yield kinds


@OVER_S3
def test_each_store_has_the_rows_and_columns_of_a_snapshot_over_http(kinds: Kinds, url: str) -> None:
    made = kinds.back_up(url)
    found = backup(url)
    assert (found.id, found.stores) == (made, tuple(sorted(STORES)))
    with Client(kinds.url) as client, client.cut(STORES) as cut:
        assert found.position == cut.details.position
        for name in STORES:
            store = found.store(name)
            batches = [batch for number in range(PARTITIONS) for batch in cut.read(name, number)]
            over_http = pa.Table.from_batches(batches)
            assert store.to_arrow().equals(over_http), name
            assert store.schema.equals(over_http.schema)
            known = {k: v for k, v in over_http.schema.metadata.items() if k.endswith((b"store", b"kind", b"_type"))}
            assert known.items() <= (store.schema.metadata or {}).items()
            assert json.loads(store.schema.metadata[b"stateline.position"]) == store.position.to_json()
            rows = [row | {"value": json.loads(row["value"])} for row in store.to_arrow().to_pylist()]
            assert as_counted(rows) == as_counted(kinds.expected(name))


def test_partitions_are_read_one_by_one(kinds: Kinds, url: str) -> None:
    kinds.back_up(url)
    store = backup(url).store("plain")
    assert store.partitions == tuple(range(PARTITIONS))
    each = [batch for number in store.partitions for batch in store.batches([number])]
    assert pa.Table.from_batches(each, store.schema).equals(store.to_arrow())
    assert store.to_pandas()["key"].tolist() == store.to_arrow()["key"].to_pylist()
    assert store.to_polars().to_dicts() == store.to_arrow().to_pylist()
    with pytest.raises(DoesNotExistError, match="no partition 3"):
        next(store.batches([3]))


def test_no_file_stays_behind(kinds: Kinds, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds.back_up(url)
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    found = backup(url).store("counts").batches()
    next(found)
    assert [len(list(each.rglob("CURRENT"))) for each in folder.iterdir()] == [1], "one partition of one store"
    found.close()  # type: ignore[attr-defined]  # it is a generator
    assert list(folder.iterdir()) == []
    assert not list((Path(url) / find_cut(url).application_id / "leases").rglob("*/*"))


def test_tables_of_duckdb_are_those_of_the_servers_sql(kinds: Kinds, url: str) -> None:
    kinds.back_up(url)
    local = backup(url).duckdb()
    with Client(kinds.url, isolation_level="read_committed") as client:
        for table in (*STORES, "history_versions"):
            for sql in (_TYPES.format(table), _ROWS.format(table)):
                rows = [tuple(row.values()) for row in client.sql(sql)]
                assert local.sql(sql).fetchall() == rows, table
    assert backup(url).duckdb(["plain"]).sql("show tables").fetchall() == [("plain",)]


def test_an_older_backup_is_found_by_its_id_or_a_time(kinds: Kinds, url: str) -> None:
    first, second = kinds.back_up(url), kinds.back_up(url)
    at = datetime.strptime(first, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    at_ms = round(at.timestamp() * 1000)
    assert [backup(url, as_of).id for as_of in (None, first, at, at_ms, at.isoformat())] == [second, *[first] * 4]
    with pytest.raises(DoesNotExistError, match=f"has no backup 20200101T000000.000Z.* are {first}, {second}"):
        backup(url, "20200101T000000.000Z")
    with pytest.raises(DoesNotExistError, match=f"no whole backup of .* up to 2020.* the oldest is {first}"):
        backup(url, "2020-01-01")
    with pytest.raises(InvalidArgumentError, match="yesterday"):
        backup(url, "yesterday")
    with pytest.raises(InvalidArgumentError, match="no time zone"):
        backup(url, datetime(2026, 1, 1))


def test_a_backup_that_lacks_a_partition_is_not_the_newest(kinds: Kinds, url: str) -> None:
    first, second = kinds.back_up(url), kinds.back_up(url)
    location = BackupLocation(url, find_cut(url).application_id)
    ((_, node),) = [each for each in location.manifests() if each[0] == second]
    whole = location.read(second, node)
    (gone,) = [part for part in whole.copy.parts if (part.store, part.partition) == ("plain", 1)]
    others = {task: at for task, at in whole.committed.items() if task != task_of(gone)}
    left = whole.of_parts([part for part in whole.copy.parts if part != gone])
    location.write(replace(left, committed=others))
    assert backup(url).id == first
    assert backup(url, second).store("counts").to_arrow().num_rows > 0
    with pytest.raises(DamagedDataError, match=r"no partition 1 of 'plain'.*Take another backup"):
        backup(url, second).store("plain")


@pytest.mark.parametrize("harm", ["flipped", "truncated", "gone"])
def test_a_damaged_file_is_named(kinds: Kinds, url: str, harm: str) -> None:
    kinds.back_up(url)
    cut = find_cut(url)
    part = cut.parts("plain")[1]
    path, digest = next((path, digests[0]) for path, digests in part.digests.items() if path.endswith(".log"))
    file = Path(url) / cut.application_id / "files" / digest
    content = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if harm == "truncated" else bytes([content[0] ^ 1]) + content[1:])
    error = DoesNotExistError if harm == "gone" else DamagedDataError
    with pytest.raises(error, match=path):
        backup(url).store("plain").to_arrow()


def test_mistakes_are_told_with_what_to_do(kinds: Kinds, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(url).rmdir()
    with pytest.raises(DoesNotExistError, match=r"is no directory\. Give the backup\.location"):
        backup(url)
    Path(url).mkdir()
    with pytest.raises(DoesNotExistError, match="has no backups"):
        backup(url)
    kinds.back_up(url)
    with pytest.raises(DoesNotExistError, match="has no store 'plan'; there are: plain"):
        backup(url).store("plan")
    with pytest.raises(DoesNotExistError, match="has no backup of other"):
        backup(url, application_id="other")
    (own,) = Path(url).iterdir()
    shutil.copytree(own, Path(url) / "other")
    with pytest.raises(DoesNotExistError, match=r"backups of matrix-\w+, other: name one as application_id"):
        backup(url)
    with pytest.raises(ConfigurationError, match="no ftp:// is known"):
        backup("ftp://somewhere/else")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'stateline\[backup\]'"):
        backup(url)


@dataclass
class _Event:
    n: int


class _Own(StringSerde):
    name = "string"


_TYPED = [*(getattr(serdes, name) for name in ("string", "json", "bytes", "int32", "int64", "float64")), _Own()]
_TYPED += [serdes.uuid, serdes.datetime, serdes.msgpack, serdes.model(_Event), serdes.windowed(serdes.string)]


@pytest.mark.parametrize("serde", _TYPED, ids=type_name)
def test_columns_have_the_types_that_they_have_over_http(serde: Any) -> None:
    definition = StoreDefinition("orders", "timestamped_key_value", serde, serde, headers=True)
    assert arrow_schema(_cut(definition).definition("orders")).equals(arrow_schema(definition))


def test_a_declaration_gives_values_that_only_the_application_can_read() -> None:
    definition = stores.key_value("orders", key=serdes.string, value=serdes.avro('"long"'))
    cut = _cut(definition)
    assert arrow_schema(cut.definition("orders")).field("value").type == pa.binary()
    assert arrow_schema(cut.definition("orders", definition)).field("value").type == pa.utf8()
    with pytest.raises(TopologyError, match=r"of string and avro\(long\), and it is declared as .* of string and json"):
        cut.definition("orders", replace(definition, value=serdes.json))


def test_the_client_loads_nothing_of_backups_before_they_are_read() -> None:
    code = "import sys, stateline.client as client; client.backup; client.Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"obstore", "rocksdict", "duckdb", "pyarrow", "stateline.backup", "stateline.model"}
    assert not slow & set(done.stdout.split())


def _cut(definition: StoreDefinition) -> BackupCut:
    told = {
        "kind": definition.kind,
        "key_type": type_name(definition.key),
        "value_type": type_name(definition.value),
        "headers": definition.headers,
    }
    nothing = StoreCopy("", {}, (), {})
    return BackupCut("", "app", (Backup("id", "node", "app", 0, "", {definition.name: told}, {}, {}, {}, nothing),))
