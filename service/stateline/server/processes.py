"""Several server processes behind one port: each has secondaries of its own, and a core of its own to run Python on.

The parent binds the listening socket once and every process inherits it. So there is one queue of connections, which
lives as long as the parent: a process that dies takes along only the connections that it had accepted, and those that
wait go to the others, or to its successor. With SO_REUSEPORT every process would have a queue of its own, and the
kernel resets what waits in it when the process dies (socket(7); `inet_csk_listen_stop` of Linux). That each process
takes its share of the queue is up to `accepting`.

Processes are started anew with exec, never forked off, and started again with back-off when they end: see
`stateline.processes.supervisor`. The parent opens no store and answers nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stateline.config.settings import Config
from stateline.processes.child import HAND_OVER, Child, ReadySignal
from stateline.processes.logging import json_line_writer
from stateline.processes.renewal import Renewal
from stateline.processes.run_plan import RunPlan, fixed_of_serve
from stateline.processes.supervisor import SAYS, Supervisor
from stateline.server.drain import GRACE_S
from stateline.server.stand_in import StandIn
from stateline.server.telemetry.metrics import SHARED_DIRECTORY, share_metrics
from stateline.server.wire.accepting import ConnectionCounts

# Beyond the drain and the grace: for a process that is slow to let go of its stores.
_SLACK_S = 5.0
_COUNTS = "connections"  # beside the files of the metrics, which end in .db

_log = logging.getLogger(__name__)


def run_processes(
    config: Config,
    listener: socket.socket,
    for_nodes: socket.socket | None,
    command: Sequence[str],
    load: Sequence[str],
    *,
    readiness: ReadySignal,
    hands_over: bool,
) -> None:
    """Keep `server.processes` processes answering at `listener` until SIGTERM or SIGINT, which stops all of them, and
    other nodes at `for_nodes`, if there is such a socket.

    `command` starts one; it gets ``--process NUMBER --listener FD`` behind it, and ``--for-nodes FD`` if there is that,
    and calls `inherit`. SIGHUP starts one after the other anew, when `load` has found that the code can be loaded, and
    has written a `RunPlan` (`Renewal`). `readiness` is told when all of them answer; with `hands_over` HAND_OVER ends
    this process.

    Closes the listener. Raises `ConfigurationError` when a process finds a mistake of the caller's.
    """
    with tempfile.TemporaryDirectory(prefix="stateline-server-") as directory:
        ConnectionCounts.create(Path(directory) / _COUNTS, config.server_processes)
        children = _children(config, listener, for_nodes, command, directory)
        processes = _Processes(listener, children, config, readiness, hands_over=hands_over)

        def read(plan: Path) -> RunPlan:
            RunPlan.read(plan, fixed_of_serve(config), lambda child: child)
            return RunPlan(children, ())

        processes.run(Renewal(processes, load, read) if load else None)


class Inherited(NamedTuple):
    """What one of several processes has from its parent."""

    listener: socket.socket
    counts: ConnectionCounts


def inherit(number: int, descriptor: int) -> Inherited:
    """As process number `number`, take what the parent shares. Before `create_app`, which makes the metrics."""
    directory = Path(os.environ[SHARED_DIRECTORY])
    share_metrics(directory, number)
    return Inherited(socket.socket(fileno=descriptor), ConnectionCounts(directory / _COUNTS, number))


def _children(
    config: Config,
    listener: socket.socket,
    for_nodes: socket.socket | None,
    command: Sequence[str],
    directory: str,
) -> list[Child]:
    descriptor = listener.fileno()
    others = () if for_nodes is None else (for_nodes.fileno(),)
    where = ["--listener", str(descriptor), *(part for fd in others for part in ("--for-nodes", str(fd)))]
    return [
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
            stand_in=None if readiness.is_awaited else StandIn(listener, config, _say),
            takes_over=readiness.takes_over,
            hands_over=hands_over,
        )
        self._readiness = readiness
        self._listener, self._config = listener, config

    def poll(self) -> None:
        """Besides, tell who waits when clients are answered: by all of them where they take over, else by anybody. Who
        waits stands in until then."""
        super().poll()
        if self._readiness.is_awaited and (self.is_ready if self._readiness.takes_over else self.is_answered):
            self._readiness.say()
            self.stand_in = StandIn(self._listener, self._config)


def _say(line: str) -> None:
    _log.info("%s", line)


def _output_of(config: Config) -> Callable[[str, str], None]:
    """Lines of the processes as they are: they have their time, and an access log is read by programs. With JSON they
    have their process's name, and a crash's lines of text become objects as well."""
    origin = {"node": config.node, "application": config.application_id}
    write = json_line_writer(origin, sys.stderr) if config.log_format == "json" else _write_line

    def emit(name: str, line: str) -> None:
        if name == SAYS:
            _say(line)
        else:
            write(name, line)

    return emit


def _write_line(name: str, line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
