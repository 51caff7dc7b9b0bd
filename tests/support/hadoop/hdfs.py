"""A real HDFS for tests: a name node and a data node in one process of its own, their data in a folder of the test's.

It needs `java` and `mvn`; the jars are fetched once, into `.cache`.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.kafka.maven import JarsUnavailableError, jars
from support.processes.ports import free_port
from support.run.patience import HANGING_S

_CLUSTER = "org.apache.hadoop.test.MiniDFSClusterManager"
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def hdfs_jars() -> Path:
    """The folder of its jars. Raises `JarsUnavailableError` where it cannot run."""
    if shutil.which("java") is None:
        raise JarsUnavailableError("HDFS needs 'java', which is not on the PATH.")
    return jars(Path(__file__).with_name("pom.xml"), "hdfs-3.5.0")


@contextmanager
def hdfs(libraries: Path, folder: Path, http_port: int = 0) -> Iterator[str]:
    """Its URL, as long as the block runs. `http_port` is that of its REST API."""
    folder.mkdir(parents=True, exist_ok=True)
    ready, port = folder / "ready.json", free_port()
    options = [f"-D{name}={folder}" for name in ("hadoop.tmp.dir", "test.build.data")]
    arguments = ["-nnport", str(port), "-httpport", str(http_port), "-datanodes", "1"]
    arguments += ["-format", "-writeDetails", str(ready)]
    settings = ["-D", "dfs.replication=1", "-D", f"hadoop.tmp.dir={folder}"]
    with (folder / "hdfs.log").open("wb") as said:
        process = subprocess.Popen(
            [*_JAVA, *options, "-cp", f"{libraries}/*", _CLUSTER, *arguments, *settings],
            stdout=said, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + HANGING_S
        while not (ready.exists() and ready.read_text()):
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"HDFS did not start: {(folder / 'hdfs.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
