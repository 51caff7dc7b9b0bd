"""Nodes of one application, each on a host of its own (`hosts`): a worker and a server as processes, and a way to
Kafka that can be cut.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from support import TESTS
from support.kafka.commit_proxy import CommitProxy
from support.processes.forked import Forked
from support.processes.hosts import Host, Network
from support.run.patience import HANGING_S

_HTTP, _PEER = 8000, 8001
_PRINTED_CHARACTERS = 10_000
_ENDS_WITHIN_S = 120.0


class EndedByItselfError(AssertionError):
    """A process has ended that nobody ended, and it was none that `may_end` so."""


def may_end(what: str, code: int) -> bool:
    """Whether this (`serve`, `worker`) may end so by itself: a worker gives up while Kafka is away, with exit code 1,
    and its supervisor goes on trying (docs/operations/kafka.md). A server runs on, and nothing is ended by a signal."""
    return what == "worker" and code == 1


class Node:
    """One of them. Nothing runs before `start`."""

    def __init__(
        self, host: Host, root: Path, broker_port: int, settings: list[str], app: str, variables: Mapping[str, str]
    ) -> None:
        self.name, self.host, self.app = host.name, host, app
        self._variables = {**host.environment, **variables}
        self.url = f"http://{host.address}:{_HTTP}"
        self.kafka = CommitProxy(broker_port, host.listener(broker_port))
        self.processes: dict[str, Forked] = {}
        self.state_directory = root / host.name
        self.keys = root / "keys"
        self._log = root / f"{host.name}.log"
        self._log.touch()
        self._lock = threading.RLock()
        self._away: list[list[float]] = [[0.0, math.inf]]
        self.settings = [
            *settings,
            f"bootstrap.servers=127.0.0.1:{broker_port}",
            f"state.dir={self.state_directory}",
            f"node.name={host.name}",
            f"server.host={host.address}",
            f"server.port={_HTTP}",
            "server.insecure=true",
            f"node.peer.listen={host.address}:{_PEER}",
            f"node.peer.tls.certificate.file={self.keys / host.name}.pem",
            f"node.peer.tls.key.file={self.keys / host.name}.key",
            f"node.peer.tls.ca.file={self.keys / 'ca.pem'}",
        ]

    def start(self, *what: str, app: str | None = None, **variables: str) -> None:
        """Its server and its worker, or one of them; `app` other than its own, and variables of the environment."""
        for command in what or ("serve", "worker"):
            words = [command, app or self.app, *(word for each in self.settings for word in ("--set", each))]
            environment = {**os.environ, **self._variables, **variables}
            with self._log.open("ab") as file:
                self.processes[command] = Forked(words, cwd=TESTS, env=environment, output=file.fileno())

    def until_it_answers(self) -> None:
        """Wait until its server answers; from then on it is meant to."""
        deadline = time.monotonic() + HANGING_S
        while not self._answers():
            assert time.monotonic() < deadline, self.printed()
            assert self.processes["serve"].poll() is None, self.printed()
            time.sleep(0.05)
        back_s = time.monotonic()
        for away in self._away:
            away[1] = min(back_s, away[1])

    def send(self, number: signal.Signals, *what: str) -> None:
        """To both, or to one of them."""
        for command in what or tuple(self.processes):
            self.processes[command].send_signal(number)

    def pause(self) -> None:
        """Both hang until `go_on`."""
        self._goes_away()
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        self.send(signal.SIGCONT)
        self.until_it_answers()

    def end(self, number: signal.Signals = signal.SIGKILL, *what: str) -> None:
        """Both, or one of them, and waits for it."""
        with self._lock:
            ending = what or tuple(self.processes)
            if "serve" in ending:
                self._goes_away()
            self.send(number, *ending)
            for each in ending:
                try:
                    self.processes.pop(each).wait(_ENDS_WITHIN_S)
                except subprocess.TimeoutExpired as error:
                    raise AssertionError(f"{each} of {self.name} does not end: {self.printed()}") from error

    def keep_running(self) -> list[str]:
        """Start a worker again that has given up; which one, and what was said last. Raises `EndedByItselfError`."""
        with self._lock:
            ended = {what: code for what, process in self.processes.items() if (code := process.poll()) is not None}
            if not all(may_end(what, code) for what, code in ended.items()):
                raise EndedByItselfError(f"{ended}: {self.printed()}")
            said = self._log.read_text(errors="replace").splitlines()[-1:] if ended else []
            for what in ended:
                self.start(what)
        return [f"{what} of {self.name}: {' '.join(said)[:200]}" for what in ended]

    def exit_code(self) -> int | None:
        """How its server has ended; None while it runs. Comes back in a moment."""
        with self._lock, suppress(subprocess.TimeoutExpired, KeyError):
            return self.processes["serve"].wait(1)
        return None

    def was_there(self, since: float, until: float) -> bool:
        """Whether its server was meant to answer all of this time (`time.monotonic`)."""
        return not any(went <= until and since <= back for went, back in self._away)

    @property
    def is_there(self) -> bool:
        """Whether its server is meant to answer."""
        return all(back < math.inf for _, back in self._away)

    def printed(self) -> str:
        """The last of what its processes have said."""
        return f"---- {self.name}\n{self._log.read_text(errors='replace')[-_PRINTED_CHARACTERS:]}"

    def said(self, what: str) -> int:
        """How often its processes have said this."""
        return self._log.read_text(errors="replace").count(what)

    def close(self) -> None:
        if self.processes:
            self.send(signal.SIGCONT)
            self.end()
        self.kafka.close()

    def _goes_away(self) -> None:
        if self.is_there:
            self._away.append([time.monotonic(), math.inf])

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


def make_nodes(
    network: Network, names: list[str], root: Path, broker_port: int, settings: list[str], app: str, **variables: str
) -> Mapping[str, Node]:
    """Nodes of these names, with certificates of an authority of their own, and these variables in the environment."""
    make_keys(root / "keys", names)
    return {name: Node(network.host(name), root, broker_port, settings, app, variables) for name in names}


def make_keys(directory: Path, names: list[str]) -> None:
    """``ca.pem``, and a certificate and a key of each name, signed by it."""
    directory.mkdir()
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = str(directory / "ca.key"), str(directory / "ca.pem")
    _openssl("req", "-x509", *curve, "-subj", "/CN=nodes", "-keyout", authority[0], "-out", authority[1])
    for name in names:
        key, certificate = str(directory / f"{name}.key"), str(directory / f"{name}.pem")
        made_out = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
        made_out += ["-addext", "basicConstraints=critical,CA:FALSE"]
        signed = ["-CA", authority[1], "-CAkey", authority[0]]
        _openssl("req", "-x509", *curve, *made_out, *signed, "-keyout", key, "-out", certificate)


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
