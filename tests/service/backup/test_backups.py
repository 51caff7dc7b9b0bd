"""Backups of real workers, in a directory, in an object store that speaks S3's API, and in HDFS."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.backup.changes_node import PARTITIONS, RUN, Node, rows_of
from stateline.backup.cut import find_cut
from stateline.backup.location import BackupLocation
from stateline.backup.reading import verify
from stateline.backup.retention import sweep
from stateline.backup.webhdfs import WebHdfs
from support.apps import changes_app
from support.processes.query_server import wait_until
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.written_backups import write_backup

APPLICATION = "changes-backups"
ON_DISK = 8  # stores of `changes_app`
STEPS = ("backup:linked", "backup:file-written", "backup:file-written#4", "backup:files-written")
ON_S3 = pytest.param("s3", marks=long_only("test_pod_without_volumes.py writes and reads backups of S3"))
ON_HDFS = pytest.param("hdfs", marks=long_only("a node that lost its stores writes and reads backups of HDFS"))


@pytest.fixture
def node(tmp_path: Path, url: str) -> Iterator[Node]:
    made = Node(tmp_path, url)
    made.start()
    made.send({f"k{n}": n for n in range(500)})
    made.until_processed()
    yield made
    made.kill()


@pytest.mark.parametrize(
    "url", [pytest.param("directory", marks=long_only("the same on HDFS")), ON_S3, "hdfs"], indirect=True
)
def test_a_node_that_lost_its_stores_goes_on_from_its_backup(node: Node) -> None:
    made = node.backup("now")[0]
    assert (made["stores"], made["partitions"]) == (ON_DISK, ON_DISK * PARTITIONS)
    node.send({f"k{n}": -n for n in range(400, 600)})
    node.until_processed()
    assert "This application runs" in node.backup("restore", code=1)
    node.kill()
    shutil.rmtree(node.state / APPLICATION)
    told = node.backup("restore", "--node", "nosuch", code=2)
    assert f"No backup of {APPLICATION} is of node 'nosuch': there are '{made['node']}'." in told
    restored = node.backup("restore", "--node", made["node"])
    assert [(row["task"], row["backup"], row["outcome"]) for row in restored] == [
        (f"0_{place}", made["backup"], "restored") for place in range(PARTITIONS)
    ]
    assert {row["outcome"] for row in node.backup("restore")} == {"kept"}
    node.start()
    node.until_processed()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("", marks=long_only("one that was killed begins so, too")),
        "copy:file-arrived#5",
        "copy:whole",
    ],
)
def test_a_worker_without_stores_begins_with_those_of_a_backup(node: Node, step: str) -> None:
    node.backup("now")
    node.send({f"k{n}": -n for n in range(400, 600)})
    node.until_processed()
    node.kill()
    shutil.rmtree(node.state / APPLICATION)
    if step:
        node.killed_worker(step)
    node.start()
    node.until_processed()
    with served_here(node.state, *node.settings[2:], app=changes_app.build(RUN), until_ready=False) as here:
        unlogged = rows_of(here.client, "quiet")
    assert unlogged is not None
    assert {f"k{n}" for n in range(400)} <= unlogged.keys(), "no changelog has these"


@long_only("test_taken_stores.py has a worker that loses the files of its backup")
def test_a_worker_without_a_usable_backup_reads_its_changelogs(node: Node) -> None:
    node.backup("now")
    location = BackupLocation(node.url, APPLICATION)
    location.delete_files([each.digest for each in location.files()])
    node.kill()
    shutil.rmtree(node.state / APPLICATION)
    node.start()
    node.until_processed()


@long_only("test_retention.py has what a writer finds there, and a full backup follows one without files")
def test_only_what_the_location_lacks_is_written(node: Node) -> None:
    whole = node.backup("now")[0]
    again = node.backup("now")[0]
    assert (again["files"], again["written files"], again["written bytes"]) == (whole["files"], 0, 0)
    node.send({"k1": "changed"})
    node.until_processed()
    changed = node.backup("now")[0]
    assert 0 < changed["written files"] <= ON_DISK * 2, "logs and manifests of the stores of one partition"
    assert len(node.backup("list")) == 3
    assert [row["outcome"] for row in node.backup("verify")] == ["whole"]


@pytest.mark.parametrize("url", ["directory", ON_S3, ON_HDFS], indirect=True)
def test_a_backup_that_is_killed_at_any_step_leaves_the_last_one_whole(node: Node) -> None:
    first = node.backup("now")[0]["backup"]
    for number, step in enumerate(STEPS):
        node.send({f"new-{number}-{n}": n for n in range(200)})
        node.until_processed()
        node.killed_backup(step)
        assert [row["backup"] for row in node.backup("list")] == [first], step
        assert [row["outcome"] for row in node.backup("verify")] == ["whole"], step
    second = node.backup("now")[0]["backup"]
    assert [row["backup"] for row in node.backup("list")] == [second, first]
    node.killed_backup("backup:manifest-written")
    third = node.backup("list")[0]["backup"]
    assert third > second, "it was written"
    assert [row["outcome"] for row in node.backup("verify")] == ["whole"]
    node.kill()
    shutil.rmtree(node.state / APPLICATION)
    assert {row["backup"] for row in node.backup("restore")} == {third}
    node.start()
    node.until_processed()


def test_a_backup_tells_all_declared_stores_also_those_that_have_nothing_yet(tmp_path: Path) -> None:
    node = Node(tmp_path, str(tmp_path / "backups"))
    node.start()
    try:
        wait_until(lambda: node.stateline("backup", "now").returncode == 0)
        wait_until(lambda: node.backup("now")[0]["partitions"] == PARTITIONS)
        cut = find_cut(node.url)
        assert len(cut.stores) == ON_DISK
        assert {store for store in cut.stores if cut.parts(store)} == {"quiet"}, "it has no changelog"
    finally:
        node.kill()


@pytest.mark.parametrize(
    "harm",
    [
        "flipped",
        *(
            pytest.param(harm, marks=long_only("test_taken_stores.py takes backups before"))
            for harm in ("truncated", "gone")
        ),
    ],
)
def test_a_damaged_file_is_told_and_the_backup_before_is_taken(node: Node, harm: str) -> None:
    first = node.backup("now")[0]["backup"]
    node.send({f"k{n}": -n for n in range(500)})
    node.until_processed()
    second = node.backup("now")[0]["backup"]
    location = BackupLocation(node.url, APPLICATION)
    newer, older = location.read(second, _node(location)), location.read(first, _node(location))
    of_task = {digest for path, digests in newer.digests.items() if path.startswith("0_1/") for digest in digests}
    digest = min(of_task - older.named)
    file = Path(node.url) / APPLICATION / "files" / digest
    content = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if harm == "truncated" else bytes([content[0] ^ 1]) + content[1:])
    (told,) = node.backup("verify", code=1)
    assert (told["task"], told["outcome"]) == ("0_1", "damaged")
    assert f"stateline backup now --full on node {told['node']!r}" in told["why"]
    node.kill()
    shutil.rmtree(node.state / APPLICATION)
    restored = {row["task"]: row for row in node.backup("restore")}
    assert {task: row["backup"] for task, row in restored.items()} == {"0_0": second, "0_1": first, "0_2": second}
    assert restored["0_1"]["why"], "it says why the newest was not taken"
    node.start()
    node.until_processed()


@pytest.mark.parametrize("url", ["directory", ON_S3, ON_HDFS], indirect=True)
def test_a_full_backup_writes_all_files_again(node: Node) -> None:
    node.backup("now")
    assert node.backup("now")[0]["written files"] == 0
    assert node.backup("now", "--full")[0]["written files"] > ON_DISK * PARTITIONS
    assert [row["outcome"] for row in node.backup("verify")] == ["whole"]


@long_only("test_taken_stores.py restores nothing of a topic that was created again")
def test_stores_of_topics_that_were_created_again_are_not_restored(node: Node) -> None:
    node.backup("now")
    node.kill()
    shutil.rmtree(node.state)
    assert node.stateline("topics", "--create", "--partitions", str(PARTITIONS)).returncode == 0
    rows = node.backup("restore", code=1)
    assert {row["outcome"] for row in rows} == {"not restored"}
    assert {"offsets mean other records" in row["why"] for row in rows} == {True}


@pytest.mark.parametrize("url", ["directory", ON_S3], indirect=True)
def test_a_server_backs_up_at_each_interval_and_tells_its_figures(node: Node) -> None:
    given = (f"backup.location={node.url}", "backup.interval.ms=1000")
    with served_here(node.state, *given, app=changes_app.build(RUN), until_ready=False) as here:

        def told() -> dict[str, str]:
            lines = here.client.get("/metrics").text.splitlines()
            return dict(line.split() for line in lines if line.startswith("stateline_backup"))

        wait_until(lambda: float(told().get("stateline_backup_made_total", 0)) >= 2)
        figures = told()
    assert time.time() - float(figures["stateline_backup_last_timestamp_seconds"]) < HANGING_S
    assert float(figures["stateline_backup_written_files_total"]) > 0
    assert figures["stateline_backup_failures_total"] == "0.0"
    location, topology = BackupLocation(node.url, APPLICATION), changes_app.build(RUN).topology()
    for backup_id, name in location.manifests():
        assert verify(location, location.read(backup_id, name), topology) == []


def test_the_console_tells_when_each_partition_was_backed_up(node: Node) -> None:
    given = (f"backup.location={node.url}", "backup.interval.ms=1000")
    before_ms = time.time() * 1000
    with served_here(node.state, *given, app=changes_app.build(RUN), until_ready=False) as here:

        def told(store: str = "counts") -> dict[str, Any]:
            found: dict[str, Any] = here.client.get("/v1/console", params={"store": store}).json()
            return found

        def oldest() -> int:
            """Of the sums of stores, which are up to a second old."""
            return {each["store"]: each["backed_up_at_ms"] or 0 for each in told()["stores"]}["counts"]

        wait_until(lambda: oldest() > before_ms)
        look, memory = told(), told("memory")
    assert look["backup"]["failed"] == 0
    assert look["backup"]["written_bytes"] > 0
    times = [each["backed_up_at_ms"] for each in look["partitions"].values()]
    assert len(times) == PARTITIONS
    assert before_ms < min(times) <= max(times) <= look["backup"]["last_ms"]
    assert {each["backed_up_at_ms"] for each in memory["partitions"].values()} == {None}, "it is in memory"
    with served_here(node.state, app=changes_app.build(RUN), until_ready=False) as here:
        assert told()["backup"] is None, "without a location"


def test_mistakes_are_told_with_what_to_do(tmp_path: Path) -> None:
    node = Node(tmp_path, str(tmp_path / "backups"))
    assert "No task runs here" in node.backup("now", code=1)
    assert "make one with stateline backup now" in node.backup("verify", code=2)
    assert "has no backup 2020. The newest are none" in node.backup("verify", "--id", "2020", code=2)
    assert node.backup("list") == []
    node.settings[1] = "backup.location=ftp://somewhere/else"
    assert "no ftp:// is known" in node.backup("list", code=2)
    (tmp_path / "file").touch()
    node.settings[1] = f"backup.location={tmp_path / 'file'}"
    assert "file is a file: give a directory." in node.backup("list", code=2)
    node.settings[1] = f"backup.location={tmp_path / 'nowhere'}"
    for command in ("list", "verify", "restore", "prune"):
        assert "nowhere does not exist" in node.backup(command, code=2)
    assert not (tmp_path / "nowhere").exists()
    del node.settings[1]
    assert "There is no backup.location" in node.backup("list", code=2)


@pytest.mark.parametrize("url", ["hdfs"], indirect=True)
def test_a_sweep_deletes_half_files_of_hdfs(tmp_path: Path, url: str) -> None:
    write_backup(tmp_path / "node", url, "kept", {0: [(b"k", b"v")]})
    location, hdfs = BackupLocation(url, "app"), WebHdfs(url)
    half = [f"app/files/{'0' * 64}.part-0123abcd", "app/backups/000000002/a.json.part-0123abcd"]

    def paths() -> set[str]:
        return {each["path"] for page in hdfs.list("app") for each in page}

    whole = paths()
    assert len(whole) > 1, "a manifest and files"
    for name in half:
        hdfs.put(name, b"half")
    sweep(location, 1_000, 1)
    assert paths() == whole | {*half}, "somebody may just write them"
    assert sweep(location, 1_000, 1, left_alone_s=-60).files == 1
    assert paths() == whole


def _node(location: BackupLocation) -> str:
    return location.manifests()[0][1]
