"""A state directory that the operating system refuses: told by path below it, once in the log, and mended at once.

The tests may run as root, whom no permission stops; a symbolic link to itself stops everybody.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from stateline import serdes
from stateline_store import Layout
from stateline_store.rocksdb.engine import RocksDBEngine
from support.processes.query_server import OwningWorker, make_app, server_process, wait_until
from support.processes.served_here import http_server
from support.rocksdb import offsets_of

UNCOMMITTED = {"isolation_level": "read_uncommitted"}
LEVEL = "default.state.isolation.level=read_committed"


def block(path: Path) -> Path:
    """Make it unreadable; where it went."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    path.symlink_to(path.name)
    return aside


def unblock(path: Path, aside: Path) -> None:
    path.unlink()
    aside.rename(path)


def shown(path: Path, state_dir: Path) -> str:
    """The path as an answer has it: only where it is in the state directory."""
    return f"<state.dir>/{path.relative_to(state_dir)}"


def refusal(response: httpx.Response) -> str:
    assert (response.status_code, response.json()["reason"]) == (503, "NOT_READY")
    assert response.headers["retry-after"]
    return str(response.json()["detail"])


@pytest.mark.parametrize("name", ["topology.json", "0_1/aircraft-v2.notice"])
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, name: str) -> None:
    worker = OwningWorker(tmp_path)
    path = worker.application / name
    aside = block(path)
    with http_server(tmp_path, LEVEL) as client:
        assert shown(path, tmp_path) in refusal(client.get("/v1/stores/aircraft/range"))
        assert any(shown(path, tmp_path) in reason for reason in client.get("/readyz").json()["reasons"])
        unblock(path, aside)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/v1/stores/aircraft/range").status_code == 200
    worker.close()


def test_instances_that_may_not_be_read_are_told_and_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = OwningWorker(tmp_path)
    instances = worker.application / "instances"
    aside = block(instances)
    with server_process(tmp_path, LEVEL) as client:
        assert shown(instances, tmp_path) in refusal(client.get("/v1/stores/aircraft/range", params=UNCOMMITTED))
        assert shown(instances, tmp_path) in refusal(client.get("/v1/instances"))
        wait_until(lambda: any(shown(instances, tmp_path) in why for why in client.get("/readyz").json()["reasons"]))
        assert client.get("/v1/stores/aircraft/range").status_code == 200
        unblock(instances, aside)
        wait_until(lambda: client.get("/readyz").status_code == 200)
    logged = capfd.readouterr().err
    assert logged.count(str(instances)) == 1
    assert "Traceback" not in logged
    worker.close()


@pytest.mark.parametrize(
    ("row", "value", "said"),
    [
        (b"layout", b'{"kind": "bitemporal"}', "has a store of kind 'bitemporal'"),
        (b"layout", Layout("window", timestamped=True, segment_interval_ms=60_000).encode(), "holds a window store"),
    ],
)
def test_a_store_of_a_newer_format_or_another_kind_is_not_answered_from(
    tmp_path: Path, row: bytes, value: bytes, said: str
) -> None:
    worker = OwningWorker(tmp_path)
    directory = worker.application / "0_1" / "rocksdb" / "aircraft-v2"
    worker.close()
    engine = RocksDBEngine(directory, layout=Layout("key_value", timestamped=True))
    offsets_of(engine)[row] = value
    engine.close()
    with http_server(tmp_path, LEVEL) as client:
        for path in ("range", "count"):
            assert said in refusal(client.get(f"/v1/stores/aircraft/{path}"))
        assert any(said in reason for reason in client.get("/readyz").json()["reasons"])


def test_a_worker_that_runs_under_another_declaration_is_not_believed(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path, app=make_app(serdes.int64))
    worker.put("a", 4, partition=1)
    worker.commit()
    with http_server(tmp_path, LEVEL) as client:
        for store in ("aircraft", "cache"):
            for path in ("keys/a", "range"):
                for level in ("read_committed", "read_uncommitted"):
                    told = refusal(client.get(f"/v1/stores/{store}/{path}", params={"isolation_level": level}))
                    assert "values of int64" in told, (store, path, level)
                    assert "values of json" in told, (store, path, level)
    worker.close()
