"""Spark's own Python processes (sources, workers, planners) forked from one that has loaded what they need.

Spark starts some for every query, and each of them loads PySpark, Arrow and pandas: half a second of a processor. What
`PYSPARK_PYTHON` names here is a small script that asks this process, over a unix socket, to fork; the fork is the
module that Spark wants run, with Spark's environment, streams and arguments. The script stands in for it: it hands
signals on, ends as it ends, and it goes if the script is killed. Those that plan a read of a snapshot are started as
Spark does: they look for the driver among the processes above them.

As a program: that process. It ends when its socket's directory is gone or its standard input ends.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support import TESTS

_LOADED = (
    "pandas",
    "pyarrow",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "stateline.spark.connector",
    "stateline.spark.sources.embedded_source",
    "stateline.spark.reading.snapshot_reader",
    "stateline.spark.reading.change_reader",
)
_REQUEST_BYTES = 1 << 18
_WAY = "SPARK_FORKED_PYTHON"
_SCRIPT = """#!{python} -ISE
import os, signal, socket, sys
way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
path = [each for each in os.environ.get("PYTHONPATH", "").split(":") if not each.endswith(".zip")]
os.environ["PYTHONPATH"] = ":".join(path)
try:
    if sys.argv[1] != "-m" or sys.argv[3:] not in ([], ["pyspark.worker"]):
        raise OSError
    way.connect(os.environ["{way}"])
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
asked = [str(len(sys.argv) - 1), os.getcwd(), *sys.argv[1:], *(n + "=" + v for n, v in os.environ.items())]
socket.send_fds(way, ["\\0".join(asked).encode("utf-8", "surrogateescape")], [0, 1, 2])
pid = int.from_bytes(way.recv(4), "big")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
os.close(0), os.close(1)
code = int.from_bytes(way.recv(4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def forked_python(directory: Path) -> Iterator[None]:
    """Sessions that are started within take such processes. `directory` is an empty one."""
    script, way = directory / "python", directory / "way"
    script.write_text(_SCRIPT.format(python=sys.executable, way=_WAY))
    script.chmod(0o755)
    # The seed that Spark gives to all of its Python processes.
    environment = os.environ | {"PYTHONHASHSEED": "0", _WAY: str(way)}
    command = [sys.executable, "-m", __name__, str(way)]
    with subprocess.Popen(command, cwd=TESTS, env=environment, stdin=subprocess.PIPE) as origin:
        ours = {"PYSPARK_PYTHON": str(script), "PYSPARK_DRIVER_PYTHON": str(script), _WAY: str(way)}
        before = {name: os.environ.get(name) for name in ours}
        os.environ |= ours
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            assert origin.stdin is not None
            origin.stdin.close()


class _Forks:
    """The processes that were forked, by what shows that they have ended and by the connection of who asked."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._polled = select.poll()
        self._polled.register(listener, select.POLLIN)
        self._polled.register(0, select.POLLIN)
        self._connections: dict[int, tuple[socket.socket, int | None]] = {}  # → the process, once it is asked for
        self._ended: dict[int, tuple[int, int]] = {}  # pidfd → process, descriptor of the connection

    def serve(self) -> list[str]:
        """Fork for each request. Comes back in a forked process, with its request."""
        while True:
            for ready, _ in self._polled.poll():
                if ready == 0:
                    raise SystemExit  # the tests are over
                if ready == self._listener.fileno():
                    connection, _ = self._listener.accept()
                    self._connections[connection.fileno()] = connection, None
                    self._polled.register(connection, select.POLLIN)
                elif ready in self._ended:
                    self._tell_end(ready)
                elif ready in self._connections and (asked := self._hear(ready)) is not None:
                    return asked

    def _hear(self, descriptor: int) -> list[str] | None:
        connection, pid = self._connections[descriptor]
        data, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if not data:
            self._polled.unregister(descriptor)
            self._connections.pop(descriptor)[0].close()
            if pid is not None:  # who stood in for it was killed
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return None
        pid = os.fork()
        if pid == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            self._close_all(streams)
            return data.decode("utf-8", "surrogateescape").split("\0")
        for stream in streams:
            os.close(stream)
        self._connections[descriptor] = connection, pid
        connection.send(pid.to_bytes(4, "big"))
        ended = os.pidfd_open(pid)
        self._ended[ended] = pid, descriptor
        self._polled.register(ended, select.POLLIN)
        return None

    def _tell_end(self, ended: int) -> None:
        self._polled.unregister(ended)
        pid, descriptor = self._ended.pop(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection, asked_for = self._connections.get(descriptor, (None, None))
        if connection is not None and asked_for == pid:
            self._connections[descriptor] = connection, None
            with suppress(OSError):
                connection.send(code.to_bytes(4, "big", signed=True))

    def _close_all(self, streams: list[int]) -> None:
        self._listener.close()
        for other in (*streams, *self._ended, *self._connections):
            os.close(other)


def _main(way: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(way)
    listener.listen(64)  # who comes before all is loaded waits
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    for module in _LOADED:
        importlib.import_module(module)
    gc.freeze()
    count, directory, *asked = _Forks(listener).serve()
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments, environment = asked[: int(count)], asked[int(count) :]
    os.environ.clear()
    os.environ.update({name: value for name, _, value in (each.partition("=") for each in environment)})
    os.chdir(directory)
    sys.path[:1] = [directory, *filter(None, os.environ["PYTHONPATH"].split(os.pathsep))]
    sys.argv = arguments[1:]
    warnings.simplefilter("ignore", RuntimeWarning)  # that the module is loaded already
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
