"""A real Schema Registry for tests: Apicurio Registry in a process of its own, its schemas in memory.

It speaks the API of Confluent's under ``/apis/ccompat/v7``. It needs `java` and `mvn`; what Maven has of it is fetched
once, into `.cache`.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support import CACHE
from support.kafka.maven import JarsUnavailableError, jars, one_at_a_time
from support.processes.ports import free_port
from support.run.patience import HANGING_S

_VERSION = "apicurio-registry-2.6.13"
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def unpacked() -> Path:
    """Its jar, which others lie beside. Raises `JarsUnavailableError` where it cannot run."""
    if shutil.which("java") is None:
        raise JarsUnavailableError("A Schema Registry needs 'java', which is not on the PATH.")
    packed = jars(Path(__file__).with_name("pom.xml"), f"{_VERSION}/packed")
    folder = CACHE / _VERSION / "unpacked"
    with one_at_a_time("schema-registry"):
        if not folder.is_dir():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
                archive.extractall(unfinished, filter="data")
            unfinished.rename(folder)
    return next(folder.glob("*-runner.jar"))


@contextmanager
def schema_registry(jar: Path, folder: Path) -> Iterator[str]:
    """Its URL, as long as the block runs; what it says is written into the folder."""
    port = free_port()
    options = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}")
    with (folder / "registry.log").open("wb") as said:
        process = subprocess.Popen([*_JAVA, *options, "-jar", str(jar)], stdout=said, stderr=said, cwd=folder)
    try:
        url, deadline_s = f"http://127.0.0.1:{port}/apis/ccompat/v7", time.monotonic() + HANGING_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"The registry did not start: {(folder / 'registry.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/subjects").is_success
    except httpx.TransportError:
        return False
