"""The broker and the nodes of the demo: started, killed, added, and all ended with the demo."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark

import stateline.spark
from flights.application import app
from flights.place import free_port
from flights.services import TARGET, OutputFile, demo_settings, written_settings
from stateline.processes.application import application_children
from stateline.processes.child import Child
from stateline.processes.supervisor import Supervisor
from support import CACHE
from support.kafka.maven import jars
from support.kafka.recipe import BrokerRecipe, BrokerUnavailableError, answers

SESSION_S = 6
"""How long the group waits for a worker that is gone, before others get its tasks."""
_BROKER_TIMEOUT_S = 60.0
_CONNECTOR = Path(stateline.spark.__file__).with_name("pom.xml")


@dataclass(frozen=True)
class DemoNode:
    """A node: its name, where its server is, and its processes."""

    name: str
    url: str
    processes: Supervisor


class Cluster:
    """Those that run. One thread owns it; `nodes` may be read by others."""

    def __init__(self, directory: Path, host: str, ports: Sequence[int], output: OutputFile) -> None:
        """`directory` is empty, `ports` has one for each node there will be.
        Nothing runs yet."""
        self.nodes: tuple[DemoNode, ...] = ()
        self.bootstrap_servers = ""
        self._directory = directory
        self._host, self._ports = host, list(ports)
        self._output = output
        self._running = ExitStack()
        self._secret = directory / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_text(secrets.token_hex(32), encoding="utf-8")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.nodes = ()
        self._running.close()

    def start_broker(self) -> None:
        """Fetch what is missing, and return when a broker answers. Raises `BrokerUnavailableError` or
        `JarsUnavailableError` where there can be none."""
        directory = self._directory / "kafka"
        directory.mkdir()
        recipe = BrokerRecipe(directory, (free_port(self._host, 0), free_port(self._host, 0)))
        recipe.format_storage()
        # Nobody needs its data again.
        broker = Supervisor([Child("kafka", recipe.command())], emit=self._output, stop_timeout_s=1.0)
        self._running.enter_context(broker)
        deadline = time.monotonic() + _BROKER_TIMEOUT_S
        while not answers(recipe.bootstrap_servers):
            broker.poll()
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"Kafka does not answer at {recipe.bootstrap_servers}: see output.log.")
        self.bootstrap_servers = recipe.bootstrap_servers

    def add(self) -> DemoNode:
        """Start the next node; it is not ready yet. The first one runs the pipelines."""
        port = self._ports.pop(0)
        name = f"node-{1 + sum(entry.name.startswith('node-') for entry in self._directory.iterdir())}"
        (self._directory / name).mkdir()
        (self._directory / name / ".cache").symlink_to(CACHE)  # Spark's class archive
        config, passed_on = written_settings(app, self._settings(name, port))
        children = application_children(app, config, TARGET, passed_on)
        named = [replace(child, name=f"{name}/{child.name}") for child in children]
        node = DemoNode(name, f"http://{self._host}:{port}", Supervisor(named, emit=self._output))
        self._running.enter_context(node.processes)
        self.nodes = (*self.nodes, node)
        return node

    def kill(self, name: str) -> None:
        """End a node as a crash of its machine would: every process of it by SIGKILL."""
        node = next(each for each in self.nodes if each.name == name)
        self.nodes = tuple(each for each in self.nodes if each is not node)
        for pid in node.processes.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def poll(self) -> None:
        """See that all processes run; as `Supervisor.poll`."""
        for node in self.nodes:
            node.processes.poll()

    def _settings(self, name: str, port: int) -> dict[str, str]:
        connector = jars(_CONNECTOR, f"spark-kafka-{pyspark.__version__}", f"-Dspark.version={pyspark.__version__}")
        return {
            **demo_settings(self._directory / name, self._host, port),
            "bootstrap.servers": self.bootstrap_servers,
            "node.name": name,
            "node.url": f"http://{self._host}:{port}",
            "node.peer.listen": f"{self._host}:0",
            "node.peer.secret.file": str(self._secret),
            "pipeline.node": "node-1",
            "spark.jars": str(connector),
            "commit.interval.ms": "500",
            "session.timeout.ms": str(SESSION_S * 1000),
            # What is left open by a worker that is gone holds up its successors for so long.
            "transaction.timeout.ms": str(SESSION_S * 1000),
        }
