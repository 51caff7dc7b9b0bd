"""The command line: its pure parts here, the real console script as a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.exceptions import TyperException

from stateline.cli.loading import load_app
from stateline.cli.main import Flags, explained, split_flags
from stateline.cli.table import Row, as_text
from stateline.cli.topics.listing import missing_of_the_users, topic_roles, topic_rows
from stateline.config.loading import load_config
from stateline.log import open_log
from stateline.log.interface import TopicInfo
from stateline.processes.application import application_children, chosen_pipelines, only_run, pipeline_children
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    KeyValueStore,
    Position,
    RecordError,
    RetryLaterError,
    StateDirectory,
    StoreContext,
    TopicPartition,
)
from support.processes import forked
from support.run.length import long_only
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")
APPLICATION = """
from stateline import serdes, stores
from stateline.dsl.app import App

app = App("flights", config={"commit.interval.ms": 200})
departures = app.topic("departures", key=serdes.string, value=serdes.json)
aircraft = app.table("aircraft", key=serdes.string, value=serdes.json)
hops = app.store(stores.key_value("hops", key=serdes.string, value=serdes.int64))
by_origin = app.repartition("by-origin", key=serdes.string, value=serdes.json)
alarms = app.topic("alarms", key=serdes.string, value=serdes.json)

@app.process(departures, stores=[hops], forwards=[by_origin, alarms])
def update(record, hops, by_origin, alarms):
    pass

@app.pipeline(reads="departures", writes="delays", key="origin")
def slow(departures):
    return departures

