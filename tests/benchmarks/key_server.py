"""The Kafka Streams application of `kafka_streams/`: built, and run as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import answers, free_port, program, until
from topic import PARTITIONS, TOPIC

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.kafka.java_streams import BY_STORES, TRANSACTIONAL
from support.kafka.maven import JarsUnavailableError, jars, one_at_a_time

_PROJECT = Path(__file__).parent / "kafka_streams"
_JARS = "kafka-streams-4.4.0"
_BUILD_TIMEOUT_S = 300.0

# How many threads answer; the benchmark takes the number that is best for Kafka Streams.
POOLS = (2, 4, 8)

_SETTINGS = {
    "commit.interval.ms": 100,
    # The topic is its own changelog, as that of a Stateline table is: nothing has to be written twice.
    "topology.optimization": "all",
    # It may stand still for so long while something else is measured.
    "session.timeout.ms": 120_000,
}
# Without the first, the JDK's server waits for acknowledgements that are delayed by 40 ms.
_JAVA = ["java", "-Dsun.net.httpserver.nodelay=true", "-Xmx1g"]


@dataclass(frozen=True)
class KeyServer:
    """A running one: its process, its consumer group, the port of each pool of threads."""

    process: subprocess.Popen[bytes]
    group: str
    ports: dict[int, int]

    def until_ready(self) -> None:
        """Wait until its table can be read."""
        until(lambda: answers(self.ports[POOLS[0]], "/ready"), "Kafka Streams runs", 0.05)


def build(folder: Path) -> str:
    """The class path of the application, compiled into this folder. Raises `JarsUnavailableError` when that fails."""
    libraries = jars(_PROJECT / "pom.xml", _JARS)
    command = ["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), "compile", f"-Dbuild.folder={folder}"]
    with one_at_a_time("maven"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_TIMEOUT_S)
    if done.returncode:
        raise JarsUnavailableError(f"Maven could not build {_PROJECT.name}: {done.stdout}{done.stderr}")
    return f"{folder / 'classes'}:{libraries}/*"


@contextmanager
def key_server(class_path: str, servers: str, state_dir: Path, stream_threads: int, javas: str) -> Iterator[KeyServer]:
    """Run the application with so many stream threads and stores of this kind, in a group of its own. Only
    transactional stores can answer committed reads, and do."""
    group, ports = f"kafka-streams-{stream_threads}-{javas}", {pool: free_port() for pool in POOLS}
    settings = {
        "bootstrap.servers": servers,
        "application.id": group,
        "state.dir": state_dir,
        "num.stream.threads": stream_threads,
        TRANSACTIONAL: BY_STORES[javas],
        "default.interactive.query.isolation.level": "READ_COMMITTED",
        **_SETTINGS,
    }
    command = [*_JAVA, "-cp", class_path, "stateline.KeyServer", TOPIC, str(PARTITIONS)]
    command += [",".join(f"{pool}:{port}" for pool, port in ports.items())]
    command += [f"{name}={setting}" for name, setting in settings.items()]
    with program(command, state_dir / f"{group}.txt") as child:
        yield KeyServer(child, group, ports)
