"""A standalone Spark cluster on this machine: a master and workers, as processes of a test's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from stateline.processes.machine import free_bytes
from stateline.spark import session
from support.processes.ports import free_port
from support.run.length import long_or_short
from support.run.patience import HANGING_S
from support.spark.spark_archive import class_archive

_SPARK = Path(pyspark.__file__).parent
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
# Many JVMs start in such a test: the compiler that starts quickest, and the collector that does.
_LOG4J = Path(session.__file__).with_name("log4j2.properties").as_uri()
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
WORKERS = long_or_short(2, 1)
NEEDED_BYTES = (1 + WORKERS) << 30  # master, workers, an executor of each, the driver
RUNS_HERE = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer, and there is no java here."),
    pytest.mark.skipif(
        (free_bytes() or 0) < NEEDED_BYTES,
        reason=f"A cluster on this machine needs {NEEDED_BYTES >> 30} GB of free memory.",
    ),
]
"""Marks of tests that need a cluster."""


@contextmanager
def standalone(directory: Path, workers: int = WORKERS) -> Iterator[str]:
    """The address of a master with so many workers of one core and 512 MB each; logs and work lie in `directory`."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    processes = [_start(directory, "master", _MASTER, ["--port", str(port), "--webui-port", "0"])]
    try:
        for number in range(workers):
            size = ["--cores", "1", "--memory", "512M", "--webui-port", "0", "--work-dir", str(directory / "work")]
            processes.append(_start(directory, f"worker-{number}", _WORKER, [*size, url]))
        _await(directory / "master.log", "Registering worker", workers, processes)
        yield url
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a worker's executors are of its group
            process.wait()


def submit(script: Path, arguments: Sequence[str], master: str, conf: Sequence[str], path: Sequence[str]) -> list[str]:
    """The command that submits a Python script to this master; executors find modules on this path."""
    jvm = f"{_jvm_options()} -Dlog4j2.configurationFile={_LOG4J}"
    java = [f"spark.{who}.extraJavaOptions={jvm}" for who in ("driver", "executor")]
    given = [f"spark.executorEnv.PYTHONPATH={os.pathsep.join(path)}", *java, *conf]
    options = [part for setting in given for part in ("--conf", setting)]
    return [str(_SPARK / "bin" / "spark-submit"), "--master", master, *options, str(script), *arguments]


def environment(path: Sequence[str]) -> dict[str, str]:
    """What every process of the cluster, and who submits to it, runs in: this machine alone, this Python."""
    python = long_or_short(sys.executable, session.local_python())  # executors elsewhere have Spark's zip
    return os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _jvm_options(),
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }


def _jvm_options() -> str:
    """What makes a JVM start quicker: less than half of its time with the class archive that drivers have, too."""
    return f"{_JVM_OPTIONS} -XX:SharedArchiveFile={class_archive()} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _start(directory: Path, name: str, main: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [str(_SPARK / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments]
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment([]), cwd=directory, start_new_session=True
        )


def _await(log: Path, text: str, times: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline_s = time.monotonic() + HANGING_S
    while (said := log.read_text(errors="replace")).count(text) < times:
        assert time.monotonic() < deadline_s, f"the cluster did not come up in time: {said[-2000:]}"
        assert all(process.poll() is None for process in processes), f"a process of the cluster ended: {said[-2000:]}"
        time.sleep(0.05)
