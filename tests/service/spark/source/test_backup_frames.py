"""Backups as DataFrames: the rows of snapshots over HTTP, read by executors without a server."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from service.spark.source.scenes import OF_EACH_KIND, STORES, Kinds, as_counted, read, rows
from stateline.backup import cached_files
from stateline.backup.cut import BackupCut, find_cut
from stateline.backup.location import BackupLocation
from stateline.spark.reading.backup_reader import BackupReader, columns_of
from stateline.spark.reading.source import StatelineSource
from stateline.spark.reading.source_options import refuse_both_signs
from stateline_store import InvalidArgumentError, StatelineError
from stateline_store.rocksdb.options import Tuning
from stateline_store.scan import EVERY_KEY
from stateline_store.snapshots.checkpoints import Checkpoint
from support.apps.matrix_app import PARTITIONS
from support.processes.query_server import OwningWorker
from support.run.length import long_only, long_or_short
from support.spark.on_cluster import Cluster
from support.written_backups import write_backup


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process keeps no part open for later tests, as it would for its next readers."""
    parts = dict[tuple[object, ...], Checkpoint]()
    monkeypatch.setattr(cached_files, "_kept", parts)
    yield
    for part in parts.values():
        part.close()


@pytest.fixture(scope="module")
def backed_up(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with one backup."""
    url = str(tmp_path_factory.mktemp("backups"))
    kinds.back_up(url)
    return url


def frame(session: SparkSession, url: str, store: str, **options: Any) -> DataFrame:
    given = {"backup": url, "store": store, **{name: str(value) for name, value in options.items()}}
    return session.read.format("stateline").options(**given).load()


_ALIKE = long_only("one store of each kind is in the gate, and test_snapshot_frames.py has the others over HTTP")


@pytest.mark.parametrize(
    "store", [store if store in OF_EACH_KIND else pytest.param(store, marks=_ALIKE) for store in STORES]
)
def test_a_frame_has_the_rows_and_types_of_a_snapshot_over_http(
    session: SparkSession, kinds: Kinds, backed_up: str, store: str
) -> None:
    found, over_http = frame(session, backed_up, store), read(session, kinds.url, store)
    assert found.schema == over_http.schema
    assert as_counted(rows(found)) == as_counted(kinds.expected(store)) == as_counted(rows(over_http))
    assert found.rdd.getNumPartitions() == PARTITIONS


def test_fetched_files_are_in_sparks_own_directory(
    session: SparkSession, backed_up: str, cluster: Cluster | None
) -> None:
    assert frame(session, backed_up, "plain").count() > 0
    if cluster is None:  # the executor is in the driver
        jvm: Any = session._jvm
        (place, *_) = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()
        assert list((Path(str(place)) / "stateline-backups").glob("*.lock"))


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_executors_read_an_object_store(kinds: Kinds, url: str) -> None:
    """In this process: Spark's have started without the credentials."""
    kinds.back_up(url)
    assert as_counted(_read_here(find_cut(url), "history")) == as_counted(kinds.expected("history"))


@pytest.mark.parametrize(
    ("store", "options"),
    [
        pytest.param("plain", {"prefix": "k"}, marks=long_only("bounds that are given as two are in the gate")),
        ("plain", {"lower": "a", "upper": "b"}),
        pytest.param(
            "latest",
            {"keys": json.dumps(["a", "zürich", "none"])},
            marks=long_only("keys of a store of windows are in the gate"),
        ),
        ("counts", {"keys": json.dumps(["a", "ab"])}),
        ("newest", {"columns": "value, key", "prefix": ""}),
    ],
)
def test_less_than_all_is_the_same_as_over_http(
    session: SparkSession, kinds: Kinds, backed_up: str, store: str, options: dict[str, str]
) -> None:
    expected = rows(read(session, kinds.url, store, **options))
    assert expected
    assert as_counted(rows(frame(session, backed_up, store, **options))) == as_counted(expected)


def test_times_are_bounded_as_over_http(session: SparkSession, kinds: Kinds, backed_up: str) -> None:
    starts = sorted(row["start"] for row in kinds.expected("counts"))
    ends = sorted(row["valid_to"] for row in kinds.expected("history") if row["valid_to"] is not None)
    moment = datetime.fromtimestamp(ends[-1] / 1000, UTC).isoformat()
    middle = {"from": starts[len(starts) // 3], "to": starts[-len(starts) // 3]}
    for store, options in (("counts", middle), ("history", {"as_of": moment})):
        expected = rows(read(session, kinds.url, store, **options))
        assert 0 < len(expected) < len(kinds.expected(store))
        assert as_counted(rows(frame(session, backed_up, store, **options))) == as_counted(expected)


_SIGNED = [*range(-7, 8), 2**63 - 1, -(2**63)]


_BOUNDS = [("-5", "5"), ("0", "5"), ("5", "-5"), ("x", "5")]
_OTHER_BOUNDS = [("-5", "-1"), ("5", "1"), ("-1", "-5"), ("-5", ""), ("", "5")]


# The next test has bounds of other types, too.
@pytest.mark.parametrize("bounds", long_or_short(_BOUNDS + _OTHER_BOUNDS, _BOUNDS), ids=str)
def test_bounds_of_integers_of_both_signs_mean_the_same_as_over_http(
    session: SparkSession, client: httpx.Client, worker: OwningWorker, tmp_path: Path, bounds: tuple[str, str]
) -> None:
    stored = [number.to_bytes(8, "big", signed=True) for number in _SIGNED]
    worker.run(lambda: [*map(worker.stores["counts", 0].put, stored, stored)])
    worker.commit()
    url = str(tmp_path / "b")
    write_backup(tmp_path, url, "counts", {0: [(each, each) for each in stored]}, key_type="int64", value_type="int64")
    options = {name: each for name, each in zip(("lower", "upper"), bounds, strict=True) if each}

    def found(frame: Callable[..., DataFrame], url: str) -> Any:
        try:
            return sorted(row.key for row in frame(session, url, "counts", **options).collect())
        except PySparkException as error:
            return str(error).partition("Error: ")[2]

    assert found(frame, url) == found(read, str(client.base_url))


@pytest.mark.parametrize(
    ("key_type", "lower", "upper", "is_refused"),
    [
        ("int32", "-1", "0", True),
        ("int32", "1", "-1", False),
        ("float64", "-0.5", "0", True),
        ("float64", "-2", "-1.5", True),
        ("float64", "-1.5", "-2", False),
        ("float64", "NaN", "1", False),
        ("string", "-1", "1", False),
    ],
)
def test_bounds_of_numbers_without_keys_between_them_are_refused(
    key_type: str, lower: str, upper: str, is_refused: bool
) -> None:
    with pytest.raises(InvalidArgumentError, match="no keys between") if is_refused else nullcontext():
        refuse_both_signs({"lower": lower, "upper": upper}, key_type)


def test_a_frame_is_of_one_backup_however_often_it_is_read(session: SparkSession, kinds: Kinds, url: str) -> None:
    first = kinds.back_up(url)
    with_schema = session.read.format("stateline").options(backup=url, store="plain").schema("key STRING").load()
    newest = frame(session, url, "plain")
    second = kinds.back_up(url)
    cut = find_cut(url, second)
    BackupLocation(url, cut.application_id).delete_manifest(second, cut.manifests[0].node)
    assert newest.count() == with_schema.count() == len(kinds.expected("plain"))
    assert newest.join(with_schema, "key").count() == newest.count()
    of_one_cut = [frame(session, url, store, backupAsOf=first).count() for store in ("plain", "visits")]
    assert of_one_cut == [len(kinds.expected(store)) for store in ("plain", "visits")]


def test_a_table_of_spark_sql_reads_a_backup(session: SparkSession, kinds: Kinds, backed_up: str) -> None:
    session.sql(f"CREATE TABLE of_a_backup USING stateline OPTIONS (backup '{backed_up}', store 'plain')")
    try:
        (found,) = session.sql("SELECT count(*) FROM of_a_backup").collect()
        assert found[0] == len(kinds.expected("plain"))
    finally:
        session.sql("DROP TABLE of_a_backup")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with a backup of two partitions of many tables, each with the keys k000000 to k059999."""
    root, chance = tmp_path_factory.mktemp("many"), random.Random(2)
    rows = [(b"k%06d" % number, chance.randbytes(50).hex().encode()) for number in range(60_000)]
    write_backup(root, str(root / "backups"), "many", {0: rows, 1: rows}, Tuning(100_000, 400_000))
    return str(root / "backups")


@pytest.fixture
def large(many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackupReader:
    """Reads all of it, into directories of its own."""
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},{tmp_path / 'other'}")
    return _reader(many, split_bytes="500000")


def test_tasks_of_a_large_partition_follow_each_other_and_share_its_files(large: BackupReader, tmp_path: Path) -> None:
    tasks = large.partitions()
    parts = [task.backup.copy.parts[0].partition for task in tasks]
    assert parts == sorted(parts)
    assert parts.count(0) > 2
    keys = [[row["key"] for batch in large.read(task) for row in batch.to_pylist()] for task in tasks]
    assert [key for each in keys for key in each] == [f"k{number:06}" for number in range(60_000)] * 2
    assert max(map(len, keys)) < 60_000 / 2
    cache = tmp_path / "local" / "stateline-backups"
    fetched = {each: each.stat().st_ino for each in cache.iterdir()}
    list(large.read(tasks[0]))
    assert {each: each.stat().st_ino for each in cache.iterdir()} == fetched, "and no folder of a reader is left"


def test_a_task_fetches_only_the_tables_of_its_keys(
    large: BackupReader, many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, fetched = large.partitions(), Counter[str]()
    tables = sum(size for path, size in tasks[0].backup.copy.files.items() if path.endswith(".sst"))

    def counted(self: BackupLocation, digest: str, size: int, name: str) -> Iterator[bytes]:
        fetched[name] += size if name.endswith(".sst") else 0
        return checked(self, digest, size, name)

    checked = BackupLocation.checked_piece
    monkeypatch.setattr(BackupLocation, "checked_piece", counted)
    monkeypatch.setattr(cached_files, "MOST_BYTES", tasks[0].backup.copy.size_bytes // 2)
    for task in tasks:
        list(large.read(task))
    assert fetched.total() < 1.5 * 2 * tables, "also if the cache does not hold a partition"
    assert sum(file.stat().st_size for file in (tmp_path / "local").glob("*/*")) <= cached_files.MOST_BYTES
    monkeypatch.setattr(cached_files, "MOST_BYTES", 0)
    for task in tasks:
        fetched.clear()
        list(large.read(task))
        assert fetched.total() < tables / 2
    for options, count in (({"keys": '["k000007"]'}, 1), ({"prefix": "k0200"}, 100)):
        fetched.clear()
        some = _reader(many, **options)
        assert sum(batch.num_rows for batch in some.read(some.partitions()[0])) == count
        assert 0 < fetched.total() < 0.6 * tables, "up to two of four tables"


def test_windows_of_a_large_partition_are_read_by_tasks_with_some_of_its_tables(url: str, tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [(b"k%d" % chance.randrange(500), chance.randbytes(50).hex().encode()) for _ in range(50_000)]
    write_backup(tmp_path, url, "many", {0: rows}, Tuning(60_000, 240_000), windows=True)
    expected = [(key.decode(), 4 * number, value.decode()) for number, (key, value) in enumerate(rows)]
    all_bounds: list[dict[str, str]] = [{}, {"from": "110000", "to": "150000"}, {"keys": '["k7", "k77"]'}]
    for bounds in long_or_short(all_bounds, all_bounds[1:]):
        reader = _reader(url, split_bytes="300000", **bounds)
        found = [batch for task in reader.partitions() for batch in reader.read(task)]
        starts = [[round(at.timestamp() * 1000) for at in batch["start"].to_pylist()] for batch in found]
        read = [
            row
            for batch, at in zip(found, starts, strict=True)
            for row in zip(batch["key"].to_pylist(), at, batch["value"].to_pylist(), strict=True)
        ]
        keys = json.loads(bounds.get("keys", "null"))
        wanted = [row for row in expected if int(bounds.get("from", "0")) <= row[1] <= int(bounds.get("to", "200000"))]
        assert sorted(read) == sorted(row for row in wanted if keys is None or row[0] in keys)
    assert len(reader.partitions()) > 4


def test_a_process_keeps_some_parts_open(large: BackupReader, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, made = list[Checkpoint](), Checkpoint

    def counted(*given: Any) -> Checkpoint:
        opened.append(made(*given))
        return opened[-1]

    monkeypatch.setattr(cached_files, "Checkpoint", counted)
    monkeypatch.setattr(cached_files, "MOST_KEPT", 2)
    tasks = [task for task in large.partitions() if list(large.read(task))]
    assert len(opened) == len(tasks) > 4
    for _ in range(2):
        assert sum(batch.num_rows for task in tasks[-2:] for batch in large.read(task)) > 0
    two = zip(*(large.read(tasks[-1]) for _ in range(2)), strict=True)  # at the same time
    assert all(one.equals(other) for one, other in two)
    assert len(opened) == len(tasks) + 1
    list(large.read(tasks[0]))
    assert len(opened) == len(tasks) + 2
    with pytest.raises(StatelineError):
        list(opened[0].scan(EVERY_KEY))


def test_fetched_files_are_deleted_when_others_need_the_room(
    backed_up: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, place = find_cut(backed_up), tmp_path / "parts"
    location, parts = BackupLocation(backed_up, cut.application_id), cut.parts("plain")
    small, middle, large = sorted(parts, key=lambda number: parts[number].copy.size_bytes)
    most = parts[middle].copy.size_bytes + parts[large].copy.size_bytes
    monkeypatch.setattr(cached_files, "MOST_BYTES", most)
    with ExitStack() as opened:
        for number in (large, middle, large, small):
            part = opened.enter_context(cached_files.cached_part(location, parts[number], place))
            checkpoint = opened.enter_context(part.open([EVERY_KEY]))
            assert checkpoint.part.partition == number
        digests = {digest for number in (large, small) for each in parts[number].digests.values() for digest in each}
        left = {file.name: file.stat().st_size for file in place.iterdir() if file.is_file()}
        assert sum(left.values()) <= most
        for digest in digests:
            assert hashlib.blake2b(digest.encode(), digest_size=32).hexdigest() in left


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "http://127.0.0.1:1"}, "url and backup are both given"),
        ({"tokenFile": "f"}, "token_file and backup are both given"),
        ({"pin": "p"}, "There is no option 'pin'"),
        ({"store": "plan"}, "has no store 'plan'; there are: plain"),
        ({"store": ""}, "option store is missing"),
        ({"backup_as_of": "20200101T000000.000Z"}, "has no backup 20200101T000000.000Z"),
        ({"application_id": "other"}, "has no backup of other"),
        ({"as_of": "1"}, "only versioned stores have as_of"),
        ({"from": "1"}, "keeps no timestamps"),
        ({"columns": "nope"}, "'nope' is no column of 'plain'"),
        ({"keys": "[1]"}, "those of 'plain' are string"),
    ],
)
def test_mistakes_are_told_with_what_to_do(backed_up: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        _plan({"backup": backed_up, "store": "plain", **options})


def test_a_mistake_reaches_the_user_in_one_line(session: SparkSession, url: str) -> None:
    Path(url).rmdir()
    with pytest.raises(Exception, match=r"is no directory\. Give the backup\.location") as told:
        frame(session, url, "plain")
    assert "Traceback" not in str(told.value)


def _reader(url: str, **options: str) -> BackupReader:
    cut, given = find_cut(url), {"backup": url, "store": "many", **options}
    return BackupReader(given, cut, columns_of(cut, given))


def _plan(given: dict[str, str]) -> None:
    source = StatelineSource(given)
    source.reader(source.schema())


def _read_here(cut: BackupCut, store: str) -> list[dict[str, Any]]:
    given, of_store = {"backup": cut.url, "store": store}, cut.of_store(store)
    reader = BackupReader(given, of_store, columns_of(of_store, given))
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return [{name: _plain(name, value) for name, value in row.items()} for row in found]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return json.loads(value) if name == "value" else value