@app.pipeline(reads="departures", writes="speeds", key="origin")
def fast(departures):
    return departures
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that holds the application above, as `flights_of_the_cli_tests:app`."""
    (tmp_path / "flights_of_the_cli_tests.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


TARGET = "flights_of_the_cli_tests:app"


def stateline(*arguments: str, standard_input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """What the command does, as a process; that the script starts it is shown by those that call `SCRIPT`."""
    return forked.run(arguments, env={**os.environ, **environment}, typed=standard_input)


def refused(*arguments: str, code: int = 2) -> str:
    """What a failing command says: one line on standard error, nothing on standard output."""
    done = stateline(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


# Pure parts


@pytest.mark.parametrize(
    ("given", "flags", "rest"),
    [
        (["run", "a:b"], Flags(), ["run", "a:b"]),
        (["-v", "run", "a:b", "-v"], Flags(verbosity=2), ["run", "a:b"]),
        (["run", "--quiet", "a:b", "--traceback"], Flags(-1, True), ["run", "a:b"]),
        (["run", "--", "-v", "--traceback"], Flags(), ["run", "--", "-v", "--traceback"]),
    ],
)
def test_general_flags_may_stand_anywhere(given: Sequence[str], flags: Flags, rest: Sequence[str]) -> None:
    assert split_flags(given) == (flags, rest)


def test_the_callers_mistake_exits_with_2_and_anything_else_with_1() -> None:
    assert explained(DoesNotExistError("no such store")) == ("no such store", 2)
    assert explained(TyperException("no such option")) == ("no such option.", 2)
    assert explained(DamagedDataError("damaged")) == ("damaged", 1)
    message, code = explained(ZeroDivisionError("division by\nzero"))
    assert message == "ZeroDivisionError: division by zero. Run again with --traceback to see where."
    assert code == 1


def test_a_path_that_is_closed_to_this_user_is_named_and_the_callers_mistake() -> None:
    message, code = explained(PermissionError(13, "Permission denied", "/state/app/0_0"))
    assert message.startswith("/state/app/0_0: Permission denied. Run as its owner")
    assert code == 2
    wrapped = RetryLaterError("/state cannot be created")
    wrapped.__cause__ = PermissionError(13, "Permission denied", "/state")
    assert explained(wrapped) == ("/state cannot be created", 2)


def test_a_record_that_cannot_be_processed_may_be_retried() -> None:
    assert explained(RecordError("departures-0 at 7"))[1] == 1


def test_an_application_is_its_pipelines_its_workers_and_a_server(project: Path) -> None:
    app = load_app(TARGET)
    config = load_config("flights", overrides=["num.workers=2", "group.instance.id=here"])
    children = application_children(app, config, TARGET, ["--set", "num.workers=2"])
    assert [child.name for child in children] == ["slow", "fast", "worker-0", "worker-1", "server", "scans-0"]
    program = (sys.executable, "-m", "stateline")
    settings = ("--set", "num.workers=2")
    assert children[0].command == (*program, "pipeline", TARGET, "slow", *settings)
    static = ("--set", "group.instance.id=here-1")
    assert children[3].command == (*program, "worker", TARGET, "--instance", "worker-1", *settings, *static)
    assert children[4].command == (*program, "serve", TARGET, *settings)
    assert children[5].command == (*program, "serve", TARGET, *settings, "--scans")


def test_several_server_processes_start_their_scan_processes_themselves(project: Path) -> None:
    config = load_config("flights", overrides=["server.processes=2", "pipeline.node=none", "node.name=one"])
    assert [child.name for child in application_children(load_app(TARGET), config, TARGET, [])] == [
        "worker-0",
        "server",
    ]


def test_a_node_that_is_not_the_pipelines_starts_none_of_them(project: Path) -> None:
    app = load_app(TARGET)
    for node, names in {
        "one": ["slow", "fast", "worker-0", "server", "scans-0"],
        "two": ["worker-0", "server", "scans-0"],
    }.items():
        config = load_config("flights", overrides=["pipeline.node=one", f"node.name={node}"])
        assert [child.name for child in application_children(app, config, TARGET, [])] == names


def test_workers_stop_after_what_feeds_and_asks_them(project: Path) -> None:
    children = application_children(load_app(TARGET), load_config("flights"), TARGET, [])
    first = {child.name for child in children if child.stop_order == 0}
    assert first == {"slow", "fast", "server", "scans-0"}


def test_several_pipelines_may_share_a_driver(project: Path) -> None:
    config = load_config("flights", overrides=["pipeline.drivers=one"])
    settings = ("--set", "pipeline.drivers=one")
    children = application_children(load_app(TARGET), config, TARGET, settings)
    assert [child.name for child in children] == ["pipelines", "worker-0", "server", "scans-0"]
    program = (sys.executable, "-m", "stateline")
    assert children[0].command == (*program, "pipeline", TARGET, "slow", "fast", *settings)
    assert [child.name for child in children if child.fails_alone] == ["pipelines", "scans-0"]


def test_a_single_pipeline_has_its_own_name_whatever_shares_a_driver(project: Path) -> None:
    config = load_config("flights", overrides=["pipeline.drivers=one"])
    (child,) = pipeline_children(config, ["fast"], TARGET, [])
    assert child.name == "fast"


def test_pipelines_are_chosen_by_name_or_all(project: Path) -> None:
    app = load_app(TARGET)
    assert chosen_pipelines(app, []) == ["slow", "fast"]
    assert chosen_pipelines(app, ["fast", "fast"]) == ["fast"]
    with pytest.raises(DoesNotExistError, match="There is no pipeline 'fest': the App declares slow, fast"):
        chosen_pipelines(app, ["fest"])


def test_every_topic_has_a_role(project: Path) -> None:
    assert topic_roles(load_app(TARGET).topology(), "bad-records") == {
        "departures": "source",
        "aircraft": "source",
        "alarms": "output",
        "bad-records": "dead letter",
        "delays": "result",
        "speeds": "result",
        "flights-by-origin-repartition": "repartition",
        "flights-hops-changelog": "changelog",
    }


def test_only_the_users_topics_can_be_missing() -> None:
    roles = {"a": "source", "b": "source", "c": "changelog"}
    existing = {"a": TopicInfo("a", 3, "id")}
    assert missing_of_the_users(roles, existing) == ["b"]
    assert [tuple(row.values()) for row in topic_rows(roles, existing, {"a": 12})] == [
        ("a", "source", 3, 12, "exists"),
        ("b", "source", None, None, "MISSING: create it"),
        ("c", "changelog", None, None, "created at the first start"),
    ]


def test_a_table_is_aligned_and_says_nothing_as_a_dash() -> None:
    rows: list[Row] = [
        {"name": "long name", "n": 1_234_567, "on": True, "secret": 1},
        {"name": "b", "n": None, "on": False, "secret": 2},
    ]
    assert as_text(rows, as_json=False, hide=["secret"]) == (
        "name       n          on\nlong name  1,234,567  yes\nb          -          no"
    )
    assert json.loads(as_text(rows, as_json=True, hide=["secret"])) == rows
    assert as_text([], as_json=False) == "none"


# The console script


def test_help_teaches_every_command_with_an_example() -> None:
    shown = stateline("--help").stdout
    commands = [line.split()[0] for line in shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert commands == [
        "new",
        "run",
        "worker",
        "serve",
        "pipeline",
        "check",
        "topics",
        "produce",
        "consume",
        "stores",
        "sql",
        "config",
        "inspect",
        "snapshot",
        "export",
        "reset",
        "status",
        "adopt",
        "backup",
        "token",
        "node",
        "certificates",
    ]
    assert "..." not in shown.partition("Commands:")[2], "a summary was cut"
    for command in commands:
        text = stateline(command, "--help").stdout
        assert f"Example: stateline {command} " in text, command
        assert "list[" not in text, command
        assert "<str>" not in text, command


@pytest.mark.parametrize(
    ("script", "heavy"),
    [
        (
            "from stateline.cli import main; main(['worker', '--help'])",
            "pyspark confluent_kafka fastapi uvicorn pyarrow",
        ),
        (
            "import stateline.server.processes",
            "pyarrow numpy httpx rich pyspark stateline.log.embedded stateline.log.kafka",
        ),
        ("import stateline.worker.loop.run", "pyarrow numpy httpx fastapi rich pyspark"),
        ("import stateline.client.lean.snapshot_rows", "httpx pydantic orjson pyarrow rocksdict"),
        ("import stateline.spark.reading.snapshot_reader", "httpx pydantic pyarrow confluent_kafka rocksdict"),
        ("import stateline.client; stateline.client.Client", "pyarrow numpy confluent_kafka fastapi pyspark"),
    ],
)
def test_nothing_loads_a_heavy_library_before_it_is_needed(script: str, heavy: str) -> None:
    done = [sys.executable, "-c", f"import sys; {script}; print(sorted(sys.modules))"]
    modules = subprocess.run(done, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert [name for name in heavy.split() if f"'{name}'" in modules] == []


def test_no_command_shows_the_help() -> None:
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    done = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"stateline {version('stateline')}\n"


def test_mistakes_are_one_line_and_exit_code_2(project: Path) -> None:
    assert "No such command 'fly'. Try 'stateline --help'." in refused("fly")
    assert "No such option: --xyz (Possible options: --yes). Try 'stateline topics --help'." in refused(
        "topics", "--xyz"
    )
    assert "There is no module 'trains'" in refused("worker", "trains:app")
    refusal = refused("run", TARGET, "--set", "num.workers=0")
    assert refusal == "error: num.workers = '0' (from --set) is not allowed: use a whole number from 1 to 2147483647.\n"
    assert "there is no file conf.toml" in refused("stores", TARGET, "--config", "conf.toml")
    assert "There is no pipeline 'x'" in refused("pipeline", TARGET, "x")


def test_a_traceback_is_shown_only_when_asked_for(project: Path) -> None:
    (project / "broken.py").write_text("raise RuntimeError('my own words')\n")
    assert refused("stores", "broken:app").endswith("RuntimeError: my own words (broken.py, line 1)\n")
    for done in (
        stateline("stores", "broken:app", "--traceback"),
        stateline("stores", "broken:app", STATELINE_TRACEBACK="1"),
    ):
        assert done.returncode == 2
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.endswith("RuntimeError: my own words (broken.py, line 1)\n")


def test_topics_lists_what_is_missing_and_creates_it(project: Path) -> None:
    before = json.loads(stateline("topics", TARGET, "--json").stdout)
    assert {row["topic"] for row in before if row["state"].startswith("MISSING")} == {
        "departures",
        "aircraft",
        "alarms",
    }
    created = json.loads(stateline("topics", TARGET, "--create", "--partitions", "3", "--json").stdout)
    assert {row["topic"]: row["partitions"] for row in created if row["state"] == "created"} == {
        "departures": 3,
        "aircraft": 3,
        "alarms": 3,
    }
    assert "exists" not in {row["state"] for row in created}
    assert stateline("topics", TARGET, "--delete", "alarms", "--yes").returncode == 0
    again = json.loads(stateline("topics", TARGET, "--create", "--json").stdout)
    states = {row["topic"]: row["state"] for row in again if row["partitions"] is not None}
    assert states == {"departures": "exists", "aircraft": "exists", "alarms": "created"}
    table = stateline("topics", TARGET).stdout
    assert table.splitlines()[0].split() == ["topic", "role", "partitions", "offsets", "state"]
    assert "flights-hops-changelog         changelog" in table


def test_topics_are_deleted_by_name_and_no_others_than_the_applications(project: Path) -> None:
    assert "It has none." in refused("topics", TARGET, "--delete", "alarms")  # there is no log yet
    assert stateline("topics", TARGET, "--create").returncode == 0
    said = refused("topics", TARGET, "--delete", "alarms", "--delete", "nowhere")
    assert "'nowhere': the application has no such topic. It has aircraft, alarms, departures." in said
    assert "Delete them?" in (asked := stateline("topics", TARGET, "--delete", "alarms").stderr)
    assert "delete the output topic alarms: 4 partitions, 0 records at most" in asked
    assert "give --yes where nobody can be asked" in asked
    assert stateline("topics", TARGET, "--delete", "alarms", standard_input="n\n").returncode == 1
    deleted = json.loads(stateline("topics", TARGET, "--delete", "alarms", "--json", "--yes").stdout)
    assert {row["topic"] for row in deleted if row["state"] == "exists"} == {"departures", "aircraft"}


def test_creating_topics_that_have_another_number_of_partitions_is_refused(project: Path) -> None:
    assert stateline("topics", TARGET, "--create", "--partitions", "3").returncode == 0
    said = refused("topics", TARGET, "--create", "--partitions", "5")
    assert "departures has 3" in said
    assert "leave out --partitions" in said
    assert stateline("topics", TARGET, "--create").returncode == 0
    assert stateline("topics", TARGET, "--create", "--partitions", "3").returncode == 0


def test_an_option_that_is_refused_is_shown_as_it_was_given(project: Path) -> None:
    assert "'--partitions'" in (said := refused("topics", TARGET, "--create", "--partitions", "x"))
    assert "(given: 'x')" in said
    assert "(given: '0')" in refused("topics", TARGET, "--partitions", "0")


# root may write everywhere, unless it gives up that right.
AS_A_READER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@pytest.fixture
def closed(project: Path) -> Iterator[Callable[[], None]]:
    """Takes everybody's right to write in the project."""
    if AS_A_READER and shutil.which(AS_A_READER[0]) is None:
        pytest.skip("root without setpriv can write everywhere")

    def close() -> None:
        for path in (*project.rglob("*"), project):
            path.chmod(0o555 if path.is_dir() else 0o444)

    yield close
    for path in (project, *project.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def as_a_reader(*arguments: str) -> Any:
    """What a listing shows, as JSON, to whom may not write; nothing else is said."""
    command = [*AS_A_READER, SCRIPT, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def everything_in(place: Path) -> dict[str, int]:
    return {
        str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if "pycache" not in path.name
    }


def test_listing_needs_no_right_to_write_and_leaves_everything_as_it_is(
    project: Path, closed: Callable[[], None]
) -> None:
    assert stateline("topics", TARGET, "--create").returncode == 0
    directory = StateDirectory(Path(".stateline"), "flights")
    task = str(load_app(TARGET).topology().subtopology_of("hops").task_id(1))
    lock = directory.lock_task(task)
    store = KeyValueStore("hops")
    store.init(StoreContext(task, directory.task(task)))
    store.put(b"a", b"x")
    store.commit({})
    store.close()
    lock.release()
    before = everything_in(project)
    closed()
    topics = {row["topic"]: row["partitions"] for row in as_a_reader("topics", TARGET)}
    assert topics["departures"] == 4
    stores = {row["store"]: row["partitions"] for row in as_a_reader("stores", TARGET)}
    assert stores["hops"]["1"]["approximate_entries"] == 1
    assert everything_in(project) == before


def test_listing_topics_beside_a_writer_sees_what_it_wrote(project: Path) -> None:
    assert stateline("topics", TARGET, "--create").returncode == 0
    log = open_log("embedded", Path(".stateline"))
    producer = log.producer()
    producer.produce("departures", b"a", b"1", timestamp_ms=0)
    producer.flush()
    rows = {row["topic"]: row for row in json.loads(stateline("topics", TARGET, "--count", "--json").stdout)}
    assert (rows["departures"]["offsets"], rows["departures"]["records"]) == (1, 1)
    producer.close()
    log.close()


def test_a_second_run_of_the_same_state_ends_at_once(project: Path) -> None:
    config = load_config("flights", environment={}, overrides=[])
    with only_run(config):
        said = refused("run", TARGET)
        assert f"flights is run in .stateline/flights already (process {os.getpid()})" in said
        assert "num.workers" in said
        assert "--instance" not in said
    with only_run(config):
        pass  # it was let go


@pytest.mark.parametrize("command", ["run", "worker", "serve", "pipeline", "produce"])
def test_a_state_directory_that_cannot_be_made_is_the_callers_mistake(project: Path, command: str) -> None:
    more = ["departures"] if command == "produce" else []
    said = refused(command, TARGET, *more, "--set", "state.dir=/proc/x")
    assert said.startswith("error: state.dir = '/proc/x' (from --set) cannot be used: /proc/x/flights cannot be made (")
    assert "Set another state.dir" in said


def test_stores_reads_beside_an_owner(project: Path) -> None:
    ordinal = load_app(TARGET).topology().subtopology_of("hops").ordinal
    task = f"{ordinal}_1"
    directory = StateDirectory(Path(".stateline"), "flights")
    lock = directory.lock_task(task)
    store = KeyValueStore("hops")
    changelog = TopicPartition("flights-hops-changelog", 1)
    store.init(StoreContext(task, directory.task(task), changelog))
    for number in range(5):
        store.put(b"%d" % number, b"x")
    store.commit({changelog: 4}, position=Position.of({TopicPartition("departures", 1): 41}))
    store.put(b"not committed", b"x")
    rows = {row["store"]: row for row in json.loads(stateline("stores", TARGET, "--json").stdout)}
    assert rows["hops"]["partitions"] == {"1": {"approximate_entries": 5, "position": {"departures": {"1": 41}}}}
    assert rows["hops"]["changelog"] == "flights-hops-changelog"
    assert (rows["aircraft"]["kind"], rows["aircraft"]["partitions"]) == ("timestamped_key_value", {})
    assert '{"departures": {"1": 41}}' in stateline("stores", TARGET).stdout
    store.close()
    lock.release()


def test_listing_creates_nothing(project: Path) -> None:
    done = stateline("stores", TARGET, "--set", "state.dir=none/such")
    assert done.returncode == 0
    assert done.stderr.startswith("There is no state directory none/such/flights: ")
    assert '"state": "MISSING' in stateline("topics", TARGET, "--json").stdout
    assert not Path(".stateline").exists()
    assert not Path("none").exists()


def test_what_is_no_text_is_told_of_its_line_of_standard_input(project: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "produce", TARGET, "aircraft"], input=b"a\t1\n\xff\t1\n", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"error: Line 2, key (string): '\\udcff' cannot be written as UTF-8." in done.stderr


def test_producing_nothing_is_said_and_the_topic_still_looked_at(project: Path) -> None:
    done = stateline("produce", TARGET, "aircraft", standard_input="")
    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert done.stderr == "The input was empty: nothing was written.\n"
    assert "reads no topic 'nosuch'" in refused("produce", TARGET, "nosuch")


@pytest.mark.parametrize("command", ["worker", "topics", "stores", "serve"])
def test_a_state_directory_that_is_a_file_is_the_callers_mistake(project: Path, command: str) -> None:
    Path("file").write_text("")
    said = f"error: state.dir = 'file' (from --set) cannot be used: {project / 'file'} is a file, not a directory."
    assert refused(command, TARGET, "--set", "state.dir=file").startswith(said)


@long_only("a child is told -v as it is told its settings")
def test_saying_more_shows_the_settings_in_children_too(project: Path) -> None:
    lonely = APPLICATION.partition("@app.pipeline")[0]
    Path("lonely_of_the_cli_tests.py").write_text(lonely)
    done = stateline("run", "lonely_of_the_cli_tests:app", "-v", "--set", "server.port=0")
    shown = [line for line in done.stdout.splitlines() if "DEBUG" in line and "server.port = 0 (from --set)" in line]
    assert {line.split(" | ")[0].strip() for line in shown} >= {"worker-0"}


# The command, which waits four seconds for a broker instead of fifteen.
IMPATIENT = """
from stateline.log import kafka_errors
kafka_errors.CALL_TIMEOUT_S = 4.0
import sys
from stateline.cli import main
sys.exit(main())
"""


@long_only("test_kafka.py has what each call says of a broker that is not there")
def test_waiting_for_kafka_is_said_while_it_waits_and_the_same_failure_once(project: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # never listens: connections are refused
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, "produce", TARGET, "aircraft", "--set", f"bootstrap.servers={at}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        with process.stdin as typed:
            typed.write("a\t1\n")
        with process.stderr as said:
            line = said.readline()
            assert f"Waiting for Kafka at {at}" in line
            rest = said.read()
        assert process.wait() == 1
    failures = [line for line in rest.splitlines() if "FAIL" in line]
    assert 0 < len(failures) < 5, rest


def test_config_says_where_each_setting_came_from(project: Path) -> None:
    Path("stateline.toml").write_text("[server]\nport = 8080\n")
    done = stateline(
        "config", TARGET, "--json", "--set", "num.workers=2", STATELINE_PROCESSING_GUARANTEE="EXACTLY_ONCE_V2"
    )
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert rows["server.port"] == ("8080", "stateline.toml")
    assert rows["num.workers"] == ("2", "--set")
    assert rows["commit.interval.ms"] == ("200", "App(config=…)")
    assert rows["processing.guarantee"] == (
        "exactly_once_v2",
        "environment, STATELINE_PROCESSING_GUARANTEE",
    )
    assert rows["default.interactive.query.isolation.level"] == ("read_committed", "default")


def test_run_stops_with_the_workers_words_when_source_topics_are_missing(project: Path) -> None:
    lonely = APPLICATION.partition("@app.pipeline")[0]
    Path("lonely_of_the_cli_tests.py").write_text(lonely)
    done = stateline("run", "lonely_of_the_cli_tests:app", "--set", "server.port=0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: worker-0 cannot run: Missing source topics: ")


def test_run_starts_everything_and_ctrl_c_ends_it_cleanly(project: Path) -> None:
    lonely = APPLICATION.partition("@app.pipeline")[0]
    Path("lonely_of_the_cli_tests.py").write_text(lonely)
    assert stateline("topics", "lonely_of_the_cli_tests:app", "--create").returncode == 0
    process = subprocess.Popen(
        [SCRIPT, "run", "lonely_of_the_cli_tests:app", "--set", "server.port=0"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen: list[str] = []
    while "Answering at " not in (seen or [""])[-1]:
        seen.append(process.stdout.readline())
        assert seen[-1], seen
    address = next(word for word in seen[-1].split() if word.startswith("http://"))
    eventually(lambda: is_ready(address) and Path(".stateline/flights/instances/worker-0.json").exists())
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=HANGING_S)
    assert process.returncode == 0, [*seen, rest]
    stopped = [line.split("| ")[1] for line in rest.splitlines() if " stopped " in line]
    assert stopped == ["server stopped (exit code 0).", "worker-0 stopped (exit code 0)."], [*seen, rest]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGING_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.TransportError:
        return False
