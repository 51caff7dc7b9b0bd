"""`stateline` commands as processes of their own that need not load their code: they are forked from one that has.

A start costs a tenth of what it costs otherwise, where most of the processor time goes into importing. What such a
process does then is what `python -m stateline` does; that this starts is shown by the tests of the command line.
As a program: a process from which they are forked, a child of the tests' own, which ends with it. Workers have one of
their own, as all that is forked from one shares the seed of `hash`, and nothing that they agree on with servers may
come of that; so have pipelines, as nothing else needs Spark.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from support import TESTS
from support.run.ending import OWNER
from support.run.patience import HANGING_S

_LOADED = {
    "worker": ("stateline.worker.loop.run", "stateline.cli.main"),
    "pipeline": ("stateline.spark.drivers.several_pipelines", "stateline.cli.main"),
    "others": ("stateline.server.processes", "stateline.cli.main", "uvicorn.protocols.http.httptools_impl"),
}
_REQUEST_BYTES = 1 << 17

_started: list[tuple[str, Forked]] = []  # with the test that did, as `left_running` names it


class Forked:
    """A `stateline` process; has what `subprocess.Popen` has."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        typed: int | None = None,
    ) -> None:
        """Start it with these file descriptors: its output, its errors when they go elsewhere, its input if any."""
        self.returncode: int | None = None
        self.args = ["stateline", *arguments]
        self._told, write_end = os.pipe()
        request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "environment": dict(env)}).encode()
        nothing = os.open(os.devnull, os.O_RDONLY)
        streams = [nothing if typed is None else typed, output, output if errors is None else errors]
        of = arguments[0] if arguments and arguments[0] in _LOADED else "others"
        socket.send_fds(_origin(of), [request], [*streams, write_end])
        os.close(write_end)
        os.close(nothing)
        self.pid = int.from_bytes(os.read(self._told, 4), "big")
        assert self.pid, "the process that others are forked from has ended"
        _started.append((env.get(OWNER, ""), self))

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            polled = select.poll()
            polled.register(self._told, select.POLLIN)
            if polled.poll(None if timeout_s is None else timeout_s * 1000):
                code = os.read(self._told, 4)
                assert code, "the process that others are forked from has ended, and nobody knows how this one did"
                self.returncode = int.from_bytes(code, "big", signed=True)
                os.close(self._told)
        return self.returncode


def run(
    arguments: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str], typed: str | bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the working directory: as `subprocess.run` with its output captured."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(typed.encode() if isinstance(typed, str) else typed)
        given.seek(0)
        streams = {"output": output.fileno(), "errors": errors.fileno(), "typed": given.fileno()}
        process = Forked([os.fspath(each) for each in arguments], cwd=Path.cwd(), env=env, **streams)
        code = process.wait(HANGING_S)
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, code, output.read().decode(), errors.read().decode())


def end_those_of(owner: str) -> None:
    """Kill what this test has started: what it is forked from has no mark of a test in its environment."""
    for its_owner, process in _started:
        if its_owner == owner:
            process.kill()


@functools.cache
def _origin(of: str) -> socket.socket:
    """The way to the process that has loaded what these need; it is started when it is asked for first."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(its.fileno()), of]
    environment = {name: value for name, value in os.environ.items() if name not in (OWNER, "PYTHONHASHSEED")}
    subprocess.Popen(command, cwd=TESTS, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    its.close()
    return ours


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a process for each request and say how it ended. Comes back in a forked process, with its request."""
    told: dict[int, tuple[int, int]] = {}  # what shows that a process has ended → its id, and whom to tell
    polled = select.poll()
    polled.register(requests, select.POLLIN)
    while True:
        for ready, _ in polled.poll():
            if ready in told:
                polled.unregister(ready)
                pid, write_end = told.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(write_end, code.to_bytes(4, "big", signed=True))
                os.close(write_end)
                os.close(ready)
                continue
            data, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
            if not data:
                raise SystemExit  # the tests are over
            *streams, write_end = files
            pid = os.fork()
            if pid == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for other in (*files, *told, *(fd for _, fd in told.values())):
                    os.close(other)
                requests.close()
                return dict(json.loads(data))
            for stream in streams:
                os.close(stream)
            _tell(write_end, pid.to_bytes(4, "big"))
            ended = os.pidfd_open(pid)
            told[ended] = pid, write_end
            polled.register(ended, select.POLLIN)


def _tell(write_end: int, number: bytes) -> None:
    with suppress(BrokenPipeError):  # who asked has ended
        os.write(write_end, number)


def fork_with(modules: Sequence[str], requests: socket.socket) -> list[str]:
    """Load these modules, then fork a process for each request. Comes back in a forked process, which is where its
    request says, with its arguments. A request is one message: ``{"arguments", "cwd", "environment"}`` as JSON, and the
    descriptors of input, output and errors, and of a pipe that is told the process id (u32, big-endian) and, once it
    has ended, the exit code (i32). An empty one, or the end, is the end of this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end it, and not before they are over
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    request = _serve(requests)
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return list(request["arguments"])


def _main(requests: socket.socket, of: str) -> int:
    """Go on as `python -m stateline` would have begun; the exit code."""
    arguments = fork_with(_LOADED[of], requests)
    importlib.import_module("support.processes.hosts").move_in()
    importlib.reload(importlib.import_module("stateline_store.steps"))  # it reads the environment once
    return int(importlib.import_module("stateline.cli.main").main(arguments))


if __name__ == "__main__":
    sys.exit(_main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
