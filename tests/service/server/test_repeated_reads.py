"""Reads that a connection repeats with other keys: always what the routes answer.

The same requests go to two servers of one state directory. One of them answers at once what it can. The other limits
its rate, so it answers nothing at once.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateline.server.contract.request_id import request_id
from stateline.server.guard.tokens import hash_of, new_token
from stateline.server.wire.bounded_protocol import BoundedProtocol
from stateline.server.wire.http_protocol import ProblemProtocol
from stateline.server.wire.repeated_request import RepeatedRequest, Repetition, repeated_line
from stateline_store import StoreState
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import served_here
from support.run.length import long_or_short
from support.run.patience import HANGING_S

COMMITTED = "default.state.isolation.level=read_committed"
HOST = "Host: localhost\r\n"
NOT_COMPARED = (b"date", b"x-request-id", b"cursor")
KEYS = (
    "N1",
    "N2",
    "a.b-c_d~:@",
    "absent",
    "null",
    "elsewhere",
    "1",
    "-7",
    "bm90",
    "{}",
    "[1]",
    "é",
    "",
    "a/b",
    "N1/windows",
)
KINDS = ("aircraft", "cache", "counts", "blobs", "places", "none")


class Connection:
    """A kept connection that sends requests as they are written here."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._socket: socket.socket | None = None
        self._left = bytearray()

    def ask(self, request: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return status, headers and body of the answer."""
        self.send(request)
        found = self.next()
        assert not self._left, "something follows the answer"
        return found

    def send(self, request: bytes) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=HANGING_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)

    def next(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return status, headers and body of the next answer."""
        while b"\r\n\r\n" not in self._left:
            self.receive()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        first, *lines = bytes(head).split(b"\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
        length = int(dict(headers)[b"content-length"])
        while len(self._left) < length:
            self.receive()
        body, self._left = bytes(self._left[:length]), self._left[length:]
        if (b"connection", b"close") in headers:
            self.close()
        return int(first.split()[1]), headers, body

    def receive(self) -> None:
        """Wait for more of an answer."""
        assert self._socket is not None
        more = self._socket.recv(65536)
        assert more, bytes(self._left[:1000])
        self._left += more

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class Both:
    """One server that answers at once, and one that does not."""

    def __init__(self, quick: int, routes: int) -> None:
        self.ports = quick, routes

    def said(self, requests: list[bytes]) -> list[list[tuple[int, list[tuple[bytes, bytes]], bytes]]]:
        """What each server says to these requests, on one connection each, without headers that must differ."""
        found = []
        for port in self.ports:
            with closing(Connection(port)) as connection:
                answers = [connection.ask(each) for each in requests]
            own = f"127.0.0.1:{port}".encode()
            found.append(
                [
                    (status, sorted(h for h in headers if h[0] not in NOT_COMPARED), body.replace(own, b"URL"))
                    for status, headers, body in answers
                ]
            )
        return found


@pytest.fixture(scope="module")
def both(worker: OwningWorker, state_dir: Path) -> Iterator[Both]:
    worker.put_all({"N1": {"seen": 1}, "N2": "text", "a.b-c_d~:@": [1, 2], "null": None, "1": 1, "bm90": 2})
    home = worker.put("elsewhere", None).partition
    worker.put("elsewhere", 1, partition=(home + 1) % 3)
    worker.commit()
    worker.put("N2", "staged")
    with ExitStack() as stack:
        yield both_of(stack, state_dir)


def both_of(stack: ExitStack, state_dir: Path, *given: str) -> Both:
    quick = stack.enter_context(served_here(state_dir, COMMITTED, *given))
    routes = stack.enter_context(served_here(state_dir, COMMITTED, "server.rate.limit=100000000", *given))
    return Both(quick.port, routes.port)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that repetitions were answered for."""
    found: list[bytes] = []
    original = ProblemProtocol._answer_key

    def answer_key(self: ProblemProtocol, repetition: Repetition, data: bytes) -> bool:
        is_answered = original(self, repetition, data)
        if is_answered and (key := repetition.request.key(data)) is not None:
            found.append(key)
        return is_answered

    monkeypatch.setattr(ProblemProtocol, "_answer_key", answer_key)
    return found


def request(key: str, store: str = "aircraft", query: str = "", headers: str = HOST) -> bytes:
    return f"GET /v1/stores/{store}/keys/{key}{query} HTTP/1.1\r\n{headers}\r\n".encode()


def percent(text: str, chosen: int) -> str:
    """The text with every byte percent-encoded that the bits of `chosen` name, and all that must be."""
    safe = re.compile(rb"[\w.~:@-]")
    return "".join(
        chr(byte) if safe.fullmatch(bytes([byte])) and not chosen >> (at % 16) & 1 else f"%{byte:02X}"
        for at, byte in enumerate(text.encode())
    )


written_keys = st.builds(percent, st.sampled_from(KEYS) | st.text(max_size=5), st.just(0) | st.integers(0, 2**16))
parameters = st.sampled_from((
    "isolation_level=read_committed", "isolation_level=read_uncommitted", "isolation_level=none", "require_active=true",
    "allow_partial=true", "partition=0", "partition=0,1,2", "wait_ms=1", "wait_ms=-1", "max_staleness_ms=5",
    'position_bound={"flights":{"0":0}}', 'position_bound={"flights":{"2":99999}}', "position_bound=%7B%7D",
    "columns=value", "columns=key,found", "columns=none", "details=none", "format=json", "format=csv", "%zz",
    "a=%C3%28", "as_of=1", "limit=1", "",
))  # fmt: skip
queries = st.just("") | st.lists(parameters, max_size=2).map(lambda each: "?" + "&".join(each))
lines = st.sampled_from((
    "Accept: */*", "Accept: application/json", "Accept: text/csv", "Accept: application/json;q=0", "Content-Length: 0",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id: mine/7", "If-None-Match: *",
    "Accept-Encoding: gzip", "Sec-Fetch-Site: cross-site", "Origin: http://evil.example", "Connection: close",
    "Range: bytes=0-1",
))  # fmt: skip
headers = st.builds(
    lambda host, more: "".join(f"{line}\r\n" for line in (host, *more)),
    st.sampled_from(("Host: localhost", "Host: localhost", "Host: 127.0.0.1", "Host: evil.example")),
    st.just([]) | st.lists(lines, max_size=3, unique=True),
)


@settings(
    max_examples=long_or_short(1_500, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(KINDS + ("aircraft",) * 6), queries, headers, st.lists(written_keys, min_size=1, max_size=6))
def test_every_request_is_answered_as_the_routes_answer_it(
    both: Both, store: str, query: str, headers: str, keys: list[str]
) -> None:
    quick, routes = both.said([request(key, store, query, headers) for key in keys])
    assert quick == routes


def test_the_third_request_of_a_connection_is_answered_as_a_repetition(both: Both, answered: list[bytes]) -> None:
    keys = ("N1", "N2", "N1", "N2", "absent", "1", "null", "N%31", "N1", "N2", "N1")
    quick, routes = both.said([request(key, headers=HOST + "X-Request-Id: mine\r\n") for key in keys])
    assert quick == routes
    assert answered == [b"N1", b"N2", b"N1"]


@pytest.mark.parametrize(
    "other",
    [
        request("N1", "counts"),
        request("N1", query="?details=none"),
        request("N1", headers="Host: 127.0.0.1\r\n"),
        request("N1 HTTP/1.1\r\nX: y\r\n\r\nGET /v1/stores/aircraft/keys/N1"),
        request("N1?details=none&x="),
        request("N1/windows"),
        request("N1#"),
        request(""),
    ],
)
def test_what_differs_in_more_than_its_key_is_no_repetition(both: Both, other: bytes, answered: list[bytes]) -> None:
    repeated = request("N1")
    (_, query_at) = line = repeated_line(repeated, f"{HOST}\r\n".encode()) or pytest.fail("a plain request")
    assert query_at == b""
    assert RepeatedRequest.of(repeated, line[0]).key(other) is None


@given(st.binary(max_size=30), st.integers(0, 200), st.integers(0, 3))
def test_a_key_stands_between_the_same_bytes(inserted: bytes, at: int, left_out: int) -> None:
    """Whatever is inserted into a request, or left out of it."""
    sent, path = request("N1", query="?wait_ms=1"), b"/v1/stores/aircraft/keys/N1"
    other = sent[:at] + inserted + sent[at + left_out :]
    repeated = RepeatedRequest.of(sent, path)
    key = repeated.key(other)
    assert repeated.key(sent) == b"N1"
    if key is not None:
        assert re.fullmatch(rb"[A-Za-z0-9_.~:@-]+", key)
        assert other == sent.replace(b"/N1?", b"/" + key + b"?")


def test_whatever_the_worker_does_each_repetition_says_what_the_routes_say(
    tmp_path: Path, answered: list[bytes]
) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("N1", 0)
    worker.commit()
    with ExitStack() as stack:
        both = both_of(stack, tmp_path)
        stack.callback(lambda: worker.close())

        def said() -> Any:
            found = list[Any]()

            def are_equal() -> bool:  # not while a server hears that the worker has gone, or is there
                found[:] = both.said([request("N1")] * 4)
                return found[0] == found[1] and all(each == found[0][0] for each in found[0])

            wait_until(are_equal)
            return json.loads(found[0][0][2])

        def reopen() -> None:
            nonlocal worker
            worker.close()
            worker = OwningWorker(tmp_path)

        for number in range(1, 4):
            worker.put("N1", number)
            (partition,) = said()["partitions"].values()
            assert partition["staged_records"] > 0, "not yet committed"
            worker.commit()
            assert said()["value"] == number
            for state in (StoreState.RESTORING, StoreState.STANDBY, StoreState.ACTIVE):
                worker.set_state(state)
                said()
            reopen()
            assert said()["value"] == number
        worker.close(killed=True)  # its notices still say that it is active
        wait_until(lambda: {each["served_by"] for each in said()["partitions"].values()} == {"standby"})
    assert answered


def test_one_connection_sees_each_commit_and_what_is_staged_at_once(tmp_path: Path, answered: list[bytes]) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("N1", 0)
    worker.commit()
    with served_here(tmp_path, COMMITTED) as here, closing(Connection(here.port)) as connection:
        for number in range(1, 30):
            for _ in range(3):
                assert json.loads(connection.ask(request("N1"))[2])["value"] == number - 1
            worker.put("N1", number)
            (partition,) = json.loads(connection.ask(request("N1"))[2])["partitions"].values()
            assert partition["staged_records"] == 1
            worker.commit()
    worker.close()
    assert len(answered) > 60


def test_a_client_that_does_not_read_gets_its_answers_one_by_one(
    tmp_path: Path, answered: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer from which repetitions begin already fills the socket. Else each further one would fill memory."""
    parsed: list[bytes] = []
    original = BoundedProtocol.data_received

    def data_received(self: BoundedProtocol, data: bytes) -> None:
        parsed.append(data)
        original(self, data)

    monkeypatch.setattr(BoundedProtocol, "data_received", data_received)
    worker = OwningWorker(tmp_path)
    worker.put_all({"N1": 1, "large": "x" * 16_000_000})
    worker.commit()
    with served_here(tmp_path, COMMITTED) as here, closing(Connection(here.port)) as connection:
        connection.ask(request("N1"))
        connection.send(request("large"))
        connection.receive()
        parsed.clear()
        connection.send(request("large"))
        wait_until(lambda: answered != [] or parsed != [])
        assert not answered
        for _ in range(2):
            assert len(connection.next()[2]) > 16_000_000
        for _ in range(5):
            assert json.loads(connection.ask(request("N1"))[2])["value"] == 1
        assert answered
    worker.close()


def test_a_token_that_is_taken_away_ends_the_repetitions_of_a_connection(
    worker: OwningWorker, state_dir: Path, tmp_path: Path, both: Both, answered: list[bytes]
) -> None:
    secret, file = new_token(), tmp_path / "tokens.json"

    def write(*stores: str) -> None:
        entry = {"name": "one", "sha256": hash_of(secret).hex(), "role": "read", "stores": stores}
        file.with_suffix(".new").write_text(json.dumps({"tokens": [entry] if stores else []}))
        file.with_suffix(".new").rename(file)

    write("aircraft")
    asked = request("N1", headers=f"{HOST}Authorization: Bearer {secret}\r\n")
    given = (COMMITTED, f"server.tokens.file={file}")
    with served_here(state_dir, *given, until_ready=False) as here, closing(Connection(here.port)) as connection:
        wait_until(lambda: connection.ask(asked)[0] == 200)
        assert [connection.ask(asked)[0] for _ in range(5)] == [200] * 5
        assert answered
        write("counts")
        assert connection.ask(asked)[0] == 403
        write("aircraft", "counts")
        assert [connection.ask(asked)[0] for _ in range(5)] == [200] * 5
        write()
        assert connection.ask(asked)[0] == 401


def test_repetitions_have_ids_of_their_own_unless_the_client_sent_one(both: Both, answered: list[bytes]) -> None:
    with closing(Connection(both.ports[0])) as connection:
        ids = [dict(connection.ask(request("N1"))[1])[b"x-request-id"] for _ in range(6)]
        assert len(set(ids)) == 6
        sent = request("N1", headers=HOST + "X-Request-Id: mine\r\n")
        assert {dict(connection.ask(sent)[1])[b"x-request-id"] for _ in range(6)} == {b"mine"}
    assert len(answered) == 8
    assert request_id([]) != request_id([])


@pytest.mark.parametrize(
    ("forwarded", "client"), [("", "127.0.0.1"), ("198.51.100.7", "198.51.100.7"), (",", "127.0.0.1")]
)
def test_each_repetition_has_its_line_in_the_access_log(
    worker: OwningWorker,
    state_dir: Path,
    both: Both,
    answered: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    forwarded: str,
    client: str,
) -> None:
    lines = list[Any]()
    monkeypatch.setattr("stateline.server.telemetry.access_log.AccessLog.write", _noting(lines))
    given = (COMMITTED, "server.access.log=on", "server.forwarded.allow.ips=127.0.0.1")
    asked = request("N1", headers=HOST + (f"X-Forwarded-For: {forwarded}\r\n" if forwarded else ""))
    with served_here(state_dir, *given) as here, closing(Connection(here.port)) as connection:
        lines.clear()
        ids = [dict(connection.ask(each)[1])[b"x-request-id"].decode() for each in [asked] * 5]
        routed = asked.replace(b"/N1 ", b"/N%31 ")
        ids.append(dict(connection.ask(routed)[1])[b"x-request-id"].decode())
    assert len(answered) == 3
    mine = [line for line in lines if line.answered.route.endswith("{key}")]
    assert [line.origin.request_id for line in mine] == ids
    assert {(line.method, line.status, line.rows, line.origin.client) for line in mine} == {("GET", 200, 1, client)}


def _noting(lines: list[Any]) -> Callable[[object, Any], bool]:
    def write(self: object, line: Any) -> bool:
        lines.append(line)
        return True

    return write
