"""`stateline export`: what DuckDB and Delta's own library read of it is what the records make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from service.spark.source.scenes import KEY_VALUE, STORES, Kinds, as_counted, kinds_that_run
from stateline.backup.object_stores import object_store
from stateline_store import Position
from support.apps.matrix_app import PARTITIONS, build
from support.processes import forked
from support.processes.query_server import wait_until
from support.run.length import long_only, long_or_short
from support.run.patience import HANGING_S

FROM_AND_TO = pytest.mark.parametrize(
    ("source", "url"),
    [
        pytest.param("server", "directory", marks=long_only("a server's rows go to S3, and a backup's to a directory")),
        ("server", "s3"),
        ("backup", "directory"),
        pytest.param("backup", "s3", marks=long_only("a server's rows go to S3, and a backup's to a directory")),
    ],
    indirect=["url"],
)
UNFINISHED = ("export:row-group", "export:footer", "export:files-written")
_TIMES = ("timestamp", "start", "end", "valid_to")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    with kinds_that_run(tmp_path_factory.mktemp("k")) as kinds:
        yield kinds


def export(kinds: Kinds, *words: str | Path, code: int = 0) -> Any:
    """Run the command against the server; the rows that it prints as JSON, or its error."""
    given = () if "--backup" in words else ("--url", kinds.url)
    done = forked.run(["export", *map(str, words), *given, "--json"], env=os.environ)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def ended(kinds: Kinds, step: str, *words: str | Path) -> None:
    """Run the command until it comes to this step, where it kills itself."""
    line = [sys.executable, "-m", "stateline", "export", *map(str, words), "--url", kinds.url]
    environment = {**os.environ, "STATELINE_CRASH_AT": step}
    done = subprocess.run(line, env=environment, capture_output=True, timeout=HANGING_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def change(kinds: Kinds, *keys: str, value: Any = "changed") -> None:
    """Write these keys again, and wait until the stores have them."""
    kinds.deployment.send([(key, value, time.time_ns() // 1_000_000) for key in keys])
    kinds.deployment.wait_for(kinds.client, "committed", kinds.deployment.history.ends())


def expected(kinds: Kinds, store: str) -> Counter[str]:
    return as_counted(kinds.expected(store))


def counted(table: pa.Table) -> Counter[str]:
    """The rows as `expected` has them."""
    plain = [
        {
            name: json.loads(value)
            if name == "value"
            else round(value.timestamp() * 1000)
            if value and name in _TIMES
            else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]
    return as_counted(plain)


def here(at: str, tmp_path: Path) -> Path:
    """The file or folder at this address, on this disk. From S3 it is fetched: the server is in this process, which
    Delta's library would stop."""
    if "://" not in at:
        return Path(at)
    base, _, name = at.rpartition("/")
    place, folder = object_store(base, "--to"), tmp_path / f"fetched-{time.monotonic_ns()}"
    paths = [name] if "." in name else [each["path"] for page in obstore.list(place, name) for each in page]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes(obstore.get(place, path).bytes()))
    return folder / name


@FROM_AND_TO
def test_each_store_becomes_a_parquet_file_that_duckdb_reads(
    kinds: Kinds, url: str, source: str, tmp_path: Path
) -> None:
    made = kinds.back_up(str(tmp_path / "b"))
    of_backup = ("--backup", tmp_path / "b") if source == "backup" else ()
    done = export(kinds, *STORES, "--to", url, *of_backup)
    assert [row["store"] for row in done] == list(STORES)
    assert len({row["moment"] for row in done}) == 1, "all are of one snapshot"
    for row in done:
        file = here(row["at"], tmp_path)
        read = duckdb.read_parquet(str(file)).to_arrow_table()
        assert counted(read) == expected(kinds, row["store"]), row["store"]
        assert (row["outcome"], row["rows"]) == ("written", read.num_rows)
        written = pq.ParquetFile(file)
        about = {name.decode(): value.decode() for name, value in written.schema_arrow.metadata.items()}
        assert about["stateline.store"] == row["store"]
        assert about["stateline.application"] == build(kinds.deployment.run).application_id
        ends = kinds.deployment.history.ends()
        assert Position.from_json(json.loads(about["stateline.position"])).to_json() == {
            kinds.deployment.topic: {str(partition): end for partition, end in ends.items()}
        }
        assert written.num_row_groups <= PARTITIONS
        for number in range(written.num_row_groups):
            keys = written.read_row_group(number)["key"].to_pylist()
            assert row["store"] not in KEY_VALUE or keys == sorted(keys, key=str.encode)
            least = written.metadata.row_group(number).column(0).statistics
            assert (least.min, least.max) == (min(keys, key=str.encode), max(keys, key=str.encode))
    if source == "backup":
        assert done[0]["moment"] == made
        assert {row["outcome"] for row in export(kinds, *STORES, "--to", url, *of_backup)} == {"there already"}


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(
            "directory", marks=long_only("test_export_tables.py has a table of each kind in one, and this a bucket")
        ),
        "s3",
    ],
    indirect=True,
)
def test_a_delta_table_is_its_store_after_each_export(kinds: Kinds, url: str, tmp_path: Path) -> None:
    stores = STORES if "://" not in url else long_or_short(("stamped", "each", "history"), ("each", "history"))

    def is_right(*outcomes: str) -> dict[str, int]:
        done, versions = export(kinds, *stores, "--to", url, "--format", "delta"), {}
        assert {row["outcome"] for row in done} == set(outcomes)
        for row in done:
            folder = here(row["at"], tmp_path)
            table = DeltaTable(folder)
            versions[row["store"]] = table.version()
            files = [str(folder / name) for name in table.get_add_actions()["path"].to_pylist()]
            for read in (table.to_pyarrow_table(), duckdb.read_parquet(files).to_arrow_table()):
                assert counted(read) == expected(kinds, row["store"]), row["store"]
        return versions

    assert is_right("written") == dict.fromkeys(stores, 0)
    change(kinds, "a", "k|1", "new")
    change(kinds, "a")
    after = is_right("changed", "written")
    assert after == dict.fromkeys(stores, 1)
    assert is_right("nothing new") == after, "no commit"
    change(kinds, "a", "new", value=None)
    is_right("changed", "nothing new")


