"""Places for backups: a directory, a server of S3's API, a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.processes.ports import free_port


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server of S3's API, with the bucket ``states``."""
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
    if getattr(request, "param", "directory") == "directory":
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
