"""A real Apache Kafka broker for tests and benchmarks: one node on free ports, its data in a temporary folder.

Use it as a context manager; tests that need nothing of their own share one (`shared_broker.py`). It needs `java`
and `mvn`; the jars are fetched once, as `recipe` says how, into `.cache/kafka-VERSION/libs`.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

import pytest

from support import CACHE
from support.kafka.maven import JarsUnavailableError, one_at_a_time
from support.kafka.recipe import KAFKA_VERSION, BrokerRecipe, BrokerUnavailableError, answers
from support.processes.ports import free_port
from support.run.patience import HANGING_S

Made = TypeVar("Made")
_STOP_DEADLINE_S = 60.0
# Or else a controller writes and flushes a record that says nothing twice a second: half of what an idle broker costs.
_QUIET = {"metadata.max.idle.interval.ms": "0"}


def _class_archive(version: str) -> Path:
    """Return the archive of Kafka's parsed classes, which halves a broker's start. Recorded once per machine."""
    archive = CACHE / f"kafka-{version}.jsa"
    with one_at_a_time("kafka"):
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished")
            with KafkaBroker(archive=f"-XX:ArchiveClassesAtExit={unfinished}", version=version) as recording:
                recording.stop()
            with suppress(FileNotFoundError):  # it had to be killed: brokers start as they did
                unfinished.replace(archive)
    return archive


class KafkaBroker:
    """A broker that runs from the constructor until `stop`. `bootstrap_servers` stays the same over `restart`.

    `kill` and `stop` keep the data for a `restart`; `close` (and leaving the `with`) removes it.
    """

    def __init__(
        self,
        heap: str = "768m",
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        ports: tuple[int, int] | None = None,
        cluster_id: str | None = None,
        archive: str | None = None,
        directory: Path | None = None,
        version: str = KAFKA_VERSION,
    ) -> None:
        """`settings` win over those of the recipe's server.properties; placeholders in them are filled in too.

        `ports`, of the broker and of its controller, and `cluster_id` are for one of several brokers: it is ready only
        when others are, so that is not waited for. `archive` is the JVM's option to record its classes. `directory`, an
        empty one, takes its data instead of a temporary one.
        """
        self._directory = directory or Path(tempfile.mkdtemp(prefix="stateline-kafka-"))
        self._output = self._directory / "broker.log"
        try:
            ours = {**_QUIET, **settings}
            self._recipe = BrokerRecipe(self._directory, ports or (free_port(), free_port()), heap, ours, version)
            self.bootstrap_servers = self._recipe.bootstrap_servers
            self._archive = archive or f"-XX:SharedArchiveFile={_class_archive(version)}"
            self._format_storage(cluster_id or _new_id(), ours.get("node.id", "1"))
            self._process = self._start(wait=cluster_id is None)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _format_storage(self, cluster_id: str, node: str) -> None:
        """Kafka's tool formats one storage per machine, in two seconds; others are copies with names of their own."""
        storage, kept = self._directory / "data", CACHE / f"kafka-{self._recipe.version}.storage"
        with one_at_a_time("kafka-storage"):
            if not kept.exists():
                self._recipe.format_storage(f"-XX:SharedArchiveFile={CACHE / f'kafka-{self._recipe.version}.jsa'}")
                unfinished = kept.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.copytree(storage, unfinished)
                unfinished.rename(kept)
        self._recipe.write_settings()
        shutil.copytree(kept, storage, dirs_exist_ok=True)
        meta = storage / "meta.properties"
        text = meta.read_text()
        for name, value in (("cluster.id", cluster_id), ("directory.id", _new_id()), ("node.id", node)):
            text, found = re.subn(rf"^{re.escape(name)}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert found == 1, f"{name} in {text}"
        meta.write_text(text)

    def _start(self, *, wait: bool = True) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            process = subprocess.Popen(self._recipe.command(self._archive), stdout=output, stderr=output)
        try:
            if wait:
                self._wait_until_ready(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + HANGING_S
        while not answers(self.bootstrap_servers):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BrokerUnavailableError(f"Kafka did not start: {self._output.read_text()[-4000:]}")

    def pause(self) -> None:
        """Let it hang (SIGSTOP) until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the broker in order (SIGTERM), or kill it when it does not end in time."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, *, wait: bool = True) -> None:
        """Start a broker that was stopped or killed, on the same ports and data; without `wait` before it is ready."""
        if self._process.poll() is None:
            self.stop()
        self._process = self._start(wait=wait)

    def close(self) -> None:
        """Kill the broker, which has nothing left to keep, and remove its data."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> KafkaBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _new_id() -> str:
    """As Kafka makes them; it takes none that begins with a dash."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def missing_is_a_failure() -> bool:
    """Whether a missing broker, or Java, fails the tests (in CI) instead of skipping them."""
    return bool(os.environ.get("CI"))


def needed(make: Callable[[], Made]) -> Made:
    """What it makes. Where a broker or its jars cannot be had, the tests are skipped; in CI they fail."""
    try:
        return make()
    except (BrokerUnavailableError, JarsUnavailableError) as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        pytest.skip(str(error))
