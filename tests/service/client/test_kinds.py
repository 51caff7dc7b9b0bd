"""Both clients and every kind of store over a real worker and a real server: windows, sessions, versions, pages and
changes. The oracle is what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from stateline.client import Change, Client, CursorExpiredError, InvalidArgumentError, Position, UnknownQueryTypeError
from stateline.log import open_log
from stateline_store import TopicPartition
from support.apps.changes_app import SIZE_MS
from support.http.faulty_proxy import FaultyProxy, faulty_proxy
from support.processes.change_scene import TIME_MS, Scene
from support.run.length import long_only

Connect = Callable[..., Client]
# A key's records are a second apart, in one partition.
SENT: list[tuple[str, Any]] = [(f"k{number % 4}", number) for number in range(200)]


class Served(NamedTuple):
    scene: Scene
    http: httpx.Client


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("kinds")
    bootstrap = f"embedded:{root / 'log.db'}"
    with closing(open_log(bootstrap, root)) as log, Scene(bootstrap, log, root) as scene:
        scene.start_worker()
        _, http = scene.start_server()
        scene.send(SENT)
        for store in ("counts", "windows", "visits", "history", "newest"):
            scene.settle(http, store)
        yield Served(scene, http)


@pytest.fixture
def client(served: Served, connect: Connect) -> Client:
    return connect(served.http.base_url, isolation_level="read_committed")


@pytest.fixture
def proxy(served: Served) -> Iterator[FaultyProxy]:
    assert served.http.base_url.port is not None
    with faulty_proxy(served.http.base_url.port) as proxy:
        yield proxy


def times_of(key: str) -> list[tuple[int, int]]:
    """When each value of a key was written."""
    return [(TIME_MS + 1000 * number, value) for number, (k, value) in enumerate(SENT) if k == key]


def starts_of(key: str) -> dict[int, int]:
    """The last value in each window."""
    return {at - at % SIZE_MS: value for at, value in times_of(key)}


def test_versions_come_the_newest_first_and_page_on_one_state(client: Client) -> None:
    written = times_of("k1")
    versions = list(client.store("history").versions("k1", page_size=7))
    assert [(version.timestamp, version.value) for version in versions] == written[::-1]
    ends = [*[at for at, _ in written[1:]], None]
    assert [version.valid_to for version in versions] == ends[::-1]
    upwards = client.store("history").versions("k1", order="asc", page_size=7, limit=20)
    assert [version.value for version in upwards] == [value for _, value in written[:20]]


def test_a_version_is_found_as_of_a_time(client: Client) -> None:
    history = client.store("history")
    (first_at, first), (second_at, _) = times_of("k2")[:2]
    answer = history.get("k2", as_of=second_at - 1)
    assert (answer.value, answer.timestamp, answer.valid_to) == (first, first_at, second_at)
    assert history.get("k2", as_of=datetime.fromtimestamp(first_at / 1000, UTC)).value == first
    assert not history.get("k2", as_of=first_at - 1).found
    assert history.get("k2").value == times_of("k2")[-1][1]
    assert history.get_many(["k2"]).entries[0].valid_to is None


def test_versions_of_all_keys_are_those_of_now_or_of_a_time(client: Client) -> None:
    history, at = client.store("history"), times_of("k2")[5][0]
    then = {key: [value for time, value in times_of(key) if time <= at][-1] for key in ("k0", "k1", "k2", "k3")}
    entries = list(history.range(as_of=at, page_size=3))
    assert [(entry.key, entry.value) for entry in entries] == list(then.items())
    assert all(entry.timestamp <= at < entry.valid_to for entry in entries)  # type: ignore[operator]  # versions have both
    (latest,) = history.range(prefix="k3", as_of=datetime.fromtimestamp(at / 1000 + 10**6, UTC))
    assert (latest.value, latest.valid_to) == (times_of("k3")[-1][1], None)
    assert [entry.key for entry in history.range(lower="k1", order="desc")] == ["k3", "k2", "k1"]
    rows = [row for batch in history.range(as_of=at).batches() for row in batch.to_pylist()]
    assert [(row["key"], row["valid_to"]) for row in rows] == [(entry.key, entry.valid_to) for entry in entries]


def test_windows_of_a_key_come_by_their_start(client: Client) -> None:
    found = {window.start: window for window in client.store("windows").windows("k3", page_size=2)}
    assert {start: window.value for start, window in found.items()} == starts_of("k3")
    assert all(window.end - window.start == SIZE_MS for window in found.values())
    second = sorted(found)[1]
    (one,) = client.store("stamped").windows("k3", time_from=second, time_to=second)
    assert (one.start, one.value) == (second, starts_of("k3")[second])


def test_windows_of_every_key_come_by_their_start(client: Client) -> None:
    start = sorted(starts_of("k0"))[1]
    found = client.store("windows").all_windows(time_from=start, time_to=start + SIZE_MS, page_size=3)
    expected = {
        (k, s): v for k in ("k0", "k1", "k2", "k3") for s, v in starts_of(k).items() if 0 <= s - start <= SIZE_MS
    }
    entries = list(found)
    assert {(window.key, window.start): window.value for window in entries} == expected
    assert len(entries) == len(expected)


def test_sessions_of_a_key_come_with_start_and_end(client: Client) -> None:
    sessions = list(client.store("visits").sessions("k1"))
    assert {(s.start, s.end): s.value for s in sessions} == {(s, s + 10): v for s, v in starts_of("k1").items()}


def test_sessions_of_all_keys_come_by_key_and_then_end(client: Client) -> None:
    visits = client.store("visits")
    written = {(key, start): value for key in ("k0", "k1", "k2", "k3") for start, value in starts_of(key).items()}
    found = list(visits.all_sessions(page_size=3))
    assert [(s.key, s.end) for s in found] == sorted((key, start + 10) for key, start in written)
    assert {(s.key, s.start): s.value for s in found} == written
    second = sorted(starts_of("k1"))[1]
    some = list(visits.all_sessions(time_from=second + 10, time_to=second + 10, order="desc"))
    assert [(s.key, s.start) for s in some] == sorted((each for each in written if each[1] == second), reverse=True)
    rows = [row for batch in visits.all_sessions().batches() for row in batch.to_pylist()]
    assert [(row["key"], row["end"]) for row in rows] == [(s.key, s.end) for s in found]


def test_a_query_of_another_kind_of_store_is_refused(client: Client) -> None:
    with pytest.raises(UnknownQueryTypeError):
        client.store("windows").get("k1")
    with pytest.raises(UnknownQueryTypeError):
        list(client.store("history").windows("k1"))


def test_pages_are_of_one_state_while_the_store_goes_on(served: Served, client: Client) -> None:
    store = client.store("counts")
    served.scene.send([(f"page{number:02}", number) for number in range(20)])
    served.scene.settle(served.http)
    pages = store.range(prefix="page", page_size=6).pages()
    first = next(pages)
    served.scene.send([(f"page{number:02}", None) for number in range(20)])
    served.scene.settle(served.http)
    rest = list(pages)
    keys = [entry.key for page in (first, *rest) for entry in page.entries]
    assert keys == [f"page{number:02}" for number in range(20)]
    assert {str(page.position) for page in rest} == {str(first.position)}
    assert [len(page.entries) for page in (first, *rest)] == [6, 6, 6, 2]
    assert list(store.range(prefix="page")) == []


def take(changes: Iterator[Change], count: int) -> list[tuple[str, Any]]:
    return [(change.key, change.value) for change in islice(changes, count)]


def test_changes_come_from_the_beginning_each_key_in_its_order(client: Client) -> None:
    keys = ("k0", "k1", "k2", "k3")
    with closing(client.store("newest").changes(since="earliest")) as changes:
        ours = islice((change for change in changes if change.key in keys), len(SENT))
        per_key: dict[str, list[Any]] = {key: [] for key in keys}
        for change in ours:
            per_key[change.key].append(change.value)
    assert per_key == {key: [value for _, value in times_of(key)] for key in keys}


def test_changes_go_on_after_the_position_of_an_answer(served: Served, client: Client) -> None:
    store = client.store("counts")
    served.scene.settle(served.http)
    position = store.position().position
    # Different keys of one partition: of one that changes twice between two commits the changelog has the last
    # value only.
    run = uuid4().hex
    served.scene.send([(f"{run}1", 7), (f"{run}3", 8), (f"{run}5", None)])
    with closing(store.changes(since=position)) as changes:
        assert take(changes, 3) == [(f"{run}1", 1), (f"{run}3", 1), (f"{run}5", None)]


@pytest.mark.parametrize(
    "store", [pytest.param("newest", marks=long_only("a client does not know which topic changes are of")), "counts"]
)
def test_a_lost_connection_loses_and_repeats_no_change(
    served: Served, proxy: FaultyProxy, connect: Connect, store: str
) -> None:
    client = connect(proxy.url, isolation_level="read_committed")
    served.scene.settle(served.http, store)
    position = client.store(store).position().position
    found, run = [], uuid4().hex
    with closing(client.store(store).changes(since=position)) as changes:
        for number in range(4):
            served.scene.send([(f"{run}{number}{part}", 1) for part in "ac"])  # both of one partition
            found += take(changes, 2)
            proxy.lose_connections()
    assert found == [(f"{run}{number}{part}", 1) for number in range(4) for part in "ac"]
    assert sum(b"/changes?from=%7B" in request for request in proxy.requests) >= 3


def test_changes_of_windows_say_which_window(client: Client) -> None:
    with closing(client.store("windows").changes(since="earliest")) as changes:
        change = next(iter(changes))
    assert change.start is not None
    assert change.end is not None
    assert change.end - change.start == SIZE_MS


def test_a_position_that_the_log_never_had_is_told(served: Served, client: Client) -> None:
    beyond = Position.of({TopicPartition(served.scene.source, 0): 10**9})
    with pytest.raises(CursorExpiredError):
        next(iter(client.store("newest").changes(since=beyond)))
    with pytest.raises(InvalidArgumentError):
        next(iter(client.store("newest").changes(since=Position.of({TopicPartition("other", 0): 1}))))
