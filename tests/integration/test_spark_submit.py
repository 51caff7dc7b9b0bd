"""A pipeline that `spark-submit` gives to a cluster: a standalone master and workers on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from service.spark import departures as d
from stateline.deployment.pipelines.status import read_status
from stateline.log.embedded import EmbeddedLog
from stateline.spark import submit
from stateline_store.inspection.inspection import lock_holder
from support import TESTS
from support.processes.query_server import OwningWorker, server_process, wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.spark import spark_cluster

_IMPATIENT = ["network.timeout=15s", "network.timeoutInterval=5s", "executor.heartbeatInterval=3s"]

pytestmark = [
    *spark_cluster.RUNS_HERE,
    long_only("test_pipeline_crashes.py has drivers on this machine, and `make test-cluster` has them on a cluster"),
]


class Submitted:
    """A driver that `spark-submit` started, and what it says."""

    def __init__(self, directory: Path, master: str, *arguments: str, conf: Sequence[str] = ()) -> None:
        state = [part for setting in d.settings(str(directory)) for part in ("--set", setting)]
        conf = ["spark.executor.memory=512m", "spark.driver.memory=512m", *conf]
        target = ["service.spark.departures:app", "hourly", *state, *arguments]
        self._log = directory / "driver.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                spark_cluster.submit(Path(submit.__file__), target, master, conf, [str(TESTS)]),
                stdout=log, stderr=subprocess.STDOUT, env=spark_cluster.environment([str(TESTS)]), cwd=directory,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End it and its JVM, if they have not ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Everything until now."""
        return self._log.read_text(errors="replace")

    def wait(self) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(HANGING_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the driver did not end: {self.said()[-3000:]}")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds, which it must while the driver runs."""
        _until(lambda: self.process.poll() is not None or condition(), self.said)
        assert self.process.poll() is None, self.said()[-3000:]


def _until(condition: Callable[[], bool], about: Callable[[], str] | str) -> None:
    deadline_s = time.monotonic() + HANGING_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail((about if isinstance(about, str) else about())[-3000:])
        time.sleep(0.05)


class Cluster:
    """A cluster, and who has worked for it."""

    def __init__(self, master: str, directory: Path, kill: Callable[[], None]) -> None:
        self.master = master
        self.kill = kill
        self._directory = directory
        self._seen: set[Path] = set()

    def executors(self) -> list[str]:
        """The numbers of those that came since the last call; each application has its own from 0 on."""
        found = set(self._directory.glob("work/app-*/*"))
        new, self._seen = found - self._seen, found
        return sorted(path.name for path in new)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as running:
        yield Cluster(running.enter_context(spark_cluster.standalone(directory)), directory, running.close)


Submit = Callable[..., Submitted]


@pytest.fixture
def submit_driver(cluster: Cluster, tmp_path: Path) -> Iterator[Submit]:
    """Submits drivers to the cluster, with these arguments. None outlives its test."""
    started: list[Submitted] = []

    def submitted(*arguments: str, conf: Sequence[str] = ()) -> Submitted:
        started.append(Submitted(tmp_path, cluster.master, *arguments, conf=conf))
        return started[-1]

    yield submitted
    for driver in started:
        driver.kill()


def test_a_submitted_pipeline_that_reads_what_is_there_ends_with_0(
    submit_driver: Submit, cluster: Cluster, tmp_path: Path
) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    d.create_topics(log)
    d.load(log, d.random_departures(300, seed=22))
    driver = submit_driver("--available-now")
    assert driver.wait() == 0, driver.said()[-3000:]
    assert (cluster.executors(), d.counted(log)) == (["0", "1"], 300)
    assert d.written_updates(log) == d.expected_updates(log)
    assert read_status(tmp_path / "flights" / "pipelines" / "hourly") is None


def test_executors_read_a_snapshot_without_the_applications_code(cluster: Cluster, tmp_path: Path) -> None:
    expected = {f"key-{number}": number for number in range(500)}
    job, found = TESTS / "support" / "spark" / "snapshot_job.py", tmp_path / "found.json"
    worker = OwningWorker(tmp_path / "state")
    worker.put_all(expected)
    worker.commit()
    with server_process(tmp_path / "state") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        conf = ["spark.executor.memory=512m", "spark.driver.memory=512m", "spark.cores.max=1"]
        arguments = [str(client.base_url), "aircraft", str(found)]
        done = subprocess.run(
            spark_cluster.submit(job, arguments, cluster.master, conf, []),
            env=spark_cluster.environment([]), cwd=tmp_path,
            capture_output=True, text=True, timeout=HANGING_S, check=False,
        )  # fmt: skip
    worker.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert cluster.executors() == ["0"]
    said = json.loads(found.read_text())
    assert {key: json.loads(value) for key, value in said["rows"].items()} == expected
    assert said["read"] == 500
    assert not said["has_app"]


def test_a_submitted_pipeline_goes_on_after_a_stop(cluster: Cluster, submit_driver: Submit, tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    d.create_topics(log)
    made = d.random_departures(600, seed=21)
    d.load(log, made[:400])
    first = submit_driver()
    first.until(lambda: d.counted(log) == 400)
    first.process.send_signal(signal.SIGTERM)  # which reaches the JVM, and through it Python
    first.wait()
    lock = tmp_path / "flights" / "pipelines" / "hourly" / ".lock"
    _until(lambda: lock_holder(lock) == (False, None), "Python goes when its JVM has gone")
    d.load(log, made[400:])
    submit_driver().until(lambda: d.counted(log) == 600)
    assert cluster.executors() == ["0", "0", "1", "1"], "both workers worked for both drivers"
    assert d.written_updates(log) == d.expected_updates(log)
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}


def test_a_submitted_pipeline_equals_the_oracle_and_ends_by_itself_when_its_master_has_gone(
    cluster: Cluster, submit_driver: Submit, tmp_path: Path
) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    d.create_topics(log)
    made = d.random_departures(400, seed=23)
    d.load(log, made)
    driver = submit_driver(conf=[f"spark.{one}" for one in _IMPATIENT])
    driver.until(lambda: d.counted(log) == 400)
    assert cluster.executors() == [str(number) for number in range(spark_cluster.WORKERS)]
    assert d.written_updates(log) == d.expected_updates(log)
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}
    cluster.kill()  # the last test that needs it
    assert driver.wait() == 1
    assert f"No Spark master of {cluster.master} has answered for" in driver.said()
    status = read_status(tmp_path / "flights" / "pipelines" / "hourly")
    assert status is not None
    assert (status.state, str(status.last_error).partition(" of ")[0]) == ("restarting", "No Spark master")
