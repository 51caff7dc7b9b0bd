"""Large reads run in a process of their own: the same answers, and nobody else notices when it ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, served, until_ready, wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

ROWS = 3_000
STREAM, PAGE = "/v1/stores/aircraft/range?format=ndjson", "/v1/stores/aircraft/range?limit=2000"


@contextmanager
def scene(directory: Path, *settings: str) -> Iterator[tuple[Served, OwningWorker]]:
    """A server with a scan process, over stores with rows."""
    directory.mkdir(exist_ok=True)
    worker = OwningWorker(directory)
    try:
        worker.put_all({f"N{number:05d}": {"seats": number} for number in range(ROWS)})
        worker.commit()
        with served(directory, "server.scan.processes=1", *settings) as one:
            until_ready(one)
            wait_until(lambda: scan_process(one) is not None and bool(sockets(directory)))
            yield one, worker
    finally:
        worker.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, OwningWorker]]:
    with scene(tmp_path_factory.mktemp("large") / "state") as both:
        yield both


def sockets(directory: Path) -> set[Path]:
    return set((directory / "flights-app" / "servers").glob("*.scans-1.sock"))


def scan_process(one: Served) -> int | None:
    """The id of the scan process, once it runs."""
    return next(iter(one.scans()), None)


def open_tables(pid: int) -> int:
    """How many files of stores a process has open."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += "/flights-app/0_" in os.readlink(link)
        except FileNotFoundError:
            continue
    return found


def answered_by_scans(one: Served, path: str, **parameters: object) -> httpx.Response:
    """An answer, which must come from the scan process: without it, it would fail."""
    pid = scan_process(one)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with httpx.Client(timeout=1.0) as client, pytest.raises(httpx.ReadTimeout):
            client.get(f"{one.url}{path}", **parameters)  # type: ignore[arg-type]
    finally:
        os.kill(pid, signal.SIGCONT)
    return one.fresh(path, **parameters)


@pytest.mark.parametrize(
    "path",
    [
        STREAM,
        pytest.param("/v1/stores/aircraft/range?format=arrow", marks=long_only("NDJSON is a stream, too")),
        pytest.param("/v1/stores/aircraft/range?format=csv", marks=long_only("NDJSON is a stream, too")),
        PAGE,
        "/v1/stores/aircraft/count?exact=true",
    ],
)
def test_what_makes_many_rows_is_answered_by_that_process(running: tuple[Served, OwningWorker], path: str) -> None:
    one, _ = running
    assert answered_by_scans(one, path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stores/aircraft/keys/N00001",
        "/v1/stores/aircraft/range?limit=10",
        "/v1/stores/aircraft/count",
        f"{STREAM}&isolation_level=read_uncommitted&partition=0",
        "/v1/stores/cache/range?format=ndjson",
    ],
)
def test_small_reads_and_what_workers_answer_do_not_need_it(running: tuple[Served, OwningWorker], path: str) -> None:
    one, _ = running
    pid = scan_process(one)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert one.fresh(path).status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)


def test_its_answers_are_those_of_a_server_without_one(running: tuple[Served, OwningWorker]) -> None:
    one, worker = running
    paths = [
        STREAM,
        f"{STREAM}&lower=N00100&upper=N00200&order=desc",
        f"{STREAM}&columns=value",
        "/v1/stores/aircraft/range?format=csv",
        "/v1/stores/aircraft/count?exact=true",
        f"{PAGE}&details=none",
        "/v1/stores/aircraft/range?format=arrow&partition=9",
        f"{STREAM}&columns=value,no",
    ]
    with served(worker.application.parent, "server.scan.processes=0") as other:
        until_ready(other)
        expected = [other.fresh(path) for path in paths]
    for path, without in zip(paths, expected, strict=True):
        answer = one.fresh(path)
        assert answer.status_code == without.status_code, path
        assert body(answer) == body(without), path
        named = ("content-type", "stateline-position", "stateline-isolation-level", "vary", "retry-after")
        assert {name: answer.headers.get(name) for name in named} == {n: without.headers.get(n) for n in named}, path


def body(answer: httpx.Response) -> object:
    """What two equal answers have in common."""
    if answer.headers["content-type"].endswith(("/json", "+json")):
        told = answer.json()
        return {name: member for name, member in told.items() if name != "cursor"}
    return answer.content


def test_it_waits_for_a_bound(running: tuple[Served, OwningWorker]) -> None:
    one, worker = running
    asked: list[httpx.Response] = []
    bound = json.dumps({"flights": {"0": worker.offset(0) + 1}})
    parameters = {"position_bound": bound, "wait_ms": "60000", "partition": "0"}
    thread = threading.Thread(target=lambda: asked.append(one.fresh(STREAM, params={"format": "ndjson", **parameters})))
    thread.start()
    while not asked:
        worker.put("N00000", {"seats": 0}, partition=0)
        worker.commit()
        time.sleep(0.05)
    thread.join()
    assert asked[0].status_code == 200


def test_a_body_is_passed_on(running: tuple[Served, OwningWorker]) -> None:
    one, _ = running
    asked = {"type": "range", "format": "arrow", "prefix": "N001"}
    answer = httpx.post(f"{one.url}/v1/stores/aircraft/query", json=asked)
    assert pa.ipc.open_stream(answer.content).read_all().num_rows == 100


