"""Run a server: in this process, or in several processes behind one port.

Each of several processes has its own secondaries and its own core for Python. The parent binds the listening socket
once, and every process inherits it. So there is one queue of connections, which lives as long as the parent. A process
that dies takes along only the connections that it had accepted. With SO_REUSEPORT every process would have its own
queue, and the kernel resets the connections in it when the process dies (socket(7); `inet_csk_listen_stop` of Linux).
`accepting` gives each process its share of the queue.

Processes are started with exec, never forked, and started again with back-off when they end
(`stateline.processes.supervisor`). The parent opens no store and answers nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI

from stateline.config.settings import Config
from stateline.deployment.stores.discarding import settle_if_known
from stateline.dsl.app import App
from stateline.processes.application import scan_children
from stateline.processes.child import HAND_OVER, Child, ReadySignal
from stateline.processes.logging import json_line_writer
from stateline.processes.machine import allow_many
from stateline.processes.renewal import Renewal
from stateline.processes.run_plan import RunPlan, fixed_of_serve
from stateline.processes.seldom import seldom
from stateline.processes.supervisor import SAYS, Supervisor
from stateline.processes.terminal import Terminal
from stateline.server.contract.answer_headers import headers_of_every_answer
from stateline.server.drain import GRACE_S, DrainingServer
from stateline.server.listeners import check_files, http_listener, peer_listener, refuse_exposure
from stateline.server.main import create_app
from stateline.server.stand_in import StandIn
from stateline.server.telemetry.metrics import SHARED_DIRECTORY, share_metrics
from stateline.server.wire.accepting import ConnectionCounts
from stateline.server.wire.http_protocol import ProblemProtocol
from stateline_store import ConfigurationError

# Beyond the drain and the grace: for a process that is slow to close its stores.
_SLACK_S = 5.0
_COUNTS = "connections"  # beside the files of the metrics, which end in .db
# The event loop waits for the interpreter this long while another thread works. Python's default is 5 ms.
_SWITCH_S = 0.001

_log = logging.getLogger(__name__)


class Listening(NamedTuple):
    """Descriptors of the sockets that a server process inherits. `nodes` is None where other nodes cannot reach it."""

    clients: int
    nodes: int | None


def serve(
    app: App,
    config: Config,
    command: Sequence[str] = (),
    load: Sequence[str] = (),
    inherited: Listening | None = None,
    terminal: Terminal | None = None,
) -> None:
    """Answer HTTP for `app` until SIGTERM or SIGINT, or until SIGHUP after the `terminal` has gone.

    With `server.processes` above 1, `command` starts each of them and must call `serve_inherited`. SIGHUP restarts them
    one by one if `load` ends with 0. At `inherited` sockets, another process may answer too. HAND_OVER ends this one
    then.

    Raises `ConfigurationError` if the address cannot be listened on, if it needs tokens and has none, if certificate or
    key cannot be used, and if there is no command for several processes. Raises also what `create_app` raises.
    """
    readiness = ReadySignal()
    check_files(config)
    hands_over = inherited is not None
    if config.server_processes > 1 and not command:
        raise ConfigurationError(f"server.processes = {config.server_processes} needs `stateline serve`, or set 1.")
    # Under `stateline run`, its supervisor starts the scan processes.
    several = config.server_processes > 1 or (config.server_scan_processes > 0 and bool(command) and not hands_over)
    with http_listener(config) if inherited is None else socket.socket(fileno=inherited.clients) as listener:
        others = peer_listener(config) if inherited is None else _socket(inherited.nodes)
        with others or contextlib.nullcontext() as for_nodes:
            if several:
                _run_processes(config, listener, for_nodes, command, load, readiness, hands_over=hands_over)
                return
            with contextlib.closing(StandIn(listener, config, _log.info)) as stand_in:
                stand_in.answer(is_needed=inherited is None)  # else the parent's does

                def ready() -> None:
                    stand_in.answer(is_needed=False)
                    readiness.say()

                takes_over = readiness.takes_over
                _answer(app, config, listener, ready, takes_over, for_nodes, hands_over=hands_over, terminal=terminal)


def serve_inherited(app: App, config: Config, number: int, inherited: Listening) -> None:
    """Answer HTTP for `app` as process `number` of several, at the sockets of the parent."""
    readiness = ReadySignal()
    counts = None
    if config.server_processes > 1:
        directory = Path(os.environ[SHARED_DIRECTORY])
        share_metrics(directory, number)  # before `create_app`, which makes the metrics
        counts = ConnectionCounts(directory / _COUNTS, number)
    with socket.socket(fileno=inherited.clients) as listener:
        others = _socket(inherited.nodes)
        ready, takes_over, announces = readiness.say, readiness.takes_over, number == 0
        _answer(app, config, listener, ready, takes_over, others, counts, announces=announces, hands_over=True)


def _socket(descriptor: int | None) -> socket.socket | None:
    return None if descriptor is None else socket.socket(fileno=descriptor)


def _answer(
    app: App,
    config: Config,
    listener: socket.socket,
    ready: Callable[[], object],
    takes_over: bool,
    for_nodes: socket.socket | None,
    counts: ConnectionCounts | None = None,
    *,
    announces: bool = True,
    hands_over: bool = False,
    terminal: Terminal | None = None,
) -> None:
    refuse_exposure(config, listener.getsockname()[0])  # whoever has bound it may have had other settings
    allow_many()
    sys.setswitchinterval(_SWITCH_S)
    settle_if_known(config, app.target)
    config = config.model_copy(update={"server_port": listener.getsockname()[1]})  # 0 was any
    api = create_app(app, config, announces=announces, for_nodes=for_nodes, takes_over=takes_over)
    settings = uvicorn_settings(api, config)
    serving = api.state.serving
    for name in ("uvicorn.error", "asyncio"):  # a client can have them say the same again and again
        seldom(name)
    server = DrainingServer(
        settings,
        serving.certificates,
        serving.readiness,
        config.server_drain_ms,
        counts,
        ready=ready,
        hands_over=hands_over,
        terminal=terminal,
    )
    server.run(sockets=[listener])


def uvicorn_settings(api: FastAPI, config: Config) -> uvicorn.Config:
    proxies = config.server_forwarded_allow_ips
    return uvicorn.Config(
        api,
        log_level="warning",
        access_log=False,  # there is one of our own, which knows stores and outcomes
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        headers=headers_of_every_answer(config),
        http=ProblemProtocol,
        ws="none",  # nothing here speaks WebSocket
        log_config=None,  # its lines go where ours go, in our format
        # uvicorn's defaults trust proxies on this machine, and those of FORWARDED_ALLOW_IPS.
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies or "",
        ssl_certfile=config.server_tls_certificate_file,
        ssl_keyfile=config.server_tls_key_file,
    )


def _run_processes(
    config: Config,
    listener: socket.socket,
    for_nodes: socket.socket | None,
    command: Sequence[str],
    load: Sequence[str],
    readiness: ReadySignal,
    *,
    hands_over: bool,
) -> None:
    """Keep `server.processes` processes answering at `listener`, and to other nodes at `for_nodes`, until a signal.

    `command` gets ``--process NUMBER --listener FD``, and ``--for-nodes FD`` if there is that socket. Closes the
    listener. Raises `ConfigurationError` if a process finds a mistake of the caller's.
    """
    with tempfile.TemporaryDirectory(prefix="stateline-server-") as directory:
        ConnectionCounts.create(Path(directory) / _COUNTS, config.server_processes)
        children = _children(config, listener, for_nodes, command, directory)
        processes = _Processes(listener, children, config, readiness, hands_over=hands_over)

        def read(plan: Path) -> RunPlan:
            RunPlan.read(plan, fixed_of_serve(config), lambda child: child)
            return RunPlan(children, ())

        processes.run(Renewal(processes, load, read) if load else None)


def _children(
    config: Config, listener: socket.socket, for_nodes: socket.socket | None, command: Sequence[str], directory: str
) -> list[Child]:
    descriptor = listener.fileno()
    others = () if for_nodes is None else (for_nodes.fileno(),)
    where = ["--listener", str(descriptor), *(part for fd in others for part in ("--for-nodes", str(fd)))]
    servers = [
        Child(
            f"server-{number}",
            (*command, "--process", str(number), *where),
            environment={SHARED_DIRECTORY: directory},
            pass_fds=(descriptor, *others),
            says_ready=True,
            answers=True,
            leaves_by=HAND_OVER,  # the others take its share meanwhile
        )
        for number in range(config.server_processes)
    ]
    return [*servers, *scan_children(config, command)]


class _Processes(Supervisor):
    def __init__(
        self,
        listener: socket.socket,
        children: Sequence[Child],
        config: Config,
        readiness: ReadySignal,
        *,
        hands_over: bool,
    ) -> None:
        super().__init__(
            children,
            emit=_output_of(config),
            stop_timeout_s=config.server_drain_ms / 1000 + GRACE_S + _SLACK_S,
            listeners=[listener],
            stand_in=None if readiness.is_awaited else StandIn(listener, config, _log.info),
            takes_over=readiness.takes_over,
            hands_over=hands_over,
        )
        self._readiness = readiness
        self._listener, self._config = listener, config

    def poll(self) -> None:
        """Also tell the supervisor above when clients are answered: by all processes if they take over, else by any.
        Until then that supervisor answers them with 503."""
        super().poll()
        if self._readiness.is_awaited and (self.is_ready if self._readiness.takes_over else self.is_answered):
            self._readiness.say()
            self.stand_in = StandIn(self._listener, self._config)


def _output_of(config: Config) -> Callable[[str, str], None]:
    """Write the lines of the processes as they are. With log.format=json each gets its process's name, and text becomes
    an object."""
    origin = {"node": config.node, "application": config.application_id}
    write = json_line_writer(origin, sys.stderr) if config.log_format == "json" else _write_line

    def emit(name: str, line: str) -> None:
        if name == SAYS:
            _log.info(line)
        else:
            write(name, line)

    return emit


def _write_line(name: str, line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
