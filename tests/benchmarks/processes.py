"""Real `stateline worker` and `stateline serve` processes of `ingest_app`, and what is seen of them from outside."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import MappingProxyType

from ingest_app import app
from topic import PARTITIONS, TOPIC, Group, loaded_broker

from stateline_store import NotPresentError, SecondaryReader, StateDirectory
from stateline_store.files.commit_notice import NoticeView

_HERE = Path(__file__).parent
_DEADLINE_S = 300.0

_WORKER = {
    "commit.interval.ms": 100,
    # A worker is a static member: its group can be deleted only when the session has timed out.
    "session.timeout.ms": 5_000,
}


def until(condition: Callable[[], bool], what: str, interval_s: float = 0.001) -> None:
    """Look until the condition holds."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {_DEADLINE_S:g} s in vain: {what}.")
        time.sleep(interval_s)


@contextmanager
def process(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, ended by SIGTERM; what it said is raised when it ends badly."""
    with program([sys.executable, *arguments], log) as child:
        yield child


@contextmanager
def program(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Any program, ended as `process` is."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, cwd=_HERE, stdout=output, stderr=output)
        try:
            yield child
        finally:
            child.terminate()
            code = child.wait(60)
    if code not in (0, -15, 143):  # Java says 143 for SIGTERM
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {log.read_text()[-4000:]}")


@contextmanager
def worker(servers: str, state_dir: Path, settings: Mapping[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that commits every 100 ms and never waits for records that the broker has."""
    given = {"bootstrap.servers": servers, "state.dir": state_dir, **_WORKER, **settings}
    with process(_command("worker", given), state_dir / "worker.txt") as child:
        yield child


@contextmanager
def server(servers: str, state_dir: Path, settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[int]:
    """A server; the port it answers at."""
    with server_process(servers, state_dir, settings) as (port, _):
        yield port


@contextmanager
def server_process(
    servers: str,
    state_dir: Path,
    settings: Mapping[str, object] = MappingProxyType({}),
    module: str = "ingest_app",
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server; the port it answers at, and its process."""
    port = free_port()
    given = {"bootstrap.servers": servers, "state.dir": state_dir, "server.port": port, **settings}
    with process(_command("serve", given, module), state_dir / f"server-{port}.txt") as child:
        until(lambda: answers(port, "/healthz"), "the server answers", 0.05)
        yield port, child


@contextmanager
def ingested(keys: int) -> Iterator[tuple[str, Path]]:
    """A broker and a worker that has ingested a record of each of so many keys: its bootstrap servers, and the state
    directory."""
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(keys, keys))
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(closing(Group(servers)))
        stack.enter_context(worker(servers, state_dir, {}))
        with closing(Table(state_dir)) as table:
            table.until_all(group, keys)
        yield servers, state_dir


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_ready(port: int) -> None:
    """Wait until every partition can be read through the server."""
    until(lambda: answers(port, "/readyz"), "the server is ready", 0.05)


def until_committed(group: Group, records: int) -> None:
    """Wait until the group has committed so many records."""
    until(lambda: group.committed() >= records, f"{records:,} records are committed", 0.02)


def answers(port: int, path: str) -> bool:
    """Whether what listens at the port answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _command(name: str, settings: Mapping[str, object], module: str = "ingest_app") -> list[str]:
    command = ["-m", "stateline", "--quiet", name, f"{module}:app"]
    for setting, value in settings.items():
        command += ["--set", f"{setting}={value}"]
    return command


class Table:
    """The worker's table, by its notices and readers. Waits until the worker has opened it."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = StateDirectory(state_dir, app.application_id)
        self.notices: list[NoticeView] = []
        until(self._is_open, "the worker opens its stores")

    def until_begun(self) -> None:
        """Wait for the first record: staged or committed."""
        until(lambda: any(n.staged_records or n.commit_number for n in self.notices), "ingest begins", 0.0005)

    def until_all(self, group: Group, records: int) -> None:
        """Wait until so many records, which are all there are, are committed by the group and then by the stores."""
        until_committed(group, records)
        until(lambda: not any(notice.staged_records for notice in self.notices), "the stores are committed")

    def reader(self, partition: int, scratch: Path) -> SecondaryReader:
        """A reader of one partition, as the server has it."""
        return SecondaryReader(
            self._directory.store(f"0_{partition}", TOPIC, timestamped=True),
            self._directory.notice(f"0_{partition}", TOPIC, timestamped=True),
            scratch / str(partition),
        )

    def close(self) -> None:
        for notice in self.notices:
            notice.close()

    def _is_open(self) -> bool:
        try:
            paths = [self._directory.notice(f"0_{p}", TOPIC, timestamped=True) for p in range(PARTITIONS)]
            self.notices = [NoticeView(path) for path in paths]
        except NotPresentError:
            return False
        return True
