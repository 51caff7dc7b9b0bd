"""A real Kafka Streams application for tests and benchmarks: that of `kafka_streams_app/`, as a process of its own.

It needs `java` and `mvn`. The jars are fetched once, and what is compiled is kept by its sources, in `.cache`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import httpx

from support import CACHE, TESTS
from support.kafka.maven import JarsUnavailableError, jars, maven_environment, one_at_a_time
from support.processes.ports import free_port
from support.run.patience import HANGING_S

_PROJECT = TESTS / "kafka_streams_app"
_VERSION = "4.4.0"  # as in the project's pom.xml
_STOP_DEADLINE_S = 30.0

TRANSACTIONAL = "enable.transactional.statestores"
FORMAT = "dsl.store.format"
BY_STORES = {"transactional": "true", "default": "false"}
"""How comparisons run, by this setting of the peer. In the gate each of them runs with one of the two."""

WITH_HEADERS = "with headers"
PEERS = {
    **{name: {TRANSACTIONAL: given} for name, given in BY_STORES.items()},
    WITH_HEADERS: {TRANSACTIONAL: "true", FORMAT: "HEADERS"},
}
"""By name, settings of the peer: the same, and transactional stores with the headers of records."""

# What the stores of the application are made with: as in KeptStores.java.
SIZE_MS, ADVANCE_MS, DIFFERENCE_MS, GAP_MS, GRACE_MS, HISTORY_MS = 60_000, 20_000, 20_000, 10_000, 30_000, 120_000

_QUICK = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # starts fast, and leaves memory to others


class Row(NamedTuple):
    """A row of a store as Java shows it: `key` has the bytes of a changelog's key, but no sequence of duplicates."""

    partition: int
    key: bytes
    timestamp_ms: int | None
    value: bytes
    valid_to_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def class_path(version: str = _VERSION) -> str:
    """Return the class path of the compiled application and this version of Kafka Streams. Before 3.7, `dump` cannot
    read versioned stores. Raises `JarsUnavailableError` without java or mvn, or when Maven fails."""
    if shutil.which("java") is None:
        raise JarsUnavailableError("A Kafka Streams application needs 'java', which is not on the PATH.")
    libraries = jars(_PROJECT / "pom.xml", f"kafka-streams-{version}", f"-Dkafka.version={version}")
    sources = [_PROJECT / "pom.xml", *sorted(_PROJECT.glob("src/**/*.java"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    build = CACHE / "kafka-streams-app" / digest
    with one_at_a_time("maven"):
        if not build.is_dir():
            build.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=build.parent) as scratch:
                _compile(Path(scratch) / "build")
                (Path(scratch) / "build").rename(build)
    return f"{build / 'classes'}:{libraries}/*"


def _compile(folder: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), "compile", f"-Dbuild.folder={folder}"]
    environment = maven_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANGING_S)
    if done.returncode:
        raise JarsUnavailableError(f"Maven could not build {_PROJECT.name}: {done.stdout}{done.stderr}")


class JavaStreams:
    """The application with these stores, from `start` to `stop` or `kill`; what it has on disk stays for the next.

    Its input topics are there before: `KeptStores.java` says which, each with the prefix and so many partitions. It is
    a static member of its group: started again after `kill`, it goes on at once.
    """

    def __init__(
        self,
        servers: str,
        application_id: str,
        stores: Sequence[str],
        state_dir: Path,
        *,
        prefix: str = "",
        partitions: int = 1,
        settings: Mapping[str, object] | None = None,
        java_options: Iterable[str] = _QUICK,
        version: str = _VERSION,
    ) -> None:
        """`settings` are Kafka Streams'. Raises `JarsUnavailableError` when there is no such application here."""
        self.application_id, self.version = application_id, version
        self._class_path = class_path(version)
        self._stores, self._prefix, self._partitions = tuple(stores), prefix, partitions
        self._java = ("java", *java_options, "-Dsun.net.httpserver.nodelay=true")
        self._settings: dict[str, object] = {
            "bootstrap.servers": servers,
            "application.id": application_id,
            "state.dir": state_dir,
            "group.instance.id": application_id,
            **(settings or {}),
        }
        self._state = state_dir / application_id
        self._output = state_dir / f"{application_id}.txt"
        self._client = httpx.Client(timeout=HANGING_S)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None, "it was not started"
        return self._process.pid

    def changelog(self, store: str) -> str:
        """The topic that it writes a store's changes to."""
        return f"{self.application_id}-{store}-changelog"

    def start(self, settings: Mapping[str, object] | None = None) -> None:
        """Start it, with these settings besides, and wait until it runs."""
        port = free_port()
        arguments = [str(port), self._prefix, str(self._partitions), ",".join(self._stores)]
        arguments += [f"{name}={setting}" for name, setting in {**self._settings, **(settings or {})}.items()]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java, "-cp", self._class_path, "stateline.StreamsApp", *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        self._client.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + HANGING_S
        while not self._is_ready():
            gone = self._process.poll() is not None
            if gone or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"Kafka Streams {'ended' if gone else 'is not ready'}: {self.output()[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_stores(self) -> None:
        """Delete what its stores have on disk: they are restored from their changelogs at the next start.

        After `kill` they have to be: one that was just being made keeps Kafka Streams from starting (RocksDB's manifest
        is missing).
        """
        for task in self._state.glob("[0-9]*_[0-9]*"):
            shutil.rmtree(task)

    def stop(self) -> None:
        """End it in order (SIGTERM): it commits and leaves."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def dump(self, store: str, keys: Iterable[str] = ()) -> list[Row]:
        """Every row of a store that can be queried, what is not committed included; of a versioned one the versions of
        these keys."""
        answer = self._client.post(f"/dump/{store}", content="\n".join(keys))
        assert answer.status_code == 200, answer.text
        return [_row(line) for line in answer.text.splitlines()]

    def ask(self, store: str, level: str, *question: object) -> tuple[str, list[tuple[str, ...]]] | None:
        """Return the Position and the entries of an interactive query, None while it cannot be asked. See
        `StoreQuestion.java` for the question. The level is READ_COMMITTED or READ_UNCOMMITTED."""
        answer = self._client.post(f"/ask/{store}", content="\t".join(map(str, (level, *question))))
        if answer.status_code != 200:
            return None
        position, *lines = answer.text.removesuffix("\n").split("\n")
        return position, [tuple(line.split("\t")) for line in lines]

    def output(self) -> str:
        """What it said."""
        return self._output.read_text(errors="replace")

    def close(self) -> None:
        """End it if it runs: nothing of it is wanted any more."""
        self.kill()
        self._client.close()

    def __enter__(self) -> JavaStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_ready(self) -> bool:
        try:
            return self._client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False


def _row(line: str) -> Row:
    partition, key, timestamp, value, valid_to, headers = line.split(" ")
    data = bytes.fromhex(key), _number(timestamp), bytes.fromhex(value), _number(valid_to)
    return Row(int(partition), *data, _headers(headers))


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...] | None:
    if text == "-":
        return None
    pairs = [pair.split(":") for pair in text.removeprefix("+").split(",")[:-1]]
    return tuple((bytes.fromhex(name).decode(), None if data == "-" else bytes.fromhex(data)) for name, data in pairs)


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)
