"""Two nodes run one application over one directory of checkpoints: whichever is lost, the other one goes on with its
pipeline, and the result topic has what each micro-batch made, once.

A node is a `stateline run` with all that it starts: stopped (SIGSTOP) until another node has taken over, and woken up;
killed with SIGKILL; and, in the long run, drained.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service.spark.departures import read_all, settings
from stateline.deployment.epoch_marker import EpochMarker
from stateline.log import Log, NewTopic, open_log
from stateline.spark import session as spark
from support.kafka.kafka_broker import needed
from support.kafka.maven import jars
from support.kafka.shared_broker import SharedBroker
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S
from support.spark.spark_archive import put_class_archive

_POM = Path(spark.__file__).with_name("pom.xml")
_RECORDS = 60  # of each part
_APPLICATION = """
from pyspark.sql import functions as F

from stateline import serdes
from stateline.dsl.app import App

app = App({name!r})
journal = app.topic("journal-{name}", key=serdes.string, value=serdes.json, schema="account string, amount long")

@app.pipeline(reads=journal, writes="sums-{name}", key="account")
def sums(journal):
    return journal.groupBy("account").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
"""

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer: there is no java.")

Update = tuple[str, int, int]  # account, entries, their sum


class Ledger:
    """The topics of this application, and what must be in that of the results."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._made = 0
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic(f"journal-{name}", 1), NewTopic(f"sums-{name}", 1)])

    def add(self) -> None:
        """Entries for accounts that come again and again."""
        with closing(self._log.producer()) as producer:
            for number in range(self._made, self._made + _RECORDS):
                value = {"account": f"a{number % 7}", "amount": number}
                producer.produce(f"journal-{self._name}", b"%d" % number, json.dumps(value).encode(), timestamp_ms=1)
            producer.flush()
        self._made += _RECORDS

    @property
    def is_counted(self) -> bool:
        """Whether every entry is in the newest sums."""
        newest = {account: n for account, n, _ in self.written()}
        return sum(newest.values()) == self._made

    def written(self) -> list[Update]:
        """Every result that a read_committed consumer sees."""
        values = [json.loads(record.value or b"") for record in read_all(self._log, f"sums-{self._name}")]
        return [(value["account"], value["n"], value["total"]) for value in values]

    def wanted(self) -> Counter[Update]:
        """What the micro-batches that markers name must have written, and how often: plain Python's sums."""
        entries = [json.loads(record.value or b"") for record in read_all(self._log, f"journal-{self._name}")]
        found, sums, begin = Counter[Update](), dict[str, tuple[int, int]](), 0
        for record in read_all(self._log, f"{self._name}-sums-epochs"):
            offsets = json.loads(EpochMarker.decode(record.value or b"").end_offsets[0] or "{}")
            end = offsets[f"journal-{self._name}"]["0"]
            for entry in entries[begin:end]:
                n, total = sums.get(entry["account"], (0, 0))
                sums[entry["account"]] = (n + 1, total + entry["amount"])
            found.update((account, *sums[account]) for account in {entry["account"] for entry in entries[begin:end]})
            begin = end
        return found


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
            return self.client.get("/v1/topology").json()["pipelines"]["sums"]["status"] or {}
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


def test_a_pipeline_goes_on_elsewhere_when_its_node_is_frozen_killed_or_drained_and_nothing_is_lost_or_written_twice(
    kafka_broker: SharedBroker, python_of_spark: None, tmp_path: Path
) -> None:
    name = f"ledger-{uuid4().hex[:8]}"
    (tmp_path / "flights.py").write_text(_APPLICATION.format(name=name))
    write_secret(tmp_path)
    (tmp_path / "shared").mkdir()
    connector = needed(lambda: jars(_POM, "spark-kafka-4.2.0"))
    given = [
        *settings("unused", kafka_broker.bootstrap_servers, str(connector))[1:],
        f"pipeline.checkpoint.location={tmp_path / 'shared'}", f"node.peer.secret.file={tmp_path / 'secret'}",
        "session.timeout.ms=10000", "spark.sql.shuffle.partitions=1",
    ]  # fmt: skip
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(kafka_broker.bootstrap_servers, tmp_path)))
        ledger = Ledger(log, name)
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

        if long_or_short(True, False):  # one more start of Spark
            two.start()
            wait_until(lambda: two.status().get("node") == "one", HANGING_S)
            one.drain()
            ledger.add()
            wait_until(lambda: ledger.is_counted, HANGING_S)
            wait_until(lambda: one.status().get("node") == "two", HANGING_S)
            assert one.said("takes no part until its driver is started anew")
        assert Counter(ledger.written()) == ledger.wanted()
        assert not two.said("Another driver")
        assert sorted(path.name for path in (tmp_path / "shared" / name / "pipelines").iterdir()) == [
            ".location", "sums",
        ]  # fmt: skip