def test_a_table_follows_a_backup_and_goes_back_with_it(kinds: Kinds, url: str, tmp_path: Path) -> None:
    before = expected(kinds, "history")
    first = kinds.back_up(url)
    change(kinds, "a", "b")
    kinds.back_up(url)
    words = ("history", "--backup", url, "--to", tmp_path / "out", "--format", "delta")
    (done,) = export(kinds, *words)
    assert counted(DeltaTable(done["at"]).to_pyarrow_table()) == expected(kinds, "history")
    export(kinds, *words, "--as-of", first)
    assert counted(DeltaTable(done["at"]).to_pyarrow_table()) == before


def test_a_log_of_changes_has_each_change_with_the_number_of_its_export(kinds: Kinds, tmp_path: Path) -> None:
    words = ("latest", "--to", tmp_path, "--format", "delta", "--changes")
    states = []
    for keys, value in ((["a", "b"], 1), (["a", "fresh"], 2), (["a"], None), (["a", "b"], 3)):
        change(kinds, *keys, value=value)
        (done,) = export(kinds, *words)
        states.append({row["key"]: (row["value"], row["timestamp"]) for row in kinds.expected("latest")})
    rows = DeltaTable(done["at"]).to_pyarrow_table().sort_by("_export").to_pylist()
    state: dict[str, Any] = {}
    for number, wanted in enumerate(states, start=1):
        for row in rows:
            if row["_export"] == number and row["_deleted"]:
                del state[row["key"]]
            elif row["_export"] == number:
                state[row["key"]] = (json.loads(row["value"]), round(row["timestamp"].timestamp() * 1000))
        assert state == wanted
    assert [row["key"] for row in rows if row["_export"] > 1] == ["a", "fresh", "a", "a", "b"]


@pytest.mark.parametrize(
    "step",
    [
        *(
            pytest.param(step, marks=long_only("a table's export is killed before its end"))
            for step in ("export:row-group", "export:footer")
        ),
        "export:written",
    ],
)
def test_a_parquet_export_that_is_killed_is_there_whole_or_not_at_all(kinds: Kinds, step: str, tmp_path: Path) -> None:
    words = ("stamped", "--to", tmp_path)
    (first,) = export(kinds, *words)
    before = expected(kinds, "stamped")
    change(kinds, "k2", value=step)
    ended(kinds, step, *words)
    for file in (tmp_path / "stamped").glob("*.parquet"):
        assert counted(pq.read_table(file)) == (before if str(file) == first["at"] else expected(kinds, "stamped"))
    assert len(list((tmp_path / "stamped").glob("*.parquet"))) == (2 if step == "export:written" else 1)
    (second,) = export(kinds, *words)
    assert counted(pq.read_table(second["at"])) == expected(kinds, "stamped")


@pytest.mark.parametrize(
    "log",
    [(), pytest.param(("--changes",), marks=long_only("a table is written and committed by the same steps"))],
    ids=["table", "log"],
)
def test_a_delta_export_that_is_killed_at_any_step_leaves_the_table_as_it_was(
    kinds: Kinds, log: tuple[str, ...], tmp_path: Path
) -> None:
    words: tuple[str | Path, ...] = ("stamped", "--to", tmp_path, "--format", "delta", *log)
    at = tmp_path / "stamped"
    for step in long_or_short(UNFINISHED, UNFINISHED[1:]):
        ended(kinds, step, *words)
        assert not DeltaTable.is_deltatable(str(at)), f"no table after {step}"
    ended(kinds, "export:committed", *words)
    assert DeltaTable(at).version() == 0
    for step in ("export:compared", "export:committed"):
        before, version = DeltaTable(at).to_pyarrow_table(), DeltaTable(at).version()
        change(kinds, "k2", value=step)
        ended(kinds, step, *words)
        if step == "export:compared":
            assert DeltaTable(at).version() == version
            assert DeltaTable(at).to_pyarrow_table().equals(before)
            assert export(kinds, *words)[0]["outcome"] == "changed"
        assert export(kinds, *words)[0]["outcome"] == "nothing new"
        if not log:
            assert counted(DeltaTable(at).to_pyarrow_table()) == expected(kinds, "stamped")
    if not log:
        ended(kinds, "export:files-written", *words, "--full")
        assert counted(DeltaTable(at).to_pyarrow_table()) == expected(kinds, "stamped")