def test_pages_after_a_large_one_come_from_the_same_state(running: tuple[Served, OwningWorker]) -> None:
    one, worker = running
    first = one.fresh(PAGE).json()
    worker.put_all({f"N{number:05d}": None for number in range(0, ROWS, 2)})
    worker.commit()
    try:
        second = one.fresh(f"/v1/stores/aircraft/range?cursor={first['cursor']}").json()
        assert len(first["entries"]) + len(second["entries"]) == ROWS
        assert "cursor" not in second
    finally:
        worker.put_all({f"N{number:05d}": {"seats": number} for number in range(ROWS)})
        worker.commit()


def test_rows_of_a_snapshot_are_read_there(running: tuple[Served, OwningWorker]) -> None:
    one, _ = running
    made = httpx.post(f"{one.url}/v1/snapshots", json={"stores": ["aircraft"]}).json()
    try:
        rows = 0
        for part in made["stores"]["aircraft"].values():
            answer = answered_by_scans(one, part["path"])
            rows += pa.ipc.open_stream(answer.content).read_all().num_rows
            assert answer.headers["stateline-position"] == json.dumps(part["position"], separators=(",", ":"))
        assert rows == ROWS
    finally:
        httpx.delete(f"{one.url}/v1/snapshots/{made['id']}")


def test_each_request_is_counted_once_with_its_rows(running: tuple[Served, OwningWorker]) -> None:
    one, _ = running

    def counted() -> tuple[float, float]:
        lines = one.fresh("/metrics").text.splitlines()
        own = [line for line in lines if 'route="/v1/stores/{store}/range"' in line or 'store="aircraft"' in line]
        requests = sum(float(line.split()[-1]) for line in own if "http_requests_total{" in line)
        rows = sum(float(line.split()[-1]) for line in own if "response_rows_total{" in line)
        return requests, rows

    before = counted()
    one.fresh(STREAM)
    after = counted()
    assert (after[0] - before[0], after[1] - before[1]) == (1, ROWS)


@long_only("test_idle_stores.py has a scan process that opens what it has closed")
def test_it_opens_stores_when_they_are_asked(tmp_path: Path) -> None:
    with scene(tmp_path / "state") as (one, _):
        pid = scan_process(one)
        assert pid is not None
        assert open_tables(pid) == 0
        one.fresh(STREAM)
        assert open_tables(pid) > 0


@long_only("it waits for what must not happen")
def test_it_is_asked_when_it_knows_what_the_workers_own(tmp_path: Path) -> None:
    with scene(tmp_path) as (one, worker):
        pid, goes_on = scan_process(one), threading.Event()
        assert pid is not None
        (listened,) = sockets(tmp_path)
        halted = threading.Thread(target=lambda: worker.run(lambda: goes_on.wait(HANGING_S)))
        halted.start()
        try:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: scan_process(one) not in (None, pid))
            time.sleep(2.5)  # it would listen by then
            assert sockets(tmp_path) <= {listened}
        finally:
            goes_on.set()
            halted.join()
        wait_until(lambda: bool(sockets(tmp_path) - {listened}))


def test_when_it_is_killed_its_answers_break_off_and_others_are_not_touched(tmp_path: Path) -> None:
    with scene(tmp_path / "state") as (one, worker):
        for at in range(10):
            worker.put_all({f"X{number:05d}": "x" * 8_000 for number in range(at * 250, at * 250 + 250)})
        worker.commit()
        cursor, killed = one.fresh(PAGE).json()["cursor"], sockets(tmp_path / "state")
        pid = scan_process(one)
        assert pid is not None
        with httpx.Client(timeout=HANGING_S) as client, client.stream("GET", f"{one.url}{STREAM}") as answer:
            pieces = answer.iter_raw(4_096)
            next(pieces)
            refused: list[int] = []
            with asking(one, refused):
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(httpx.RemoteProtocolError):
                    for _ in pieces:
                        pass
                followed = one.fresh(f"/v1/stores/aircraft/range?cursor={cursor}")
                wait_until(lambda: scan_process(one) not in (None, pid))
            assert refused == []
        assert (followed.status_code, followed.json()["reason"]) == (410, "CURSOR_EXPIRED")
        assert one.fresh(STREAM).text.count("\n") == ROWS + 2_500  # by the server, until it is there again
        wait_until(lambda: bool(sockets(tmp_path / "state") - killed))
        assert answered_by_scans(one, STREAM).text.count("\n") == ROWS + 2_500


@contextmanager
def asking(one: Served, refused: list[int]) -> Iterator[None]:
    """Ask for a key all the while, and note answers that are none."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=HANGING_S) as client:
            while not ended.is_set():
                status = client.get(f"{one.url}/v1/stores/aircraft/keys/N00001").status_code
                if status != 200:
                    refused.append(status)
                time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_it_runs_at_a_lower_priority(running: tuple[Served, OwningWorker]) -> None:
    one, _ = running
    pid = scan_process(one)
    assert pid is not None
    server, scans = (os.getpriority(os.PRIO_PROCESS, each) for each in (one.process.pid, pid))
    assert scans == min(server + 10, 19)
