"""Both clients against a real server: what it answers arrives as typed results."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from stateline.client import (
    Client,
    DoesNotExistError,
    Entry,
    FoundEntry,
    InvalidArgumentError,
    IsolationLevel,
    JsonKey,
    NotUpToBoundError,
    Position,
    Session,
    UnexpectedAnswerError,
    UnknownQueryTypeError,
)
from stateline_store import StoreState, TopicPartition
from support.processes.query_server import PARTITIONS, TIMESTAMP_MS, TOPIC, OwningWorker


def test_a_key_is_found_with_all_that_an_answer_says(client: Client, worker: OwningWorker) -> None:
    at = worker.put("whole", {"a": 1})
    worker.commit()
    answer = client.store("aircraft").get("whole")
    assert (answer.found, answer.key, answer.value, answer.timestamp) == (True, "whole", {"a": 1}, TIMESTAMP_MS)
    assert answer.isolation_level is IsolationLevel.READ_COMMITTED
    assert answer.position == Position.of({at: worker.offset(at.partition)})
    assert answer.partitions[at.partition].served_by == "active"
    assert answer.partitions[at.partition].position == answer.position


def test_a_key_that_is_absent_is_not_found(client: Client, worker: OwningWorker) -> None:
    answer = client.store("aircraft").get("nobody")
    assert (answer.found, answer.value, answer.timestamp) == (False, None, None)


@pytest.mark.parametrize("key", ["a/b", "..", ".", "%41", "a b+c", "é\n", "?x=1#y"])
def test_any_text_is_a_key(client: Client, worker: OwningWorker, key: str) -> None:
    worker.put(key, {"is": key})
    worker.commit()
    aircraft = client.store("aircraft")
    assert aircraft.get(key).value == {"is": key}
    assert aircraft.get_many([key]).entries[0].value == {"is": key}
    assert [entry.key for entry in aircraft.range(lower=key, upper=key)] == [key]


def test_a_key_too_long_for_a_url_is_found(client: Client, worker: OwningWorker) -> None:
    key = "long" * 5000
    worker.put(key, 1)
    worker.commit()
    assert client.store("aircraft").get(key).value == 1
    assert not client.store("aircraft").get(key + "!").found


def test_keys_of_every_type_are_found_in_a_path_and_in_a_body(client: Client, worker: OwningWorker) -> None:
    stored = {"counts": (-7).to_bytes(8, "big", signed=True), "blobs": b"\xff\xfe\x00", "places": b'{"x": [1,  2]}'}

    def put() -> None:
        for name, key in stored.items():
            for partition in range(PARTITIONS):
                worker.stores[name, partition].put(key, (42).to_bytes(8, "big") if name == "counts" else b"1")

    worker.run(put)
    worker.commit()
    for name, key in (("counts", -7), ("blobs", b"\xff\xfe\x00"), ("places", JsonKey('{"x": [1,  2]}'))):
        store = client.store(name)
        assert store.get(key).found, name
        assert store.get_many([key]).entries[0].found, name
        assert [entry.key for entry in store.range(lower=key, upper=key, partitions=[0])], name
    shown = client.store("blobs").get(b"\xff\xfe\x00").key
    assert client.store("blobs").get(shown).found


def test_many_keys_are_answered_in_the_order_asked(client: Client, worker: OwningWorker) -> None:
    worker.put("m1", 1)
    worker.put("m2", 2)
    worker.commit()
    answer = client.store("aircraft").get_many(["m2", "absent", "m1"])
    assert answer.entries == (
        FoundEntry(found=True, key="m2", value=2, timestamp=TIMESTAMP_MS),
        FoundEntry(found=False, key="absent", value=None, timestamp=None),
        FoundEntry(found=True, key="m1", value=1, timestamp=TIMESTAMP_MS),
    )


def test_a_range_is_iterated_in_both_orders_and_cut_to_its_limit(client: Client, worker: OwningWorker) -> None:
    for number in range(20):
        worker.put(f"range{number:02}", number)
    worker.commit()
    aircraft = client.store("aircraft")
    expected = [Entry(key=f"range{n:02}", value=n, timestamp=TIMESTAMP_MS) for n in range(20)]
    scan = aircraft.range(prefix="range")
    assert list(scan) == expected
    assert list(scan) == expected, "a scan can be iterated again"
    assert list(aircraft.range(lower="range05", upper="range09")) == expected[5:10]
    assert list(aircraft.range(prefix="range", order="desc", limit=3)) == expected[:-4:-1]
    assert list(aircraft.range(prefix="nothing")) == []


def test_terms_of_a_call_win_over_those_of_the_store_and_the_client(
    server: httpx.URL, connect: Callable[..., Client], worker: OwningWorker
) -> None:
    worker.put("terms", 1)
    worker.commit()
    worker.put("terms", 2)
    client = connect(server, isolation_level="read_uncommitted")
    assert client.store("aircraft").get("terms").value == 2
    committed = client.store("aircraft", isolation_level=IsolationLevel.READ_COMMITTED)
    assert committed.get("terms").value == 1
    assert committed.get("terms", isolation_level="read_uncommitted").value == 2
    worker.commit()


def test_a_bound_that_is_not_reached_says_where_the_store_is(client: Client, worker: OwningWorker) -> None:
    at = worker.put("bound", 1)
    worker.commit()
    beyond = Position.of({at: worker.offset(at.partition) + 1})
    with pytest.raises(NotUpToBoundError) as caught:
        client.store("aircraft").get("bound", bound=beyond)
    problem = caught.value.problem
    assert (problem.store, problem.partition, problem.bound) == ("aircraft", at.partition, beyond)
    assert problem.position is not None
    assert problem.position.get(TOPIC, at.partition) == worker.offset(at.partition)


def test_partitions_that_fail_stand_beside_those_that_answer(client: Client, worker: OwningWorker) -> None:
    for number in range(30):
        worker.put(f"partial{number}", number)
    worker.commit()
    aircraft = client.store("aircraft", allow_partial=True)
    out_of_reach = Position.of({TopicPartition(TOPIC, 0): 10**9})
    (page,) = aircraft.range(prefix="partial", bound=out_of_reach).pages()
    assert (set(page.partitions), set(page.failures)) == ({1, 2}, {0})
    assert page.failures[0].reason == "NOT_UP_TO_BOUND"
    assert 0 < len(page.entries) < 30


def test_only_the_partitions_asked_for_are_read(client: Client, worker: OwningWorker) -> None:
    for number in range(12):
        worker.put(f"chosen{number}", number)
    worker.commit()
    everywhere = {entry.key for entry in client.store("aircraft").range(prefix="chosen")}
    parts = [list(client.store("aircraft").range(prefix="chosen", partitions=[p])) for p in range(PARTITIONS)]
    assert sum(map(len, parts)) == len(everywhere) == 12
    assert {entry.key for part in parts for entry in part} == everywhere


def test_an_active_copy_can_be_required(client: Client, worker: OwningWorker) -> None:
    worker.put("active", 1)
    worker.commit()
    assert client.store("aircraft").get("active", require_active=True).found
    worker.set_state(StoreState.RESTORING)
    try:
        assert {p.served_by for p in client.store("aircraft").count().partitions.values()} == {"restoring"}
    finally:
        worker.set_state(StoreState.ACTIVE)


def test_count_and_position_are_answered(client: Client, worker: OwningWorker) -> None:
    at = worker.put("counted", 1)
    worker.commit()
    worker.put("counted", 2)
    aircraft = client.store("aircraft")
    assert aircraft.count().approximate_entries > 0
    position = aircraft.position()
    offset = worker.offset(at.partition)
    assert position.committed[at.partition].get(*at) == offset - 1
    assert position.uncommitted[at.partition].get(*at) == offset
    worker.commit()


def test_the_service_describes_itself(client: Client, worker: OwningWorker) -> None:
    stores = {store.store: store for store in client.stores()}
    assert set(stores) == {"aircraft", "cache", "counts", "blobs", "places"}
    assert (stores["counts"].key_type, stores["cache"].persistent) == ("int64", False)
    details = client.store("aircraft").details()
    assert (details.kind, details.changelog, set(details.partitions)) == (
        "timestamped_key_value",
        TOPIC,
        set(range(PARTITIONS)),
    )
    assert {partition.owner for partition in details.partitions.values()} == {"w1"}
    topology = client.topology()
    assert topology.application_id == "flights-app"
    assert topology.stores["aircraft"].value_type == "json"
    assert topology.subtopologies[0].sources == (TOPIC,)
    assert {topic.topic for topic in topology.topics} == {TOPIC}
    (instance,) = client.instances()
    assert (instance.instance, instance.reachable, set(instance.tasks)) == ("w1", True, {"0_0", "0_1", "0_2"})
    client.check_health()
    assert client.readiness().ready


def test_the_callers_mistakes_are_told_as_the_librarys_errors(client: Client) -> None:
    with pytest.raises(DoesNotExistError, match="nope"):
        client.store("nope").get("k")
    with pytest.raises(DoesNotExistError):
        client.store("nope/../aircraft").details()
    with pytest.raises(InvalidArgumentError, match="int64"):
        client.store("counts").get("seven")
    with pytest.raises(UnknownQueryTypeError):
        client.store("aircraft").get("k", as_of=0)
    with pytest.raises(UnknownQueryTypeError):
        list(client.store("aircraft").windows("k"))
    with pytest.raises(InvalidArgumentError, match="prefix"):
        list(client.store("aircraft").range(prefix="a", lower="b"))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", "http://h?x=1", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        Client(url)


def test_a_token_is_never_shown_and_one_with_a_line_break_refused() -> None:
    with Client("http://127.0.0.1:1", token="s3cret") as client:
        assert "s3cret" not in repr(client) + repr(vars(client))
    with pytest.raises(ValueError, match="token"):
        Client("http://127.0.0.1:1", token="a\nb")


def test_something_else_that_listens_is_not_taken_for_a_server(client: Client, server: httpx.URL) -> None:
    with Client(str(server.copy_with(path="/docs"))) as lost, pytest.raises((UnexpectedAnswerError, DoesNotExistError)):
        lost.store("aircraft").get("k")


def test_a_session_never_reads_before_what_it_has_seen(client: Client, worker: OwningWorker) -> None:
    worker.put("session", 1)
    worker.commit()
    at = worker.put("session", 2)
    session = Session(wait_ms=0)
    aircraft = client.store("aircraft", session=session)
    assert aircraft.get("session", isolation_level="read_uncommitted").value == 2
    assert session.position("aircraft").get(*at) == worker.offset(at.partition)
    assert client.store("aircraft").get("session").value == 1, "without a session it goes back in time"
    with pytest.raises(NotUpToBoundError):
        aircraft.get("session")
    worker.commit()
    assert aircraft.get("session").value == 2
    session.forget("aircraft")
    assert not session.position("aircraft")


def test_a_session_reads_what_its_caller_wrote(client: Client, worker: OwningWorker) -> None:
    session = Session(wait_ms=20_000)
    aircraft = client.store("aircraft", session=session)
    at = worker.put("own", "new")
    session.saw("aircraft", Position.of({at: worker.offset(at.partition)}))
    with pytest.raises(NotUpToBoundError):
        aircraft.get("own", wait_ms=0)
    worker.commit()
    assert aircraft.get("own").value == "new"
