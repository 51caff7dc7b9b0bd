"""All entries as one stream, NDJSON or Arrow: complete or broken off, never in between; and nothing is left behind."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pyarrow
import pyarrow.ipc
import pytest

from stateline.query.values import MAX_RESULT_BYTES
from stateline.server.state.merged_scan import MergedScan
from stateline.server.wire import turns
from stateline_store import StoreState
from support.processes.query_server import TIMESTAMP_MS, OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.run.length import long_or_short
from support.run.patience import HANGING_S

Json: TypeAlias = dict[str, Any]
NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"
FORMATS = [NDJSON, ARROW]
LEVELS = ["read_committed", "read_uncommitted"]
STORES, ORDERS = ["aircraft", "cache"], ["asc", "desc"]
ORDERED = long_or_short([(s, o) for s in STORES for o in ORDERS], [*zip(STORES, ORDERS, strict=True)])
LARGE = 20_000  # entries: several chunks of every partition
WIDE = 40  # entries of a MiB: far more than sockets hold
WIDE_KEYS = [f"w{n:03}" for n in range(WIDE)]


@pytest.fixture(scope="module")
def rows(worker: OwningWorker) -> dict[str, dict[str, Any]]:
    """What each level sees of the prefix "s", and of "w" (a few, very large)."""
    committed: dict[str, Any] = {f"s{n:05}": n for n in range(LARGE)}
    wide: dict[str, Any] = dict.fromkeys(WIDE_KEYS, "x" * 2**20)
    staged = committed | {f"s{n:05}": {"staged": n} for n in range(0, LARGE + 500, 100)}
    worker.put_all(committed | wide)
    worker.commit()
    worker.put_all({key: value for key, value in staged.items() if value != committed.get(key)})
    return {"read_committed": committed, "read_uncommitted": staged, "wide": wide}


@pytest.fixture(scope="module")
def here(state_dir: Path, worker: OwningWorker, rows: object) -> Iterator[Here]:
    with served_here(state_dir) as here:
        yield here


def stream(here: Here, media_type: str, store: str = "aircraft", **params: Any) -> httpx.Response:
    return here.client.get(f"/v1/stores/{store}/range", params=params, headers={"accept": media_type})


def read(response: httpx.Response) -> list[Json]:
    """The entries of a stream that is whole."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == NDJSON:
        assert response.content.endswith(b"\n") or not response.content
        return [json.loads(line) for line in response.content.splitlines()]
    assert response.headers["content-type"] == ARROW
    table = pyarrow.ipc.open_stream(io.BytesIO(response.content)).read_all()
    found: list[Json] = table.to_pylist()
    for row in found:
        row["value"] = json.loads(row["value"])
    return found


def shown(rows: dict[str, Any]) -> list[Json]:
    return [{"key": key, "value": value, "timestamp": TIMESTAMP_MS} for key, value in sorted(rows.items())]


def is_at_rest(here: Here, worker: OwningWorker) -> bool:
    """Whether neither the server nor the worker keeps a scan."""
    return len(here.serving.cursors) == 0 and len(worker.socket.scans) == 0


@pytest.mark.parametrize(("store", "order"), ORDERED)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("media_type", FORMATS)
def test_a_stream_has_all_entries_of_one_state_in_order(
    here: Here, worker: OwningWorker, rows: dict[str, Any], media_type: str, store: str, level: str, order: str
) -> None:
    response = stream(here, media_type, store, prefix="s", isolation_level=level, order=order)
    wanted = shown(rows[level])
    assert read(response) == (wanted if order == "asc" else wanted[::-1])
    answer = here.client.get(f"/v1/stores/{store}/range", params={"limit": 1, "isolation_level": level}).json()
    assert json.loads(response.headers["stateline-position"]) == answer["position"]
    assert response.headers["stateline-isolation-level"] == level
    assert "stateline-failures" not in response.headers
    here.serving.cursors.close()
    wait_until(lambda: is_at_rest(here, worker))


