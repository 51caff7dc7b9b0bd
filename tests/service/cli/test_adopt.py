"""`stateline adopt`: what it prints, and its exit codes. `tests/conformance` adopts what Java has written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stateline.cli.main import main
from stateline.log import open_log
from stateline_store import (
    CommitNotice,
    IsolationLevel,
    NotPresentError,
    Position,
    SecondaryReader,
    StateDirectory,
    StoreContext,
    StoreState,
    TimestampedKeyValueStore,
)
from stateline_store.files.directory import holds_database
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import NO_HEADERS
from stateline_store.scan import EVERY_KEY
from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.running_worker import create, eventually, produce
from support.run.patience import HANGING_S

APP = """
from stateline import App, serdes, stores
app = App("adopting", config={"bootstrap.servers": "embedded"})
for name in ("counts", "noted"):
    definition = stores.timestamped_key_value(name, key=serdes.string, value=serdes.string)
    app.external_store(definition, of="java")
"""
OWN = """
from stateline import App, serdes
app = App("java", config={{"bootstrap.servers": "{servers}"}})
app.stream("{topic}", key=serdes.string, value=serdes.string).group_by_key().count("counts")
"""
JAVA_POSITION = Position({"in": {0: 4}, "lines": {0: 7, 1: 9}})
LOCKS = "import fcntl, sys; fcntl.lockf(file := open(sys.argv[1], 'r+'), fcntl.LOCK_EX); print(1, flush=True); input()"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stores of an application `java`, one of them with headers. Their changelogs have a record each."""
    (tmp_path / "adopting.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    with closing(open_log("embedded", tmp_path / ".stateline")) as log:
        create(log, {"java-counts-changelog": 1, "java-noted-changelog": 1})
        produce(log, "java-counts-changelog", [(b"a", b"1", 5)])
        produce(log, "java-noted-changelog", [(b"a", b"1", 5)])
    directory = tmp_path / "kafka-streams" / "java"
    for name, family in (("counts", "keyValueWithTimestamp"), ("noted", "keyValueWithTimestampAndHeaders")):
        path = directory / "0_0" / "rocksdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        families = {each: Options(raw_mode=True) for each in ("default", family, "offsets")}
        with closing(Rdict(str(path), options, column_families=families)) as db:
            rows = {
                family: {b"a": (NO_HEADERS if family.endswith("Headers") else b"") + struct.pack(">q", 5) + b"1"},
                "offsets": {f"java-{name}-changelog-0".encode(): bytes(8), b"position": JAVA_POSITION.encode()},
            }
            for each, content in rows.items():
                with closing(db.get_column_family(each)) as opened:
                    for key, value in content.items():
                        opened[key] = value
    (directory / ".lock").touch()
    return directory


def test_it_lists_what_it_adopts_and_says_of_each_other_store_why_not(
    java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", "adopting:app", "--from", str(java.parent), "--json"]) == 1
    said = capsys.readouterr()
    counts, noted = json.loads(said.out)
    assert (counts["store"], counts["outcome"], counts["rows"], counts["offset"]) == ("counts", "adopted", 1, 0)
    assert (noted["store"], noted["outcome"], noted["rows"]) == ("noted", "refused", None)
    assert (
        "Refused: store noted of task 0_0. Its rows are with headers in Java, and declared with timestamps here"
        in said.err
    )
    assert main(["inspect", ".stateline", "--store", "counts"]) == 0
    assert "counts" in capsys.readouterr().out


def test_of_several_instances_it_adopts_the_usable_copy_with_the_highest_offset(
    java: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_log("embedded", tmp_path / ".stateline")) as log:
        produce(log, "java-counts-changelog", [(b"a", b"2", 6), (b"a", b"3", 7)])
    instances = [java.parent]
    for offset, status in ((1, 0), (2, 1)):  # the last one is marked as open
        instances.append(tmp_path / f"instance-{offset}")
        shutil.copytree(java.parent, instances[-1])
        families = {each: Options(raw_mode=True) for each in ("default", "keyValueWithTimestamp", "offsets")}
        path = str(instances[-1] / "java/0_0/rocksdb/counts")
        with closing(Rdict(path, Options(raw_mode=True), column_families=families)) as db:
            with closing(db.get_column_family("offsets")) as offsets:
                offsets[b"java-counts-changelog-0"] = struct.pack(">q", offset)
                offsets[b"status"] = struct.pack(">q", status)
            with closing(db.get_column_family("keyValueWithTimestamp")) as rows:
                rows[b"a"] = struct.pack(">q", 5 + offset) + b"%d" % (1 + offset)
    command = ["adopt", "adopting:app", *(word for each in instances for word in ("--from", str(each)))]
    for outcome in ("adopted", "exists"):
        assert main([*command, "--json"]) == 1  # of the store with headers
        said = capsys.readouterr()
        counts, _ = json.loads(said.out)
        assert (counts["store"], counts["outcome"], counts["offset"]) == ("counts", outcome, 1)
        assert f"Not taken: store counts in {instances[0]}/java/0_0. It has offset 0, and another copy has" in said.err
        assert f"Not taken: store counts in {instances[2]}/java/0_0. It was open when" in said.err
    with OfflineStore(StateDirectory(Path(".stateline"), "adopting").store("0_0", "counts", timestamped=True)) as store:
        with store.scan(EVERY_KEY) as scan:
            assert dict(scan) == {b"a": struct.pack(">q", 6) + b"2"}
        assert list(store.commit.offsets.values()) == [1]
    assert main([*command, "--from", "nowhere"]) == 2
    assert "nowhere: there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["rows-written", "rows-moved", "database-made", "database-moved"])
def test_after_a_kill_at_any_step_no_store_is_half_made_and_adopting_again_finishes(
    step: str, java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("adopting.py").write_text(APP.replace("serdes.string)", "serdes.string, headers=name == 'noted')"))
    sys.modules.pop("adopting", None)  # another test's
    command = ["adopt", "adopting:app", "--from", str(java.parent)]
    for number, done in ((1, 0), (2, 1)):  # the second run skips the store that the first one completed
        environment = {**os.environ, "STATELINE_CRASH_AT": f"adopt:{step}#{number if step != 'database-moved' else 1}"}
        with Path("output.txt").open("ab") as output:
            code = Forked(command, cwd=Path.cwd(), env=environment, output=output.fileno()).wait(HANGING_S)
        assert code == -signal.SIGKILL, Path("output.txt").read_text()
        assert len(adopted_rows()) == (number if step == "database-moved" else done)
    assert main([*command, "--json"]) == 0
    outcomes = [each["outcome"] for each in json.loads(capsys.readouterr().out)]
    assert outcomes == (["exists", "exists"] if step == "database-moved" else ["exists", "adopted"])
    row = struct.pack(">q", 5) + b"1"
    assert adopted_rows() == {"counts": {b"a": row}, "noted": {b"a": row[:8] + NO_HEADERS + row[8:]}}
    assert not list(Path(".stateline/adopting").rglob(".deleted-*"))
    sys.modules.pop("adopting", None)


@pytest.fixture
def own(kafka_broker: SharedBroker, java: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StateDirectory]:
    """Adopts the store `counts` for an application that takes Java's place, and counts the records of this topic."""

    def adopted(topic: str) -> StateDirectory:
        text = OWN.format(servers=kafka_broker.bootstrap_servers, topic=topic)
        Path("own_counts.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_counts", raising=False)
        command = ["adopt", "own_counts:app", "--from", str(java.parent)]
        eventually(lambda: main(command) == 0, "the broker's group coordinator answers")
        return StateDirectory(Path(".stateline"), "java")

    with closing(open_log(kafka_broker.bootstrap_servers, Path())) as log:
        create(log, {"java-counts-changelog": 1})
        produce(log, "java-counts-changelog", [(b"a", b"1", 5)])
    return adopted


@pytest.mark.parametrize(("topic", "position"), [("lines", {"lines": {0: 7}}), ("others", {})])
def test_an_adopted_store_has_the_position_of_its_own_input_in_its_own_partition(
    topic: str, position: dict[str, dict[int, int]], own: Callable[[str], StateDirectory]
) -> None:
    with OfflineStore(own(topic).store("0_0", "counts", timestamped=True)) as store:
        assert store.commit.position == Position(position)


def test_an_adopted_external_store_has_the_position_of_its_changelog(java: Path) -> None:
    assert main(["adopt", "adopting:app", "--from", str(java.parent)]) == 1
    with OfflineStore(StateDirectory(Path(".stateline"), "adopting").store("0_0", "counts", timestamped=True)) as store:
        assert store.commit.position == Position({"java-counts-changelog": {0: 0}})


def test_a_store_whose_database_was_deleted_is_adopted_without_its_old_notice_and_position(
    own: Callable[[str], StateDirectory],
) -> None:
    directory = StateDirectory(Path(".stateline"), "java")
    path, notice_path = (each("0_0", "counts", timestamped=True) for each in (directory.store, directory.notice))
    notice_path.parent.mkdir(parents=True)
    with closing(CommitNotice(notice_path)) as notice:
        notice.open(99, 1)
        notice.publish_state(StoreState.RESTORING, 12)
    (directory.task("0_0") / "counts.position").write_text("0\n1\nothers 0 99\n")
    own("others")
    with pytest.raises(NotPresentError):
        SecondaryReader(path, notice_path, Path("scratch"))
    with closing(TimestampedKeyValueStore("counts")) as store:
        store.init(StoreContext("0_0", directory.task("0_0")))
        assert store.position(IsolationLevel.READ_COMMITTED) == Position()
        with closing(CommitNotice(notice_path)) as notice:
            assert notice.restore_remaining == 0


def adopted_rows() -> dict[str, dict[bytes, bytes]]:
    """The rows of the stores that a worker would open."""
    directory, found = StateDirectory(Path(".stateline"), "adopting"), {}
    for task, name in (("0_0", "counts"), ("1_0", "noted")):
        if holds_database(path := directory.store(task, name, timestamped=True)):
            with OfflineStore(path) as store, store.scan(EVERY_KEY) as scan:
                assert list(store.commit.offsets.values()) == [0]
                found[name] = dict(scan)
    return found


def test_a_table_that_java_keeps_in_a_changelog_of_its_own_is_refused_with_that_reason(
    java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("moved.py").write_text(
        "from stateline import App, serdes\n"
        'app = App("java", config={"bootstrap.servers": "embedded"})\n'
        'app.table(app.topic("words", key=serdes.string, value=serdes.string), store="counts")\n'
    )
    with closing(open_log("embedded", Path(".stateline"))) as log:
        create(log, {"words": 1})
        produce(log, "words", [(b"a", b"1", 5)])
    assert main(["adopt", "moved:app", "--from", str(java.parent)]) == 1
    why = "Java keeps it in java-counts-changelog, because its topology is not optimized, and this table is read from"
    assert f"{why} words" in capsys.readouterr().err


def test_it_takes_the_directory_of_the_application_itself(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "adopting:app", "--from", str(java), "--dry-run"]) == 1
    assert "would be adopted" in capsys.readouterr().out
    assert not Path(".stateline/adopting/0_0").exists()


def test_it_refuses_a_directory_that_a_process_has_locked(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(java / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    held.stdout.readline()
    try:
        assert main(["adopt", "adopting:app", "--from", str(java.parent)]) == 1
    finally:
        held.communicate(b"\n")
    assert f"is in use by process {held.pid}" in capsys.readouterr().err


@pytest.mark.parametrize(("source", "why"), [("nowhere", "no such directory"), (".", "it has no tasks of java")])
def test_it_refuses_a_directory_without_stores_of_the_application(
    source: str, why: str, java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", "adopting:app", "--from", source]) == 2
    assert why in capsys.readouterr().err
    assert main(["adopt", "adopting:app", "--from", ".stateline"]) == 2
    assert "own state.dir" in capsys.readouterr().err