def test_of_two_exports_at_once_one_fails_and_nothing_is_lost(kinds: Kinds, tmp_path: Path) -> None:
    words = ["export", "plain", "--to", str(tmp_path), "--format", "delta", "--url", kinds.url]
    assert forked.run(words, env=os.environ).returncode == 0
    change(kinds, "ab", value="first")
    line = [sys.executable, "-m", "stateline", *words]
    slow = subprocess.Popen(
        line, env={**os.environ, "STATELINE_TEST_STOP_AT": "export:compared"}, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: Path(f"/proc/{slow.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        change(kinds, "ab", value="second")
        assert export(kinds, *words[1:-2])[0]["outcome"] == "changed"
        slow.send_signal(signal.SIGCONT)
        _, said = slow.communicate(timeout=HANGING_S)
    finally:
        slow.kill()
        slow.wait()
    assert (slow.returncode, "Run the export again" in said) == (1, True), said
    assert counted(DeltaTable(tmp_path / "plain").to_pyarrow_table()) == expected(kinds, "plain")


def test_a_table_of_somebody_else_is_left_alone(kinds: Kinds, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "plain", pa.table({"mine": [1]}))
    app = build(kinds.deployment.run).application_id
    for word in ("--format", "--full"):
        said = export(kinds, "plain", "--to", tmp_path, "--format", "delta", *([word] * (word == "--full")), code=2)
        assert f"is not a table of 'plain' of {app} by stateline export. Choose another location" in said
    export(kinds, "stamped", "--to", tmp_path, "--format", "delta")
    said = export(kinds, "stamped", "--to", tmp_path, "--format", "delta", "--changes", code=2)
    assert f"is not a log of changes of 'stamped' of {app} by stateline export" in said
    assert DeltaTable(tmp_path / "plain").to_pyarrow_table().to_pydict() == {"mine": [1]}


def test_a_table_with_other_columns_is_written_anew_only_when_told(kinds: Kinds, tmp_path: Path) -> None:
    of_app = f"stateline-export/{build(kinds.deployment.run).application_id}/plain"
    ours = CommitProperties(app_transactions=[Transaction(of_app, 7)])
    write_deltalake(tmp_path / "plain", pa.table({"key": [1]}), commit_properties=ours)
    words = ("plain", "--to", tmp_path, "--format", "delta")
    told = export(kinds, *words, code=2)
    assert "has other columns than 'plain' has now (key: long there, string now; value: none there, string" in told
    assert "Write all of it again with --full" in told
    assert export(kinds, *words, "--full")[0]["outcome"] == "written"
    table = DeltaTable(tmp_path / "plain")
    assert (table.version(), table.transaction_version(of_app)) == (1, 8)
    assert counted(table.to_pyarrow_table()) == expected(kinds, "plain")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nope", "--to", "{}"), "no store 'nope'"),
        (("plain-in-memory", "--to", "{}"), "in memory"),
        (("plain", "--to", "{}/file"), "file"),
        (("plain", "--to", "{}/file", "--format", "delta"), "file"),
        (("plain", "--to", "ftp://host/x"), "no ftp:// is known"),
        (("plain", "--to", "{}", "--format", "csv"), "parquet or delta is accepted"),
        (("plain", "--to", "{}", "--full"), "--changes and --full are for --format delta"),
        (("plain", "--to", "{}", "--as-of", "x"), "--as-of and --application-id are for --backup"),
        (("plain", "--to", "{}", "--backup", "{}/none"), "no directory"),
        (("plain", "--to", "{}", "--backup", "{}", "--url", "http://127.0.0.1:1"), "leave out --url or --backup"),
        (("plain",), "'--to'"),
    ],
)
def test_what_cannot_be_exported_is_the_callers_mistake(
    kinds: Kinds, words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    said = export(kinds, *(word.format(tmp_path) for word in words), code=2)
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "package", "extra"), [("delta", "deltalake", "delta"), ("parquet", "obstore", "backup")]
)
def test_a_missing_package_is_told_with_the_line_that_installs_it(form: str, package: str, extra: str) -> None:
    line = ["export", "plain", "--to", "/nowhere", "--format", form]
    code = f"import sys; sys.modules[{package!r}] = None; from stateline.cli import main; sys.exit(main({line!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"need {package}, not installed here: run `pip install 'stateline[{extra}]'`" in done.stderr
