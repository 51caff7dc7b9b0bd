"""The query socket, with real stores behind it. This thread owns the stores; clients are non-blocking
sockets.
"""

from __future__ import annotations

import itertools
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from stateline.query import open_scans
from stateline.query.values import Failure, HostedPartition, Outcome, PartitionAnswer, QueryRows, Terms
from stateline.query.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    WireRequest,
    decode_message,
    decode_outcome,
    decode_rows,
    encode_request,
    frame,
)
from stateline.worker.queries.hosted_queries import HostedQueries
from stateline.worker.queries.query_socket import MAX_REQUESTS_PER_CALL, QuerySocket
from stateline_store import (
    ConfigurationError,
    CursorExpiredError,
    IsolationLevel,
    KeyQuery,
    KeyValueStore,
    LockedError,
    NotPresentError,
    NotUpToBoundError,
    Position,
    PositionBound,
    RangeQuery,
    StorageError,
    StoreContext,
    StoreState,
    TopicPartition,
)
from support.processes.query_server import wait_until
from support.processes.small_disk import new_small_disk, read_only
from support.run.other_user import connects_to, open_to_all
from support.run.patience import HANGING_S

T = TypeVar("T")

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyValueStore]:
    """k = committed, then k = staged, at offsets 1 and 2."""
    store = KeyValueStore("letters", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    write(store, b"committed", 1)
    store.commit({})
    write(store, b"staged", 2)
    yield store
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.sock"


@pytest.fixture
def served(store: KeyValueStore, path: Path) -> Iterator[QuerySocket]:
    hosted = HostedPartition(store, StoreState.ACTIVE)
    served = QuerySocket(path, lambda name, partition: hosted if (name, partition) == ("letters", 0) else None)
    yield served
    served.close()


def write(store: KeyValueStore, value: bytes, offset: int) -> None:
    store.put(b"k", value)
    store.advance(Position.of({TopicPartition("input", 0): offset}))


def query(
    number: int = 1, level: IsolationLevel = UNCOMMITTED, bound: int | None = None, wait_ms: int = 0, partition: int = 0
) -> bytes:
    position = Position() if bound is None else Position.of({TopicPartition("input", 0): bound})
    terms = Terms("letters", level, PositionBound(position))
    return frame(encode_request(WireRequest(number, terms, partition, KeyQuery(b"k"), wait_ms)))


class Client:
    """Sends bytes and reads frames, while the test's thread serves."""

    def __init__(self, path: Path, served: QuerySocket) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self._served = served
        self._incoming = b""

    def ask(self, data: bytes) -> dict[str, Any]:
        self.send(data)
        return self.read()

    def send(self, data: bytes) -> None:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                self._served.let_in()

    def read(self, timeout_s: float = HANGING_S) -> dict[str, Any]:
        """The next frame; raises ConnectionError at the end of the connection."""
        deadline_s = time.monotonic() + timeout_s
        while (message := self._whole()) is None:
            assert time.monotonic() < deadline_s, "no answer came"
            self._served.let_in(0.001)
            self.receive()
        return message

    def receive(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("hung up")
        self._incoming += data

    def frames(self) -> int:
        """How many whole frames were received and not read."""
        count = at = 0
        while (end := self._end(at)) is not None:
            count, at = count + 1, end
        return count

    def _whole(self) -> dict[str, Any] | None:
        end = self._end(0)
        if end is None:
            return None
        message = decode_message(self._incoming[4:end])
        self._incoming = self._incoming[end:]
        return message

    def _end(self, at: int) -> int | None:
        """Where the frame that begins here ends; None before all of it was received."""
        if len(self._incoming) < at + 4:
            return None
        end = at + 4 + int(LENGTH.unpack_from(self._incoming, at)[0])
        return end if end <= len(self._incoming) else None


@pytest.fixture
def client(path: Path, served: QuerySocket) -> Iterator[Client]:
    client = Client(path, served)
    yield client
    client.socket.close()


class Numbered:
    """The rest of a scan, known by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def more(self, limit: int) -> QueryRows:
        raise AssertionError("the tests ask by number")

    def close(self) -> None: ...


def values(reply: dict[str, Any]) -> list[bytes]:
    outcome = decode_outcome(reply["outcome"], Numbered)
    assert isinstance(outcome, PartitionAnswer), outcome
    return [value for _, value in outcome.rows.entries if isinstance(value, bytes)]


def error(reply: dict[str, Any]) -> Exception:
    outcome = decode_outcome(reply["outcome"], Numbered)
    assert isinstance(outcome, Failure)
    return outcome.error


def test_each_level_gets_its_own_answer(client: Client) -> None:
    assert values(client.ask(query(level=UNCOMMITTED))) == [b"staged"]
    assert values(client.ask(query(level=COMMITTED))) == [b"committed"]


def test_while_stores_commit_only_uncommitted_queries_are_answered(path: Path, served: QuerySocket) -> None:
    clients = {name: Client(path, served) for name in ("uncommitted", "committed", "snapshot", "both")}
    for _ in clients:
        served.let_in()  # accepts one
    clients["uncommitted"].send(query(1) + query(2))
    clients["committed"].send(query(3, COMMITTED))
    clients["snapshot"].send(frame({"id": 4, "type": "snapshot", "stores": ["letters"]}))
    clients["both"].send(query(5) + query(6, COMMITTED) + query(7))
    with served.mid_commit():
        while not (has_come(clients["uncommitted"], 2) and has_come(clients["both"])):
            served.let_in()
        served.let_in()
    for client in clients.values():
        client.receive()
    assert [values(clients["uncommitted"].read(0)) for _ in range(2)] == [[b"staged"]] * 2
    assert clients["both"].read(0)["id"] == 5
    assert not any(client.frames() for client in clients.values())
    began_s = time.monotonic()
    served.let_in(60)  # without a wait: there is something to answer
    assert time.monotonic() - began_s < 30
    assert values(clients["committed"].read()) == [b"committed"]
    assert clients["snapshot"].read()["id"] == 4
    assert [clients["both"].read()["id"] for _ in range(2)] == [6, 7]
    for client in clients.values():
        client.socket.close()


def has_come(client: Client, count: int = 1) -> bool:
    """Whether so many replies have."""
    client.receive()
    return client.frames() >= count


def let_in_while(served: QuerySocket, work: Callable[[], T]) -> T:
    """As a commit waits for the log."""
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(work)
        while not outcome.done():
            served.let_in(0.001)
    return outcome.result()


def test_queries_are_answered_while_work_is_waited_for(client: Client, served: QuerySocket) -> None:
    client.send(query(1) + query(2, COMMITTED))

    def until_answered() -> list[int]:
        wait_until(partial(has_come, client, 2), HANGING_S)
        return [threading.get_ident()]

    (thread,) = let_in_while(served, until_answered)
    assert thread != threading.get_ident()
    assert [values(client.read(0)) for _ in range(2)] == [[b"staged"], [b"committed"]]


def test_what_waits_for_a_commit_waits_without_a_load_while_the_rest_is_answered(
    path: Path, served: QuerySocket
) -> None:
    clients = {name: Client(path, served) for name in ("committed", "uncommitted", "keeper")}
    for _ in clients:
        served.let_in()  # accepts one
    clients["committed"].send(query(1, COMMITTED) + query(2, COMMITTED))
    clients["keeper"].send(frame({"id": 3, "type": "status"}) + query(4))

    def work() -> None:
        time.sleep(0.5)
        clients["uncommitted"].send(query(5))
        for name, count in (("uncommitted", 1), ("keeper", 2)):
            wait_until(partial(has_come, clients[name], count), HANGING_S)
        clients["committed"].receive()
        assert not clients["committed"].frames()

    with served.mid_commit():
        began_s, worked_s = time.monotonic(), time.thread_time()
        let_in_while(served, work)
        took_s, cpu_s = time.monotonic() - began_s, time.thread_time() - worked_s
    assert cpu_s < took_s / 2
    assert [clients["keeper"].read(0)["id"] for _ in range(2)] == [3, 4]
    assert values(clients["uncommitted"].read(0)) == [b"staged"]
    assert values(clients["committed"].read()) == [b"committed"]
    for each in clients.values():
        each.socket.close()


def test_an_answer_says_what_is_staged_and_when_the_last_commit_was(client: Client, store: KeyValueStore) -> None:
    outcome = decode_outcome(client.ask(query())["outcome"], Numbered)
    assert isinstance(outcome, PartitionAnswer)
    assert outcome.copy.served_by == "active"
    assert outcome.copy.staged_records == 1
    assert outcome.copy.staged_bytes == store.approximate_num_uncommitted_bytes
    assert outcome.copy.committed_at_ms == store.committed_at_ms


def test_a_partition_that_is_not_here_is_told(client: Client) -> None:
    assert isinstance(error(client.ask(query(partition=9))), NotPresentError)


def test_a_closed_store_is_not_here(client: Client, store: KeyValueStore) -> None:
    store.close()
    assert isinstance(error(client.ask(query())), NotPresentError)


def test_only_its_user_may_connect(served: QuerySocket, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_process_of_another_user_is_hung_up_on_even_where_the_file_lets_it_connect(
    served: QuerySocket, path: Path
) -> None:
    path.chmod(0o666)
    with open_to_all(path.parent), connects_to(path) as process:
        served.let_in()
        assert process.communicate()[0] == b"b''\n"
    assert not served.has_clients


def test_the_file_of_a_dead_process_is_replaced(path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    QuerySocket(path, lambda *_: None).close()
    assert not path.exists()


def test_a_live_listener_is_not_replaced(served: QuerySocket, path: Path) -> None:
    with pytest.raises(LockedError):
        QuerySocket(path, lambda *_: None)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        QuerySocket(tmp_path / ("x" * 120), lambda *_: None)


def test_a_disk_that_refuses_is_no_mistake_of_the_caller(tmp_path: Path) -> None:
    with (
        new_small_disk(tmp_path / "disk", 1) as disk,
        read_only(disk),
        pytest.raises(StorageError, match="Read-only file system"),
    ):
        QuerySocket(disk / "socket", lambda *_: None)


def test_with_nothing_to_do_it_returns_at_once(served: QuerySocket) -> None:
    assert served.let_in() == 0


def test_it_waits_for_a_request_to_arrive(served: QuerySocket, path: Path) -> None:
    def ask() -> None:
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(path))
            late.sendall(query())
            late.recv(1)

    thread = threading.Thread(target=ask)
    thread.start()
    answered = 0
    for _ in range(10):
        answered += served.let_in(10)
        if answered:
            break
    thread.join()
    assert answered == 1


def test_a_request_may_come_in_pieces(client: Client, served: QuerySocket) -> None:
    whole = query()
    for at in range(len(whole) - 1):
        client.send(whole[at : at + 1])
        assert served.let_in() == 0
    assert values(client.ask(whole[-1:])) == [b"staged"]


def test_a_call_answers_a_bounded_number_and_the_next_goes_on(client: Client, served: QuerySocket) -> None:
    requests = MAX_REQUESTS_PER_CALL + 50
    client.send(b"".join(query(number) for number in range(requests)))
    counts: list[int] = []
    while sum(counts) < requests:
        counts.append(served.let_in(1))
    assert max(counts) <= MAX_REQUESTS_PER_CALL
    assert [client.read()["id"] for _ in range(requests)] == list(range(requests))


@pytest.mark.parametrize(
    "garbage",
    [
        LENGTH.pack(MAX_FRAME_BYTES + 1),
        LENGTH.pack(0),
        b"\xff" * 300,
        LENGTH.pack(3) + b"abc",
        LENGTH.pack(2) + b"[]",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_ends_its_connection_and_no_other(
    client: Client, path: Path, served: QuerySocket, garbage: bytes
) -> None:
    other = Client(path, served)
    client.send(garbage)
    with pytest.raises(ConnectionError):
        client.read()
    assert values(other.ask(query())) == [b"staged"]
    other.socket.close()


@pytest.mark.parametrize("message", [{"id": 3}, {"id": 3, "type": "vanish"}, {"id": 3, "type": "query"}])
def test_a_request_without_sense_gets_an_error(client: Client, message: dict[str, Any]) -> None:
    reply = client.ask(frame(message))
    assert reply["id"] == 3
    assert "error" in reply
    assert values(client.ask(query())) == [b"staged"]


def test_clients_that_vanish_leave_nothing_behind(client: Client, path: Path, served: QuerySocket) -> None:
    for data in (b"", query()[:9], query(), query(bound=99, wait_ms=60_000) * 3):
        gone = Client(path, served)
        gone.send(data)
        served.let_in()
        gone.socket.close()
    while client.ask(frame({"id": 1, "type": "status"}))["status"]["connections"] > 1:
        pass
    assert client.ask(frame({"id": 1, "type": "status"}))["status"]["waiting"] == 0


def test_a_client_that_reads_nothing_does_not_hold_up_another(
    path: Path, served: QuerySocket, store: KeyValueStore, client: Client
) -> None:
    store.put_all([(b"%d" % i, b"x" * 10_000) for i in range(100)])
    terms = Terms("letters", UNCOMMITTED)
    deaf = Client(path, served)
    deaf.send(b"".join(frame(encode_request(WireRequest(i, terms, 0, RangeQuery(), 0))) for i in range(30)))
    assert sum(served.let_in() for _ in range(60)) < 10, "unread answers are not piled up"
    assert values(client.ask(query())) == [b"staged"]
    assert [deaf.read()["id"] for _ in range(30)] == list(range(30))
    deaf.socket.close()


def test_an_answer_that_fits_no_frame_is_an_error(
    client: Client, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.query.wire.MAX_FRAME_BYTES", 500)
    store.put(b"k", b"x" * 1000)
    assert "larger" in client.ask(query())["error"]


def test_a_commit_reaches_subscribers_only(client: Client, path: Path, served: QuerySocket) -> None:
    other = Client(path, served)
    client.ask(frame({"id": 1, "type": "subscribe"}))
    other.ask(frame({"id": 1, "type": "status"}))
    served.announce_commit()
    assert client.read() == {"event": "commit"}
    assert values(other.ask(query())) == [b"staged"]
    other.socket.close()


def test_a_subscriber_that_reads_nothing_never_blocks_the_worker(client: Client, served: QuerySocket) -> None:
    client.ask(frame({"id": 1, "type": "subscribe"}))
    for _ in range(30_000):  # far more than the kernel keeps for it
        served.announce_commit()
    assert client.read() == {"event": "commit"}
    while values_or_event(client.ask(query())) != [b"staged"]:
        pass


def values_or_event(reply: dict[str, Any]) -> list[bytes]:
    return [] if "event" in reply else values(reply)


def test_a_query_waits_for_uncommitted_records(client: Client, served: QuerySocket, store: KeyValueStore) -> None:
    client.send(query(bound=3, wait_ms=60_000))
    for _ in range(5):
        served.let_in()
        client.receive()
    assert not client.frames()
    write(store, b"newer", 3)
    assert values(client.read()) == [b"newer"]


def test_those_who_wait_are_tried_again_only_when_their_bound_is_met(
    client: Client, served: QuerySocket, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    run = HostedQueries.run

    def counted(queries: HostedQueries, request: WireRequest) -> Outcome:
        tried.append(request.id)
        return run(queries, request)

    monkeypatch.setattr(HostedQueries, "run", counted)
    client.send(b"".join(query(number, bound=5 + number % 2, wait_ms=60_000) for number in range(50)))
    while len(tried) < 50:
        served.let_in()
    for offset in (3, 3, 4):
        write(store, b"newer", offset)
        served.let_in()
    assert len(tried) == 50
    write(store, b"newest", 5)
    answers = [client.read() for _ in range(25)]
    assert sorted(answer["id"] for answer in answers) == list(range(0, 50, 2))
    assert {value for answer in answers for value in values(answer)} == {b"newest"}
    assert len(tried) == 75


def test_those_who_wait_are_told_when_their_partition_goes_away(
    client: Client, served: QuerySocket, store: KeyValueStore
) -> None:
    client.send(query(bound=5, wait_ms=60_000))
    served.let_in()
    store.close()
    assert isinstance(error(client.read()), NotPresentError)


def test_those_who_were_not_looked_at_in_a_call_come_first_in_the_next(
    client: Client, served: QuerySocket, store: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send(b"".join(query(number, bound=5, wait_ms=60_000) for number in range(10)))
    while client.ask(frame({"id": 99, "type": "status"}))["status"]["waiting"] < 10:
        pass
    write(store, b"newest", 5)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * 0.001)  # of these modules alone: other threads look too
    for module in ("query_socket", "waiting_queries"):
        monkeypatch.setattr(f"stateline.worker.queries.{module}.time", clock)
    answered = [served.let_in() for _ in range(10)]
    monkeypatch.undo()
    assert 0 < max(answered) < 5, "each look costs a millisecond here, and a call has five"
    assert [client.read()["id"] for _ in range(10)] == list(range(10))


def test_a_query_waits_for_a_commit_when_it_reads_committed(
    client: Client, served: QuerySocket, store: KeyValueStore
) -> None:
    client.send(query(level=COMMITTED, bound=2, wait_ms=60_000))
    for _ in range(5):
        served.let_in()
        client.receive()
    assert not client.frames()
    store.commit({})
    assert values(client.read()) == [b"staged"]


def test_a_wait_that_runs_out_is_answered_with_where_it_stands(client: Client) -> None:
    reply = client.ask(query(bound=99, wait_ms=20))
    outcome = decode_outcome(reply["outcome"], Numbered)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, NotUpToBoundError)
    assert outcome.position == Position.of({TopicPartition("input", 0): 2})


def scan(number: int, level: IsolationLevel = UNCOMMITTED, limit: int = 1) -> bytes:
    request = WireRequest(number, Terms("letters", level, limit=limit), 0, RangeQuery())
    return frame(encode_request(request))


def more(number: int, of: int, limit: int = 99) -> bytes:
    return frame({"id": number, "type": "more", "scan": of, "limit": limit})


def begun(client: Client, level: IsolationLevel = UNCOMMITTED) -> int:
    """The number of a scan that has given one entry."""
    reply = client.ask(scan(1, level))
    assert len(values(reply)) == 1
    return int(reply["outcome"]["rows"]["scan"])


def given(reply: dict[str, Any]) -> list[Any]:
    return [entry for entry, _ in decode_rows(reply["rows"], Numbered).entries]


@pytest.fixture
def letters(store: KeyValueStore) -> KeyValueStore:
    """a to e committed, k staged on top."""
    store.put_all([(bytes([letter]), b"v") for letter in b"abcde"])
    store.commit({})
    return store


def test_a_scan_is_read_on_by_its_number_from_the_state_that_it_began_with(
    client: Client, letters: KeyValueStore, served: QuerySocket
) -> None:
    for level in IsolationLevel:
        number = begun(client, level)
        letters.put(b"bb", b"late")
        assert given(client.ask(more(2, number, limit=2))) == [b"b", b"c"]
        letters.delete(b"d")
        letters.commit({})
        assert given(client.ask(more(3, number))) == [b"d", b"e", b"k"]
        assert len(served.scans) == 0, "what was read to its end is not kept"
        letters.put(b"d", b"v")
        letters.delete(b"bb")
        letters.commit({})


def test_a_scan_that_is_gone_is_expired(client: Client, letters: KeyValueStore) -> None:
    number = begun(client)
    client.ask(more(2, number))
    for unknown in (number, 999):
        assert isinstance(error(client.ask(more(3, unknown))), CursorExpiredError)


def test_a_scan_that_is_dropped_is_gone(client: Client, letters: KeyValueStore, served: QuerySocket) -> None:
    number = begun(client)
    client.send(frame({"id": 2, "type": "drop", "scan": number}))
    assert isinstance(error(client.ask(more(3, number))), CursorExpiredError)
    assert len(served.scans) == 0


def test_the_scans_of_a_client_are_its_own_and_go_with_it(
    client: Client, letters: KeyValueStore, served: QuerySocket, path: Path
) -> None:
    number, other = begun(client), Client(path, served)
    theirs = begun(other)
    other.send(frame({"id": 2, "type": "drop", "scan": number}))
    assert isinstance(error(other.ask(more(3, number))), CursorExpiredError)
    other.socket.close()
    while len(served.scans) > 1:
        served.let_in()
    assert isinstance(error(client.ask(more(4, theirs))), CursorExpiredError)
    assert given(client.ask(more(5, number, limit=1))) == [b"b"]


def test_the_scan_that_was_read_longest_ago_makes_room(
    client: Client, letters: KeyValueStore, served: QuerySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_scans, "MAX_OPEN_SCANS", 2)
    first, second = begun(client), begun(client)
    assert given(client.ask(more(2, first, limit=1))) == [b"b"]
    third = begun(client)
    assert isinstance(error(client.ask(more(3, second))), CursorExpiredError)
    assert [given(client.ask(more(4, number, limit=1))) for number in (first, third)] == [[b"c"], [b"b"]]


def test_a_server_that_has_many_scans_ends_its_own_and_not_those_of_another(
    client: Client, letters: KeyValueStore, served: QuerySocket, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_scans, "MAX_OPEN_SCANS", 3)
    other = Client(path, served)
    theirs, mine = begun(other), [begun(client) for _ in range(5)]
    assert given(other.ask(more(2, theirs, limit=1))) == [b"b"]
    for gone in mine[:3]:
        assert isinstance(error(client.ask(more(3, gone))), CursorExpiredError)
    assert [given(client.ask(more(4, number, limit=1))) for number in mine[3:]] == [[b"b"], [b"b"]]
    other.socket.close()


def test_scans_that_keep_too_much_of_what_was_staged_make_room_and_each_version_counts_once(
    client: Client, letters: KeyValueStore, served: QuerySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.put(b"k", b"v")
    monkeypatch.setattr(open_scans, "MAX_PINNED_BYTES", letters.approximate_num_uncommitted_bytes * 3)
    same = [begun(client) for _ in range(5)]
    assert served.scans.pinned_bytes == letters.approximate_num_uncommitted_bytes
    letters.put(b"l", b"v")  # what is staged has grown to two rows, beside the version of one
    begun(client)
    assert [given(client.ask(more(2, number, limit=1))) for number in same] == [[b"b"]] * 5
    letters.put(b"m", b"v")
    newest = begun(client)
    assert isinstance(error(client.ask(more(3, same[0]))), CursorExpiredError)
    assert given(client.ask(more(4, newest, limit=1))) == [b"b"]


def test_a_query_may_scan_more_partitions_than_scans_are_kept_of_one(
    letters: KeyValueStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_scans, "MAX_OPEN_SCANS", 2)
    served = QuerySocket(path, lambda name, partition: HostedPartition(letters, StoreState.ACTIVE))
    client = Client(path, served)
    terms = Terms("letters", UNCOMMITTED, limit=1)
    numbers = []
    for partition in range(5):
        reply = client.ask(frame(encode_request(WireRequest(partition, terms, partition, RangeQuery()))))
        numbers.append(int(reply["outcome"]["rows"]["scan"]))
    assert [given(client.ask(more(9, number, limit=1))) for number in numbers] == [[b"b"]] * 5
    for number in numbers:
        client.ask(more(9, number))
    assert len(served.scans) == 0
    client.socket.close()
    served.close()


def test_a_scan_whose_entries_fit_no_frame_is_not_kept(
    client: Client, letters: KeyValueStore, served: QuerySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.put(b"b", b"x" * 1000)
    number = begun(client)
    monkeypatch.setattr("stateline.query.wire.MAX_FRAME_BYTES", 500)
    assert "larger" in client.ask(more(2, number, limit=1))["error"]
    assert "larger" in client.ask(scan(3, limit=2))["error"]
    assert len(served.scans) == 0


def test_a_scan_of_a_store_that_was_closed_is_expired(
    client: Client, letters: KeyValueStore, served: QuerySocket
) -> None:
    number = begun(client)
    letters.close()
    assert isinstance(error(client.ask(more(2, number))), CursorExpiredError)
    assert len(served.scans) == 0


@pytest.mark.parametrize("given", [{}, {"scan": "x", "limit": 1}, {"scan": 1}, {"scan": None, "limit": 1}])
def test_reading_on_without_sense_gets_an_error(client: Client, given: dict[str, Any]) -> None:
    assert "error" in client.ask(frame({"id": 1, "type": "more"} | given))


def test_closing_twice_is_fine(served: QuerySocket, path: Path) -> None:
    served.close()
    served.close()
    assert not path.exists()
