"""A pipeline whose checkpoint is on HDFS, on a standalone cluster, from a real broker.

Its drivers, which `spark-submit` starts without the state directory of the one before, are killed at the steps of a
micro-batch; the result topic has what each micro-batch made, once.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.spark.departures import settings
from stateline.dsl.app import App
from stateline.log import open_log
from stateline.spark import session as spark
from stateline.spark import submit
from support import TESTS
from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.kafka.maven import jars
from support.kafka.shared_broker import SharedBroker
from support.oracles.account_ledger import APPLICATION, AccountLedger
from support.processes.query_server import wait_until
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.spark import spark_cluster

STEPS = [
    "sink:computed", "sink:encoded", "sink:begun", "sink:rows-produced", "sink:flushed", "sink:marker-produced",
    "sink:committed",
]  # fmt: skip
_KILLED = 128 + signal.SIGKILL  # what spark-submit makes of it
_POM = Path(spark.__file__).with_name("pom.xml")

pytestmark = [
    *spark_cluster.RUNS_HERE,
    long_only(
        "test_pipeline_crashes.py kills at these steps, and test_checkpoint_folders.py reads checkpoints on HDFS"
    ),
]


class Drivers:
    """Those of one application, one after the other; each has a state directory of its own, as on another machine."""

    def __init__(self, root: Path, master: str, given: list[str], connector: Path) -> None:
        self._root, self._master, self._given = root, master, given
        self._conf = [
            "spark.executor.memory=512m", "spark.driver.memory=512m",
            f"spark.jars={','.join(map(str, sorted(connector.glob('*.jar'))))}",
        ]  # fmt: skip
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str | None = None) -> None:
        """Another one, on another machine, which dies at this step."""
        self._count += 1
        own = [*self._given, f"state.dir={self._root / str(self._count)}", f"node.name={self.node}"]
        target = ["flights:app", "sums", *(part for setting in own for part in ("--set", setting))]
        command = spark_cluster.submit(
            Path(submit.__file__), target, self._master, self._conf, [str(TESTS), str(self._root)]
        )
        environment = spark_cluster.environment([str(TESTS), str(self._root)])
        if crash_at is not None:
            environment["STATELINE_CRASH_AT"] = crash_at
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self._root, start_new_session=True
            )

    def wait_until_killed(self) -> None:
        """Until the one that was started has come to its step."""
        assert self._process is not None
        try:
            assert self._process.wait(HANGING_S) == _KILLED, self.said()
        except subprocess.TimeoutExpired:
            pytest.fail(f"driver {self._count} did not end: {self.said()}")

    @property
    def node(self) -> str:
        """The name of the newest one's machine."""
        return f"node-{self._count}"

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def _log(self) -> Path:
        return self._root / f"driver-{self._count}.log"


def made(name: str) -> App:
    """The application, as a server here imports it."""
    module: dict[str, Any] = {}
    exec(APPLICATION.format(name=name), module)
    app = module["app"]
    assert isinstance(app, App)
    return app


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster.standalone(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture
def location(tmp_path: Path) -> Iterator[str]:
    with hdfs(needed(hdfs_jars), tmp_path / "hdfs") as url:
        yield f"{url}/stateline"


def test_drivers_that_are_killed_at_any_step_on_machine_after_machine_write_each_result_once(
    kafka_broker: SharedBroker, cluster: str, location: str, tmp_path: Path
) -> None:
    name = f"ledger-{uuid4().hex[:8]}"
    (tmp_path / "flights.py").write_text(APPLICATION.format(name=name))
    connector = needed(lambda: jars(_POM, "spark-kafka-4.2.0"))
    given = [
        *settings("unused", kafka_broker.bootstrap_servers)[1:], f"pipeline.checkpoint.location={location}",
        "session.timeout.ms=6000", "spark.sql.shuffle.partitions=2",
    ]  # fmt: skip
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(kafka_broker.bootstrap_servers, tmp_path)))
        ledger = AccountLedger(log, name)
        drivers = stack.enter_context(closing(Drivers(tmp_path, cluster, given, connector)))
        for step in STEPS:
            ledger.add()
            drivers.start(step)
            drivers.wait_until_killed()
        drivers.start()
        ledger.add()
        wait_until(lambda: ledger.is_counted, HANGING_S)
        assert Counter(ledger.written()) == ledger.wanted()
        server = stack.enter_context(served_here(tmp_path / "server", *given, app=made(name), until_ready=False))

        def status() -> dict[str, Any]:
            return server.client.get("/v1/topology").json()["pipelines"]["sums"]["status"] or {}

        wait_until(lambda: (status().get("lag"), status().get("state")) == (0, "waiting"), HANGING_S)
        assert status()["node"] == drivers.node, "the server has neither its files nor a link with it"
    assert not list(tmp_path.glob("[0-9]*/**/checkpoint")), "nothing of it is in a state directory"
