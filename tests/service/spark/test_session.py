"""The settings that sessions start with, and the class archive that makes them start quicker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from stateline.cli.main import explained
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.pipelines.status import read_status
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.spark import connector
from stateline.spark.connector import require_connector
from stateline.spark.drivers.class_archive import is_current, recording_class_archive
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.session import default_class_archive, is_local, local_python, session_settings, spark_session
from stateline_store import ConfigurationError
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

_COORDINATES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.example:more:1"


@pytest.fixture(autouse=True)
def no_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def configured(state: Path, *settings: str) -> Config:
    return load_config("flights", environment={}, overrides=[f"state.dir={state}", *settings])


def test_jars_come_from_a_folder_or_by_their_maven_coordinates(tmp_path: Path) -> None:
    (tmp_path / "b.jar").touch()
    (tmp_path / "a.jar").touch()
    (tmp_path / "readme.txt").touch()
    by_folder = session_settings(configured(tmp_path, f"spark.jars={tmp_path}"))
    assert by_folder["spark.jars"] == f"{tmp_path}/a.jar,{tmp_path}/b.jar"
    assert "spark.jars.packages" not in by_folder
    by_name = session_settings(configured(tmp_path, f"spark.jars={_COORDINATES}"))
    assert by_name["spark.jars.packages"] == _COORDINATES
    assert "spark.jars" not in by_name


@pytest.mark.parametrize(
    ("environment", "settings", "named"),
    [
        ({"SPARK_REMOTE": "sc://localhost"}, [], "SPARK_REMOTE"),
        ({"SPARK_API_MODE": "connect"}, [], "spark.api.mode=connect"),
        ({"SPARK_CONNECT_MODE": "1"}, [], "spark.api.mode=connect"),
        ({}, ["spark.remote=local"], "spark.remote"),
        ({}, ["spark.api.mode=connect"], "spark.api.mode=connect"),
    ],
)
def test_spark_connect_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], settings: list[str], named: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=rf"classic session, but {named}.* selects Spark Connect. Unset it"):
        spark_session(configured(tmp_path, *settings))


def jar(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "some.jar", "w") as archive:
        for name in names:
            archive.writestr(name, "")


def test_sparks_own_processes_on_this_machine_take_the_installed_pyspark_not_the_zip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Modules from a zip are compiled anew by each process."""
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)  # the JVM that hands the variable on is not there yet
    monkeypatch.delenv("_STATELINE_LOCAL_PYTHON", raising=False)
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    as_spark_does = f"{zips}/pyspark.zip:{next(zips.glob('py4j-*-src.zip'))}:"
    found = subprocess.run(
        [local_python(), "-c", "import pyspark; print(pyspark.__file__)"],
        env=os.environ | {"PYTHONPATH": as_spark_does}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == pyspark.__file__


_USED_SPARK_BEFORE = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate().stop()
from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session
session = spark_session(load_config("flights", environment={}, overrides=[f"state.dir={sys.argv[1]}"]))
print(session.sparkContext.parallelize([1, 2], 1).map(lambda n: n + 1).collect())
close_session(session)
"""


@long_only("spark-submit starts the JVM first, too")
def test_a_process_that_has_a_jvm_already_runs_pipelines_in_it(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _USED_SPARK_BEFORE, str(tmp_path)], env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=HANGING_S, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[2, 3]", done.stderr[-2000:]


CONNECTOR = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"


def test_the_connector_is_found_by_default_in_the_environments_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(sys.prefix) / "share/stateline/spark-jars" == connector.JARS
    monkeypatch.setattr(connector, "JARS", tmp_path / "jars")
    config, log = configured(tmp_path), KafkaLog("127.0.0.1:1")
    assert "spark.jars" not in session_settings(config), "there is no such folder"
    jar(tmp_path / "jars", CONNECTOR)
    require_connector(config, log)
    assert session_settings(config)["spark.jars"] == str(tmp_path / "jars" / "some.jar")


def test_the_jars_that_the_pom_fetches_have_the_connector(connector_jars: Path | None, tmp_path: Path) -> None:
    if connector_jars is None:
        pytest.skip("Spark's Kafka connector cannot be fetched here")
    require_connector(configured(tmp_path, f"spark.jars={connector_jars}"), KafkaLog("127.0.0.1:1"))


def test_a_pipeline_on_kafka_without_the_connector_says_what_fetches_it_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # Spark's start would be refused for another reason
    monkeypatch.setattr(connector, "JARS", tmp_path / "jars of mine")
    app = App("flights")
    app.pipeline(reads="in", writes="out", key="k", name="counts")(lambda rows: rows)
    with pytest.raises(ConfigurationError, match="no Kafka connector") as raised:
        run_pipelines(
            app, ["counts"], configured(tmp_path), KafkaLog("127.0.0.1:1")
        )  # which nobody answers, and nobody asks
    line = re.search(r"(mvn .*?) \(or", str(raised.value))
    assert line
    command = shlex.split(line[1])
    assert Path(command[command.index("-f") + 1]).read_text().count("spark-sql-kafka") == 1
    assert command[-1] == f"-DoutputDirectory={tmp_path / 'jars of mine'}"
    assert f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}" in str(raised.value)
    assert explained(raised.value)[1] == 2
    status = read_status(tmp_path / "flights" / "pipelines" / "counts")
    assert status is not None
    assert status.state == "failed"


@pytest.mark.parametrize(
    "setting",
    ["spark.jars=org.example:mine:1", "spark.jars.packages=org.example:mine:1", "spark.driver.extraClassPath=/jars/*"],
)
def test_where_spark_may_have_the_connector_from_elsewhere_it_is_left_to_spark(tmp_path: Path, setting: str) -> None:
    require_connector(configured(tmp_path, setting), KafkaLog("127.0.0.1:1"))


def test_a_folder_of_other_jars_alone_has_no_connector_and_the_embedded_log_needs_none(tmp_path: Path) -> None:
    jar(tmp_path / "others", "mine/Udf.class")
    (tmp_path / "others" / "broken.jar").touch()
    config = configured(tmp_path, f"spark.jars={tmp_path / 'others'}")
    with pytest.raises(ConfigurationError, match=rf"no jar in {tmp_path}/others has it"):
        require_connector(config, KafkaLog("127.0.0.1:1"))
    require_connector(config, EmbeddedLog(tmp_path / "log.db"))


def test_a_folder_without_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no \*\.jar in it"):
        session_settings(configured(tmp_path, f"spark.jars={tmp_path}"))


@pytest.mark.parametrize(("master", "local"), [
    ("local", True), ("local[2]", True), ("local[*,4]", True), ("local-cluster[2,1,512]", False),
    ("spark://localhost:7077", False), ("yarn", False), ("k8s://https://local", False),
])  # fmt: skip
def test_only_a_master_of_this_jvm_keeps_addresses_and_checkpoints_to_this_machine(
    tmp_path: Path, master: str, local: bool
) -> None:
    settings = session_settings(configured(tmp_path, f"spark.master={master}"))
    assert is_local(master) == local
    assert (settings.get("spark.driver.host") == "127.0.0.1") == local
    assert ("spark.sql.streaming.checkpointFileManagerClass" in settings) == local


def test_python_processes_of_a_busy_machine_have_two_minutes_to_connect(session: SparkSession) -> None:
    allowed = session.sparkContext.parallelize([0], 1).map(lambda _: os.environ["SPARK_AUTH_SOCKET_TIMEOUT"]).first()
    assert (allowed, os.environ["SPARK_AUTH_SOCKET_TIMEOUT"]) == ("120", "120")


def test_what_the_configuration_passes_on_wins(tmp_path: Path) -> None:
    given = ("spark.driver.memory=3g", "spark.scheduler.mode=FIFO", "spark.driver.extraJavaOptions=-Dmine=1")
    settings = session_settings(configured(tmp_path, *given))
    assert (settings["spark.driver.memory"], settings["spark.scheduler.mode"]) == ("3g", "FIFO")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dmine=1"), "added to those that there are"
    assert "-Xss8m" in settings["spark.driver.extraJavaOptions"]


def test_an_archive_older_than_java_or_spark_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive.jsa"
    assert not is_current(archive)
    archive.touch()
    assert is_current(archive)
    later = tmp_path / "bin" / "java"
    later.parent.mkdir()
    while not later.exists() or later.stat().st_ctime <= archive.stat().st_ctime:
        later.write_text("#!/bin/sh\n")
        later.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not is_current(archive)


def recorders(state: Path) -> list[int]:
    """Processes that record an archive for this state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(state).encode() in command:
                found.append(int(entry.name))
    return found


def test_recording_is_given_up_when_the_driver_stops(tmp_path: Path) -> None:
    config = configured(tmp_path)
    began_s = time.monotonic()
    with recording_class_archive(config, delay_s=0.0):
        while len(recorders(tmp_path)) < 2:  # Python, and the JVM that it starts
            assert time.monotonic() < began_s + HANGING_S
            time.sleep(0.01)
    wait_until(lambda: recorders(tmp_path) == [])  # the JVM is killed: at its priority it may take its time to go
    assert not default_class_archive(config).exists()


_IS_STOPPED_WHILE_IT_LOOKS_AT_ITS_JVM = """
import os, signal, subprocess, sys
from stateline.spark.drivers import class_archive
signal.signal(signal.SIGTERM, class_archive._stop)
starting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "spark-submit"])
print(starting.pid, flush=True)
with starting._waitpid_lock:
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_recorder_ends_wherever_it_is_told_to_stop() -> None:
    command = [sys.executable, "-c", _IS_STOPPED_WHILE_IT_LOOKS_AT_ITS_JVM]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANGING_S, check=False)
    assert done.returncode == 1
    said = Path(f"/proc/{done.stdout.strip()}/cmdline")

    def is_gone() -> bool:
        try:
            return said.read_bytes() == b""  # a zombie
        except OSError:
            return True

    wait_until(is_gone)


def test_a_driver_that_stops_at_once_begins_nothing(tmp_path: Path) -> None:
    with recording_class_archive(configured(tmp_path), delay_s=HANGING_S):
        assert any(thread.name == "class-archive" for thread in threading.enumerate())
    assert not any(thread.name == "class-archive" for thread in threading.enumerate())
    assert recorders(tmp_path) == []


def test_an_archive_that_fits_is_not_recorded_again(tmp_path: Path) -> None:
    config = configured(tmp_path)
    default_class_archive(config).parent.mkdir()
    default_class_archive(config).touch()
    with recording_class_archive(config, delay_s=0.0):
        assert not any(thread.name == "class-archive" for thread in threading.enumerate())


def test_the_script_for_spark_submit_says_where_it_is() -> None:
    command = [sys.executable, "-m", "stateline.spark.submit", "--path"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout.strip()
    assert Path(said).name == "submit.py"
    assert Path(said).is_file()
