"""Spark's own Python processes (sources, workers, stateful operators) forked from one that has loaded what they need.

Spark starts some for every query, and each of them loads PySpark, Arrow and pandas: half a second of a processor. What
`PYSPARK_PYTHON` names here is a small script that asks this process, over a unix socket, to fork; the fork is the
module that Spark wants run, with Spark's environment, streams and arguments. The script stands in for it: it hands
signals on and ends as it ends; when it is killed itself, the fork ends with its streams, as its JVM does. Those that
plan a read of a snapshot are started as Spark does: they look for the driver among the processes above them.

As a program: that process, which forks as `support.processes.forked` does for commands of Stateline.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import TESTS
from support.processes.forked import fork_with

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
_WAY = "SPARK_FORKED_PYTHON"
_SCRIPT = """#!{python} -ISE
import json, os, signal, socket, sys
way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
path = [each for each in os.environ.get("PYTHONPATH", "").split(":") if not each.endswith(".zip")]
os.environ["PYTHONPATH"] = ":".join(path)
try:
    if sys.argv[1] != "-m" or sys.argv[3:] not in ([], ["pyspark.worker"]):
        raise OSError
    way.connect(os.environ["{way}"])
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
told, write_end = os.pipe()
asked = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(way, [json.dumps(asked).encode()], [0, 1, 2, write_end])
for number in (0, 1, write_end):
    os.close(number)
def said():
    return int.from_bytes(os.read(told, 4) or sys.exit("What this is forked from has ended."), "big", signed=True)
pid = said()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = said()
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
    with subprocess.Popen(command, cwd=TESTS, env=environment, stdin=subprocess.DEVNULL) as origin:
        ours = {"PYSPARK_PYTHON": str(script), "PYSPARK_DRIVER_PYTHON": str(script), _WAY: str(way)}
        before = {name: os.environ.get(name) for name in ours}
        os.environ |= ours
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            origin.terminate()


def _main(way: str) -> None:
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(way)  # who asks before all is loaded waits
    sys.argv = fork_with(_LOADED, requests)[1:]
    warnings.simplefilter("ignore", RuntimeWarning)  # that the module is loaded already
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
