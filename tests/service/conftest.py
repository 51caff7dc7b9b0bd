"""One worker for a module's tests, of a server and of its client; each test uses keys of its own. Places for
backups."""

from __future__ import annotations

from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import httpx
import pytest

from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.processes.ports import free_port
from support.processes.query_server import OwningWorker


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="module")
def worker(state_dir: Path) -> Iterator[OwningWorker]:
    worker = OwningWorker(state_dir)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server of S3's API, with the bucket ``states``."""
    from moto.server import ThreadedMotoServer  # slow to load

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(scope="module")
def web_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real HDFS's REST API."""
    port = free_port()
    with hdfs(needed(hdfs_jars), tmp_path_factory.mktemp("hdfs"), port):
        yield f"127.0.0.1:{port}"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place for backups: a directory, a server of S3's API, or a real HDFS."""
    if getattr(request, "param", "directory") == "directory":
        (tmp_path / "backups").mkdir()
        return str(tmp_path / "backups")
    if request.param == "hdfs":
        return f"webhdfs://{getuser()}@{request.getfixturevalue('web_hdfs')}/{tmp_path.name}/states"
    endpoint = request.getfixturevalue("s3")
    bucket = tmp_path.name.replace("_", "-").lower()
    assert httpx.put(f"{endpoint}/{bucket}").status_code == httpx.codes.OK
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/states"
