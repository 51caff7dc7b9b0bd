"""Two nodes run one application over checkpoints that both reach, in a directory or on a real HDFS: whichever is lost,
the other one goes on with its pipeline, and the result topic has what each micro-batch made, once.

A node is a `stateline run` with all that it starts: stopped (SIGSTOP) until another node has taken over, and woken up;
killed with SIGKILL; and drained.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service.spark.departures import settings
from stateline.log import open_log
from stateline.spark import session as spark
from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.kafka.maven import jars
from support.kafka.shared_broker import SharedBroker
from support.oracles.account_ledger import APPLICATION, AccountLedger
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.spark.spark_archive import put_class_archive

_POM = Path(spark.__file__).with_name("pom.xml")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer: there is no java.")


class Node:
    """A `stateline run`, and all that it starts."""

    def __init__(self, root: Path, name: str, given: Iterable[str]) -> None:
        self.name, self._root = name, root
        self._said = root / f"{name}.log"
        port = free_port()
        put_class_archive(root / name)
        own = [f"node.name={name}", f"state.dir={root / name}", f"server.port={port}"]
        arguments = [part for setting in (*given, *own) for part in ("--set", setting)]
        self._command = [sys.executable, "-m", "stateline", "run", "flights:app", *arguments]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S)
        self.start()

    def start(self) -> None:
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(self._command, cwd=self._root, stdout=said, stderr=subprocess.STDOUT)

    def send(self, number: signal.Signals) -> None:
        """To every process of this node at once."""
        for pid in _descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def drain(self) -> None:
        """As an operator does it; returns when its pipeline has stopped."""
        command = [*self._command[:3], "node", "drain", *self._command[4:], "--timeout", str(HANGING_S)]
        subprocess.run(command, cwd=self._root, check=True)

    def said(self, text: str) -> bool:
        return text in self._said.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """Of the pipeline, as this node's server tells it; nothing while it does not."""
        with suppress(httpx.TransportError):
            told = self.client.get("/v1/topology")
            return (told.json()["pipelines"]["sums"]["status"] or {}) if told.status_code == 200 else {}
        return {}

    def close(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.client.close()


def _descendants(pid: int) -> list[int]:
    """This process and all that it has started."""
    found = [pid]
    for each in found:  # grows meanwhile
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found


@pytest.fixture(params=["directory", "hdfs"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """`pipeline.checkpoint.location`."""
    if request.param == "directory":
        (tmp_path / "shared").mkdir()
        yield str(tmp_path / "shared")
        return
    with hdfs(needed(hdfs_jars), tmp_path / "hdfs") as url:
        yield f"{url}/shared"


@long_only("test_pipeline_lease.py has which node a pipeline is given to, and test_pipeline_crashes.py killed drivers")
def test_a_pipeline_goes_on_elsewhere_when_its_node_is_frozen_killed_or_drained_and_nothing_is_lost_or_written_twice(
    kafka_broker: SharedBroker, python_of_spark: None, tmp_path: Path, location: str
) -> None:
    name = f"ledger-{uuid4().hex[:8]}"
    (tmp_path / "flights.py").write_text(APPLICATION.format(name=name))
    write_secret(tmp_path)
    connector = needed(lambda: jars(_POM, "spark-kafka-4.2.0"))
    given = [
        *settings("unused", kafka_broker.bootstrap_servers, str(connector))[1:],
        f"pipeline.checkpoint.location={location}", f"node.peer.secret.file={tmp_path / 'secret'}",
        "session.timeout.ms=10000", "spark.sql.shuffle.partitions=1",
    ]  # fmt: skip
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(kafka_broker.bootstrap_servers, tmp_path)))
        ledger = AccountLedger(log, name)
        ledger.add()
        one = stack.enter_context(closing(Node(tmp_path, "one", given)))
        wait_until(lambda: ledger.is_counted, HANGING_S)
        two = stack.enter_context(closing(Node(tmp_path, "two", given)))
        wait_until(lambda: two.said("runs on node 'one'"), HANGING_S)

        one.send(signal.SIGSTOP)
        ledger.add()
        wait_until(lambda: ledger.is_counted, HANGING_S)
        one.send(signal.SIGCONT)
        wait_until(lambda: one.said("is not this node's any more"), HANGING_S)
        wait_until(lambda: one.said("runs on node 'two'"), HANGING_S)
        ledger.add()
        wait_until(lambda: ledger.is_counted, HANGING_S)
        wait_until(lambda: one.status().get("node") == "two", HANGING_S)

        two.send(signal.SIGKILL)
        ledger.add()
        wait_until(lambda: ledger.is_counted, HANGING_S)
        wait_until(lambda: one.status().get("node") == "one", HANGING_S)

        two.start()
        wait_until(lambda: two.status().get("node") == "one", HANGING_S)
        one.drain()
        ledger.add()
        wait_until(lambda: ledger.is_counted, HANGING_S)
        wait_until(lambda: one.status().get("node") == "two", HANGING_S)
        assert one.said("takes no part until its driver restarts")
        assert Counter(ledger.written()) == ledger.wanted()
        assert not two.said("Another driver")
        if "://" not in location:
            folder = tmp_path / "shared" / name / "pipelines"
            assert sorted(path.name for path in folder.iterdir()) == [".location", "sums"]
        assert not list((tmp_path / "one").rglob("checkpoint"))
