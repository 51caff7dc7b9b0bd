"""Which server is asked: what a map says, which URLs are left alone, and that refusals are not followed in circles."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from stateline import serdes
from stateline.client import Answer, JsonKey, Node, Nodes, NotPresentError, PartitionAnswer, Position, Problem, Retries
from stateline.client import routing as client_routing
from stateline.client.failures import BY_REASON, UnreachableError
from stateline.client.nodes import OwnerMap
from stateline.client.requests import Home, Key
from stateline.client.routing import Routing
from stateline.serde.partitioner import home_partition
from stateline.serde.plain import Serde
from stateline_store import IsolationLevel, StatelineError
from support.http.faulty_proxy import Answered, faulty_proxy
from support.processes.query_server import OwningWorker

PARTITIONS = 7


ONE, TWO = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


def known(urls: dict[str, str | None], given: str = "http://10.0.0.9:8000", key_type: str = "string") -> OwnerMap:
    """What a client that was given this address makes of these nodes, which have the partitions in turns."""
    nodes = {name: Node(url=url, version="1", reached=True) for name, url in urls.items()}
    owned = {p: list(urls.values())[p % len(urls)] for p in range(PARTITIONS)}
    stores, types = {"s": owned}, {"s": key_type}
    return OwnerMap(Nodes(application="a", node="one", number=1, nodes=nodes, stores=stores, key_types=types), [given])


@pytest.mark.parametrize(
    ("key", "serde", "written"),
    [
        ("ü", serdes.string, "ü"),
        (-7, serdes.int32, -7),
        (2**40, serdes.int64, 2**40),
        (1, serdes.float64, 1.0),
        (b"\0\xff", serdes.bytes, b"\0\xff"),
        (JsonKey('{"a": 1}'), serdes.json, {"a": 1}),
    ],
    ids=["string", "int32", "int64", "float64", "bytes", "json"],
)
def test_a_key_is_asked_of_the_owner_of_the_partition_that_kafka_puts_it_into(
    key: Key, serde: Serde, written: Any
) -> None:
    owners = known({str(n): f"http://10.0.0.{n}:8000" for n in range(PARTITIONS)}, key_type=serde.name)
    data = b'{"a": 1}' if isinstance(key, JsonKey) else serde.serialize(written)
    owner = owners.owner(Home("s", key))
    assert owner is not None
    assert owner.node == str(home_partition(data, PARTITIONS))
    assert owners.owner(Home("s", key, (int(owner.node),))) == owner
    assert owners.owner(Home("s", key, (0, 1, 2, 3, 4, 5, 6))) == owner


def test_what_is_in_no_partition_alone_has_no_owner() -> None:
    owners = known({"one": "http://10.0.0.1:1"})
    assert owners.owner(Home("s")) is None
    assert owners.owner(Home("none", "k")) is None
    assert owners.owner(Home("s", None, (0, 1))) is None
    assert known({"one": "http://10.0.0.1:1"}, key_type="mine (string)").owner(Home("s", "k")) is None
    assert known({"one": "http://10.0.0.1:1"}, key_type="int32").owner(Home("s", "k")) is None


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("http://10.0.0.1:8000", "https://10.0.0.9"),  # a token and values would go in the clear
        ("http://127.0.0.1:8000", "http://10.0.0.9:8000"),  # what listens here is another one
        ("http://localhost:8000", "https://nodes.example"),
        ("http://[::1]:8000", "http://10.0.0.9"),
        ("http://user@10.0.0.1:8000", "http://10.0.0.9"),
        ("http://10.0.0.1:8000/?x=1", "http://10.0.0.9"),
        ("http://10.0.0.1:999999", "http://10.0.0.9"),
        ("ftp://10.0.0.1", "http://10.0.0.9"),
        ("10.0.0.1:8000", "http://10.0.0.9"),
        (None, "http://10.0.0.9"),
    ],
)
def test_a_url_that_nobody_should_be_asked_at_is_none(url: str | None, given: str) -> None:
    assert known({"one": url}, given).owner(Home("s", "k")) is None


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("https://n1.example", "https://n.example"),
        ("https://n1.example", "http://n.example"),
        ("http://[fd::1]:80", "http://n"),
    ],
)
def test_a_url_that_is_as_safe_as_the_given_one_is_asked(url: str, given: str) -> None:
    found = known({"one": url}, given).owner(Home("s", "k"))
    assert found is not None
    assert (found.node, found.url) == ("one", url)


def test_a_url_that_several_nodes_call_theirs_is_a_load_balancers() -> None:
    owners = known({"one": "http://10.0.0.1:1", "two": "http://10.0.0.1:1/"})
    assert not owners.owners


def told(number: int, *owners: str) -> Nodes:
    """What two nodes say, of whose store `s` each partition has this owner."""
    nodes = {name: Node(url=url, version="1", reached=True) for name, url in (("one", ONE), ("two", TWO))}
    stores = {"s": dict(enumerate(owners))}
    return Nodes(application="a", node="one", number=number, nodes=nodes, stores=stores, key_types={"s": "string"})


def answered_by(node: str | None, served_by: str = "active") -> Answer:
    """Of partition 0."""
    where = Position()
    copy = PartitionAnswer(
        position=where, served_by=served_by, node=node, staged_records=0, staged_bytes=0, committed_at_ms=0
    )
    return Answer(store="s", isolation_level=IsolationLevel.READ_COMMITTED, position=where, partitions={0: copy})


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch) -> Routing:
    """Which was told of two nodes, of which the first has all, and looks for the map as soon as there is a reason."""
    monkeypatch.setattr(client_routing, "_MAP_INTERVAL_S", 0.0)
    made = Routing([ONE], ask_owners=True)
    assert made.map_look(ONE) is None
    made.answered(ONE, answered_by("one"))
    look = made.map_look(ONE)
    assert look is not None
    made.looked(look, told(1, ONE, ONE))
    assert made.map_look(ONE) is None
    return made


MOVED: list[StatelineError] = [
    UnreachableError("It does not answer."),
    *(
        BY_REASON[reason](Problem(reason=reason, detail="Ask again.", status=status))
        for reason, status in (("NOT_PRESENT", 421), ("NOT_ACTIVE", 503), ("NOT_READY", 503))
    ),
]


@pytest.mark.parametrize(
    "failure", [None, *MOVED], ids=lambda failure: "answer" if failure is None else type(failure).__name__
)
def test_the_map_is_asked_for_anew_when_an_answer_has_another_owner_or_none_can_be_had(
    routing: Routing, failure: StatelineError | None
) -> None:
    if failure is None:
        routing.answered(ONE, answered_by("two"))
    else:
        routing.failed(ONE, failure)
    look = routing.map_look(ONE)
    assert look is not None
    routing.looked(look, told(2, TWO, ONE))
    assert routing.map_look(ONE) is None
    assert routing.candidates(Home("s", None, (0,)), None)[0] == TWO


def test_it_is_not_while_answers_say_what_it_says(routing: Routing) -> None:
    routing.answered(ONE, answered_by("one"))
    routing.answered(ONE, answered_by("two", "standby"))
    problem = Problem(reason="NOT_UP_TO_BOUND", detail="Wait for it.", status=412)
    routing.failed(ONE, BY_REASON["NOT_UP_TO_BOUND"](problem))
    assert routing.map_look(ONE) is None


def elsewhere(owner: str) -> Answered:
    problem = {"reason": "NOT_PRESENT", "status": 421, "detail": "It is elsewhere.", "owner": owner}
    return Answered("421 Misdirected Request", {"Content-Type": "application/problem+json"}, json.dumps(problem))


def test_servers_that_point_to_each_other_are_asked_once_each(server: httpx.URL, connect: Any) -> None:
    with faulty_proxy(server.port or 0) as one, faulty_proxy(server.port or 0) as two:
        for proxy, other in ((one, two), (two, one)):
            proxy.faults.extend([elsewhere(other.url)] * 20)
        with pytest.raises(NotPresentError):
            connect([one.url, two.url]).store("aircraft").get("k")
        asked = [each.split(b" ")[1] for proxy in (one, two) for each in proxy.requests]
    assert sorted(asked).count(b"/v1/stores/aircraft/keys/k") == 2
    assert asked.count(b"/v1/nodes") <= 1


def test_a_server_that_is_not_ready_is_passed_over(server: httpx.URL, connect: Any, worker: OwningWorker) -> None:
    worker.put("over", 1)
    worker.commit()
    problem = json.dumps({"reason": "NOT_READY", "status": 503, "detail": "It is shutting down."})
    headers = {"Content-Type": "application/problem+json", "Retry-After": "20"}
    with faulty_proxy(server.port or 0) as one:
        one.faults.append(Answered("503 Service Unavailable", headers, problem))
        client = connect([one.url, str(server)], retries=Retries(deadline_s=10))
        assert client.store("aircraft").get("over").value == 1
        assert len(one.requests) == 1
