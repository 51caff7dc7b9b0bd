"""Large reads for another node run in the scan process of the node that has the rows. If it is killed, these reads end,
and nothing else notices.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from stateline.log.kafka import KafkaLog
from support.kafka.kafka_broker import KafkaBroker
from support.processes import hosts
from support.processes.host_nodes import Node, make_nodes
from support.processes.hosts import network
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce
from support.processes.serve_process import arguments_of, descendants_of
from support.run.length import long_only, long_or_short
from support.run.patience import HANGING_S

MISSING = hosts.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
ROWS = long_or_short(12_000, 2_000)
STREAM = "/v1/stores/counts/range?format=ndjson"
# So many rows of so many bytes are in no buffers between the nodes: an answer has not ended when it begins.
LARGE_ROWS, LARGE_BYTES = 600, 100_000
LARGE_STREAM = "/v1/stores/newest/range?format=ndjson"
SETTINGS = [
    "default.state.isolation.level=read_committed",
    "commit.interval.ms=200",
    "session.timeout.ms=10000",
    "server.scan.processes=1",
]


@dataclass
class Scene:
    """Node one is asked, and node two has half of the rows."""

    one: Node
    two: Node
    client: httpx.Client
    send: Callable[[list[tuple[bytes, bytes, int]]], object]

    def scans(self, node: Node) -> int | None:
        """The id of its scan process, if it runs."""
        serve = node.processes["serve"].pid
        return next((pid for pid in descendants_of(serve) if "--scans" in arguments_of(pid)), None)

    def sockets(self, node: Node) -> set[Path]:
        """Where its scan processes listen, and have listened."""
        return {*node.state_directory.glob("changes-*/servers/*.scans-1.sock")}

    @contextmanager
    def until_again(self) -> Iterator[int]:
        """Give the id of the scan process of node two to kill, and wait until another one listens."""
        pid, killed = self.scans(self.two), self.sockets(self.two)
        assert pid is not None
        yield pid
        wait_until(lambda: bool(self.sockets(self.two) - killed), HANGING_S)

    def owners(self) -> set[str]:
        """Where the owners of the partitions are."""
        return {*self.client.get("/v1/nodes").json()["stores"].get("counts", {}).values()}

    def rows(self) -> int:
        return self.client.get(STREAM).text.count("\n")

    def sql(self, sql: str) -> httpx.Response:
        return self.client.post("/v1/sql", json={"sql": sql, "details": "all", "max_age_ms": 0})

    def answered_there(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """An answer that the scan process of node two makes: while it is stopped, none comes."""
        pid, asked = self.scans(self.two), list[httpx.Response]()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        thread = threading.Thread(target=lambda: asked.append(ask()))
        try:
            thread.start()
            thread.join(1.0)
            assert not asked, asked[0].text
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join()
        return asked[0]


@pytest.fixture(scope="module")
def scene(kafka_broker: KafkaBroker) -> Iterator[Scene]:
    with ExitStack() as stack:
        root, run = Path(stack.enter_context(TemporaryDirectory(prefix="sl-"))), uuid4().hex[:8]
        net = stack.enter_context(network(root))
        log = stack.enter_context(closing(KafkaLog(kafka_broker.bootstrap_servers)))
        create(log, {f"in-{run}": 2})
        produce(log, f"in-{run}", [(b"k%05d" % n, b"1", 1_000_000 + n) for n in range(ROWS)])
        port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
        nodes = make_nodes(net, ["one", "two"], root, port, SETTINGS, "support.apps.changes_app:app", CHANGES_RUN=run)
        one, two = nodes.values()
        for node in (one, two):
            stack.callback(node.close)
            node.start()
        for node in (one, two):
            node.until_it_answers()
        client = stack.enter_context(httpx.Client(base_url=one.url, timeout=HANGING_S, trust_env=False))
        made = Scene(one, two, client, partial(produce, log, f"in-{run}"))
        try:
            wait_until(lambda: all(map(made.sockets, (one, two))), HANGING_S)
            wait_until(lambda: made.owners() == {one.url, two.url}, HANGING_S)
            wait_until(lambda: made.rows() == ROWS, HANGING_S)
            yield made
        except BaseException as error:
            error.add_note(one.printed() + two.printed())
            raise


@pytest.mark.parametrize(
    "path",
    [
        STREAM,
        "/v1/stores/counts/range?format=arrow",
        "/v1/stores/counts/count?exact=true",
        "/v1/stores/windows/windows?format=ndjson&from=0&to=2000000",
    ],
)
def test_what_reads_many_rows_is_answered_by_the_scan_process_of_the_node_that_has_them(
    scene: Scene, path: str
) -> None:
    answer = scene.answered_there(lambda: scene.client.get(path))
    assert answer.status_code == 200, answer.text
    if path == STREAM:
        assert answer.text.count("\n") == ROWS
    if "arrow" in path:
        assert pa.ipc.open_stream(answer.content).read_all().num_rows == ROWS


@pytest.mark.parametrize(
    ("sql", "is_cut"),
    [
        ("select count(*) as n from counts", False),
        ("select count(*) as n from counts c join newest n using (key)", True),
        ("select count(*) as n from history_versions", True),
        ("select count(*) as n from memory m join counts c using (key)", False),
    ],
)
def test_tables_of_sql_are_read_there_too(scene: Scene, sql: str, is_cut: bool) -> None:
    answer = scene.answered_there(lambda: scene.sql(sql))
    assert answer.status_code == 200, answer.text
    assert (answer.json()["rows"], answer.json()["cut"]) == ([{"n": ROWS}], is_cut)


@pytest.mark.parametrize("path", ["/v1/stores/counts/keys/k00001", "/v1/stores/counts/range?limit=10"])
def test_small_reads_do_not_need_it(scene: Scene, path: str) -> None:
    pid = scene.scans(scene.two)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert scene.client.get(path).status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)


@long_only("test_large_reads.py kills the scan process of the server that is asked")
def test_reads_that_are_killed_there_end_and_others_do_not_notice(scene: Scene) -> None:
    large = json.dumps("x" * LARGE_BYTES).encode()
    scene.send([(b"k%05d" % n, large, 2_000_000 + n) for n in range(LARGE_ROWS)])
    written = "select count(*) as n from newest where length(value::varchar) >= 100000"
    wait_until(lambda: scene.sql(written).json().get("rows") == [{"n": LARGE_ROWS}], HANGING_S)
    refused, as_they_are = list[int](), {"Accept-Encoding": "identity"}
    asked = scene.client.stream("GET", LARGE_STREAM, headers=as_they_are)
    with asking(scene, refused), scene.until_again() as pid, asked as answer:
        pieces = answer.iter_raw(4_096)
        next(pieces)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in pieces:
                pass
        assert scene.rows() == ROWS, "the server answers until the process is there again"
    assert refused == []
    again = scene.answered_there(lambda: scene.client.get(STREAM))
    assert again.text.count("\n") == ROWS


@long_only("test_sql_kills.py kills the scan process of the server that is asked")
def test_a_statement_that_is_killed_there_can_be_asked_again(scene: Scene) -> None:
    asked = list[httpx.Response]()
    join = "select count(*) as n from counts c join newest n using (key)"
    with scene.until_again() as pid:
        os.kill(pid, signal.SIGSTOP)
        thread = threading.Thread(target=lambda: asked.append(scene.sql(join)))
        thread.start()
        thread.join(1.0)
        os.kill(pid, signal.SIGKILL)
        thread.join()
        if asked[0].status_code != 200:  # that server could not tell whether the rows were begun
            problem = asked[0].json()
            assert (problem["status"], problem["reason"]) == (503, "NOT_READY"), problem
            assert "ask again" in problem["detail"]
        assert scene.sql(join).json()["rows"] == [{"n": ROWS}]


@contextmanager
def asking(scene: Scene, refused: list[int]) -> Iterator[None]:
    """Ask for a key all the while, and note answers that are none."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=scene.one.url, timeout=HANGING_S, trust_env=False) as client:
            while not ended.is_set():
                answer = client.get("/v1/stores/counts/keys/k00001")
                if answer.status_code != 200:
                    refused.append(answer.status_code)
                assert json.loads(answer.text)
                time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