@pytest.mark.parametrize("media_type", FORMATS)
def test_a_stream_has_no_pages_and_no_entries_twice_at_small_limits(
    here: Here, rows: dict[str, Any], media_type: str
) -> None:
    response = stream(here, media_type, prefix="s0", limit=1)
    assert [row["key"] for row in read(response)] == [key for key in rows["read_committed"] if key.startswith("s0")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("media_type", FORMATS)
def test_a_stream_of_nothing_is_whole_and_empty(here: Here, media_type: str, level: str) -> None:
    response = stream(here, media_type, prefix="absent", isolation_level=level)
    assert read(response) == []
    assert json.loads(response.headers["stateline-position"])


@pytest.mark.parametrize("media_type", FORMATS)
def test_what_is_refused_is_a_problem_as_without_a_stream(here: Here, media_type: str) -> None:
    for params, expected in (({"limit": "x"}, 422), ({"position_bound": '{"flights": {"0": 999999}}'}, 412)):
        refused = stream(here, media_type, **params)
        assert (refused.status_code, refused.headers["content-type"]) == (expected, "application/problem+json")
    assert here.client.get("/v1/stores/aircraft/windows", headers={"accept": media_type}).status_code == 400


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", "application/json"),
        ("text/html, application/x-ndjson;q=0.5", NDJSON),
        ("application/json, application/x-ndjson", "application/json"),
        ("APPLICATION/X-NDJSON", NDJSON),
        ("application/x-ndjson;q=0", "application/json"),
        ("application/x-ndjson; q=0.000, */*", "application/json"),
        (f"application/x-ndjson;Q=0, {ARROW}", ARROW),
        ("application/x-ndjson;q=0.001", NDJSON),
        ("", "application/json"),
    ],
)
def test_the_first_format_that_there_is_counts(here: Here, accept: str, answered: str) -> None:
    assert stream(here, accept, prefix="absent").headers["content-type"] == answered


class Turns(dict[Any, asyncio.Lock]):
    """Counts how often others had their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def setdefault(self, loop: Any, lock: Any) -> asyncio.Lock:
        self.count += 1
        return super().setdefault(loop, lock)


@pytest.mark.parametrize("path", ["range", "page", "keys", "snapshot"])
@pytest.mark.parametrize("media_type", FORMATS)
def test_others_have_their_turn_after_every_few_rows(
    here: Here, rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch, media_type: str, path: str
) -> None:
    few, turned, client = 64, Turns(), here.client
    snapshot = client.post("/v1/snapshots", json={"stores": ["aircraft"]}).json()
    for name, value in (("_FIRST_ROWS", few), ("_MOST_ROWS", few), ("_queues", turned)):
        monkeypatch.setattr(turns, name, value)
    if path == "range":
        made = len(read(stream(here, media_type, prefix="s")))
    elif path == "page":
        made = len(client.get("/v1/stores/aircraft/range", params={"prefix": "s", "limit": 10_000}).json()["entries"])
    elif path == "keys":
        asked = {"type": "keys", "keys": sorted(rows["read_committed"])[:10_000]}
        made = len(client.post("/v1/stores/aircraft/query", json=asked).json()["entries"])
    else:
        part = snapshot["stores"]["aircraft"]["0"]["path"]
        made = pyarrow.ipc.open_stream(client.get(part).content).read_all().num_rows
    assert made > 1_000
    assert turned.count >= made // few - 1
    client.delete(f"/v1/snapshots/{snapshot['id']}")
    here.serving.cursors.close()  # that of the page would stay for a minute


class SlowClient:
    """A connection that has asked for a stream of large entries, and reads as little as it likes."""

    def __init__(self, here: Here, media_type: str, level: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._socket.settimeout(HANGING_S)
        self._socket.connect(("127.0.0.1", here.port))
        path = f"/v1/stores/aircraft/range?prefix=w&isolation_level={level}"
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {media_type}\r\nConnection: close\r\n\r\n"
        self._socket.sendall(request.encode())

    def read(self, most: int) -> bytes:
        return self._socket.recv(most)

    def read_all(self) -> bytes:
        """Up to the end of the connection."""
        data = bytearray()
        while more := self._socket.recv(1 << 20):
            data += more
        return bytes(data)

    def leave(self) -> None:
        self._socket.close()


def is_whole(raw: bytes) -> bool:
    """Whether a chunked body ended as HTTP says."""
    return raw.endswith(b"\r\n0\r\n\r\n")


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each piece of a stream had, once it was made."""
    page, sizes = MergedScan.page, list[int]()

    async def counted(scan: MergedScan, limit: int, most_bytes: int) -> Any:
        entries = await page(scan, limit, most_bytes)
        sizes.append(len(entries))
        return entries

    monkeypatch.setattr(MergedScan, "page", counted)
    return sizes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("media_type", FORMATS)
