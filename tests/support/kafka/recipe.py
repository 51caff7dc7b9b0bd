"""How a Kafka broker is started: its jars, its settings, its formatted storage, and the command that runs it.

It is broker and controller in one, for trying things: every topic has one replica.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stateline_store import ConfigurationError
from support.kafka.maven import jars

KAFKA_VERSION = "4.4.0"
_HERE = Path(__file__).parent


class BrokerUnavailableError(ConfigurationError):
    """No broker can be started here; the message says what is missing."""


@dataclass(frozen=True)
class BrokerRecipe:
    """One broker. Its jars are in `.cache`, fetched once, its data and its settings in `directory`.

    `ports` are the broker's and the controller's. `settings` win over those of server.properties beside this file;
    placeholders in them are filled in too. Making one raises `BrokerUnavailableError` without java, and
    `JarsUnavailableError` as `jars` does.
    """

    directory: Path
    ports: tuple[int, int]
    heap: str = "768m"
    settings: Mapping[str, str] = field(default_factory=dict)
    version: str = KAFKA_VERSION

    def __post_init__(self) -> None:
        if shutil.which("java") is None:
            raise BrokerUnavailableError("A Kafka broker needs 'java', which is not on the PATH.")
        self._libs()

    @property
    def bootstrap_servers(self) -> str:
        """Where it is reached."""
        return f"127.0.0.1:{self.ports[0]}"

    def command(self, *options: str) -> list[str]:
        """What runs it until SIGTERM, with these options of the JVM; after `format_storage`."""
        return self._java(*options, "kafka.Kafka", str(self._properties))

    def write_settings(self) -> None:
        """Write its settings into its directory."""
        self._properties.write_text(
            "\n".join([(_HERE / "server.properties").read_text(), *(f"{k}={v}" for k, v in self.settings.items())])
            .replace("{broker_port}", str(self.ports[0]))
            .replace("{controller_port}", str(self.ports[1]))
            .replace("{log_dir}", str(self.directory / "data"))
        )

    def format_storage(self, *options: str, cluster_id: str | None = None) -> None:
        """Write its settings and make its storage, once; `cluster_id` for one of several brokers. Raises
        `BrokerUnavailableError` with what Kafka says when that fails."""
        self.write_settings()
        name = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={name}", "-c", str(self._properties))
        done = subprocess.run(self._java(*options, *tool), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerUnavailableError(f"Kafka's storage cannot be formatted: {done.stdout}{done.stderr}")

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _libs(self) -> Path:
        return jars(_HERE / "pom.xml", f"kafka-{self.version}/libs", f"-Dkafka.version={self.version}")

    def _java(self, *arguments: str) -> list[str]:
        return [
            "java",
            f"-Xmx{self.heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
            f"-Dlog4j2.configurationFile={_HERE / 'log4j2.yaml'}",
            "-cp",
            f"{self._libs()}/*",
            *arguments,
        ]


def answers(bootstrap_servers: str) -> bool:
    """Whether a broker answers there; asks for a second at most."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 200})
    try:
        admin.list_topics(timeout=1)
    except KafkaException:
        return False  # not listening yet
    return True
