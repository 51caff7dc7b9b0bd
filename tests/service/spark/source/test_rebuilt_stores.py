"""A store that is lost with its worker and made anew by the next one, while a job reads a snapshot of it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import httpx
from pyspark.sql import SparkSession

from service.spark.source.scenes import gated_read, read
from stateline.log import open_log
from support.oracles.crash_watch import start_worker
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce


class Rebuilding:
    """A worker and a server, each a process; the worker's stores are lost, and made anew by the next one."""

    def __init__(self, root: Path) -> None:
        self.run, self._root = uuid4().hex[:8], root
        self._settings = [f"bootstrap.servers=embedded:{root / 'log.db'}", f"state.dir={root / 'state'}"]
        self._settings += [f"server.port={(port := free_port())}", "commit.interval.ms=20", "group.instance.id=worker"]
        self.url, self._log = f"http://127.0.0.1:{port}", open_log(f"embedded:{root / 'log.db'}", root)
        create(self._log, {f"numbers-{self.run}": 2, f"tenths-{self.run}": 2})
        self._worker = start_worker(self.run, self._settings, root / "output.log")
        self._server = start_worker(self.run, self._settings, root / "output.log", command="serve")
        self.expected: dict[str, int] = {}

    def write(self, value: int, count: int) -> None:
        """This value of so many keys; comes back when it is served."""
        self.expected |= {f"k{number}": value for number in range(count)}
        data = value.to_bytes(8, "big")
        produce(self._log, f"numbers-{self.run}", [(b"k%d" % number, data, 1) for number in range(count)])
        wait_until(self._is_served, 60)

    def lose_stores(self) -> None:
        """The worker dies, an operator deletes what it has kept, another one starts."""
        self._worker.kill()
        self._worker.wait()
        for store in (self._root / "state" / f"crashes-{self.run}").glob("*_*/rocksdb/*"):
            shutil.rmtree(store)
        self._worker = start_worker(self.run, self._settings, self._root / "output.log")

    def close(self) -> None:
        for process in (self._worker, self._server):
            process.kill()
            process.wait()
        self._log.close()

    def _is_served(self) -> bool:
        given: dict[str, str | int] = {"isolation_level": "read_committed", "limit": 10_000}
        try:
            answer = httpx.get(f"{self.url}/v1/stores/newest/range", params=given)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and {e["key"]: e["value"] for e in answer.json()["entries"]} == self.expected


def test_a_snapshot_stays_what_it_was_while_its_store_is_rebuilt(session: SparkSession, tmp_path: Path) -> None:
    with closing(Rebuilding(tmp_path)) as scene:
        scene.write(1, 9_000)
        frame, before = read(session, scene.url, "newest", ttl_s=600), dict(scene.expected)

        def rebuild() -> None:
            scene.lose_stores()
            scene.write(2, 5_000)

        assert sorted(gated_read(frame, tmp_path, rebuild)) == sorted(before)
        assert {row.key: row.value for row in frame.collect()} == before
        assert {row.key: row.value for row in read(session, scene.url, "newest").collect()} == scene.expected