def test_a_slow_client_gets_everything_and_the_server_reads_no_further_than_it_takes(
    here: Here, worker: OwningWorker, produced: list[int], media_type: str, level: str
) -> None:
    slow = SlowClient(here, media_type, level)
    head = slow.read(1000)
    for _ in range(50):  # other requests are served, and each gives the stream a turn to go on if it would
        assert here.client.get("/v1/stores/aircraft/count").status_code == 200
    at_once = 3 * MAX_RESULT_BYTES // 2**20 + 3
    assert sum(produced) <= 2 * at_once < WIDE, "what the partitions give at once, and no more until that was taken"
    raw = head + slow.read_all()
    assert is_whole(raw)
    assert sum(produced) == WIDE
    assert len(raw) > WIDE * 2**20
    wait_until(lambda: is_at_rest(here, worker))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("media_type", FORMATS)
def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(
    here: Here, worker: OwningWorker, produced: list[int], media_type: str, level: str
) -> None:
    leaving = SlowClient(here, media_type, level)
    assert leaving.read(1000)
    if level == "read_uncommitted":
        assert len(worker.socket.scans) > 0
    leaving.leave()
    wait_until(lambda: is_at_rest(here, worker))
    assert here.client.get("/v1/stores/aircraft/count").status_code == 200
    assert sum(produced) < WIDE


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("media_type", FORMATS)
def test_an_uncommitted_stream_breaks_off_when_its_worker_ends(tmp_path: Path, media_type: str, killed: bool) -> None:
    worker = OwningWorker(tmp_path)
    worker.put_all(dict.fromkeys(WIDE_KEYS, "x" * 2**20))
    with served_here(tmp_path) as here:
        slow = SlowClient(here, media_type, "read_uncommitted")
        head = slow.read(1000)
        worker.close(killed=killed)
        raw = head + slow.read_all()
        assert raw.startswith(b"HTTP/1.1 200")
        assert not is_whole(raw)
        assert len(raw) < WIDE * 2**20


def test_a_stream_of_committed_state_outlives_its_worker(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put_all(dict.fromkeys(WIDE_KEYS, "x" * 2**20))
    worker.commit()
    with served_here(tmp_path) as here:
        slow = SlowClient(here, NDJSON, "read_committed")
        head = slow.read(1000)
        worker.close()
        raw = head + slow.read_all()
        assert is_whole(raw)
        assert raw.count(b'{"key":"w') == WIDE


@pytest.mark.parametrize("media_type", FORMATS)
def test_partitions_that_fail_are_told_beside_the_stream_of_the_others(tmp_path: Path, media_type: str) -> None:
    worker = OwningWorker(tmp_path)
    for partition in range(3):
        worker.put(f"p{partition}", partition, partition=partition)
    worker.commit()
    with served_here(tmp_path) as here:
        worker.run(lambda: worker.stores["aircraft", 1].set_state(StoreState.STANDBY))
        asked: Json = {"prefix": "p", "require_active": "true"}
        assert stream(here, media_type, **asked).status_code == 503
        response = stream(here, media_type, **asked, allow_partial="true")
        assert [row["key"] for row in read(response)] == ["p0", "p2"]
        failures = json.loads(response.headers["stateline-failures"])
        assert {p: failure["reason"] for p, failure in failures.items()} == {"1": "NOT_ACTIVE"}
        assert set(json.loads(response.headers["stateline-position"])["flights"]) == {"0", "2"}
    worker.close()
