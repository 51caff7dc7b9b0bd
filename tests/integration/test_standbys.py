"""A node that is killed while another one follows what it has: who accepts a standby is answered all the while."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stateline.server.routing.query_routing import QueryRouting
from support.kafka.shared_broker import SharedBroker
from support.processes.machines import KEYS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

# Many times the session, and a tenth of the transaction's time.
LOST_S = 60.0

STALE: dict[str, Any] = {"max_staleness_ms": 60_000}


@pytest.fixture
def machines(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Machines]:
    secret = write_secret(tmp_path)
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    settings = (f"node.peer.secret.file={secret}", "num.standby.replicas=1")
    with ExitStack() as stack:
        made = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings)
        made.send()
        for machine in made.every.values():
            machine.start_worker()
        wait_until(lambda: all(len(each.active()) == 1 for each in made.every.values()), HANGING_S)
        yield made


def follows_all(machine: Machine) -> bool:
    """Whether this node has the other one's partition as a standby that lacks nothing."""
    told = machine.get("/v1/stores/counts").json()["partitions"].values()
    copies = [each["copies"].get(machine.name, {}) for each in told]
    found = {(copy.get("state"), copy.get("lag_ms")) for copy in copies}
    return found == {("active", 0), ("standby", 0)}


def followed(machine: Machine) -> set[bool]:
    """Whether a worker keeps its standbys up to date, as it says itself."""
    tasks = machine.get("/v1/nodes").json()["nodes"][machine.name]["tasks"].values()
    return {each["followed"] for each in tasks if each["role"] == "standby"}


def value(machine: Machine, key: str, store: str = "counts", **parameters: Any) -> tuple[int, Any, str]:
    """Status, value, and who has answered."""
    told = machine.get(f"/v1/stores/{store}/keys/{key}", **parameters)
    if told.status_code != 200:
        return told.status_code, None, ""
    (answered,) = told.json()["partitions"].values()
    return 200, told.json()["value"], f"{answered['served_by']} {answered.get('node', machine.name)}"


def test_a_standby_answers_whoever_accepts_it_from_the_loss_of_the_owner_until_it_owns_the_task(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines.every.values()
    wait_until(lambda: follows_all(two), HANGING_S)
    of_one = [key for key in KEYS if value(two, key)[2] == "active one"]
    assert of_one
    wait_until(lambda: followed(two) == {True}, HANGING_S)  # until it is, what it had before the other came is left
    bound: dict[str, Any] = {"position_bound": machines.bound(), "wait_ms": 0}
    for key, store in product(of_one, ("counts", "memory")):
        answered = partial(value, two, key, store, **STALE)
        wait_until(lambda answered=answered: answered()[2] == "standby two", HANGING_S)  # type: ignore[misc]
    with monkeypatch.context() as patched:  # for a key of a store on disk, nothing is routed
        patched.setattr(QueryRouting, "find", None)
        for key in of_one[:5]:
            answer = 200, machines.sent[key], "standby two"
            assert value(two, key, **bound) == answer
            wait_until(lambda key=key, answer=answer: value(two, key, **STALE) == answer, HANGING_S)  # type: ignore[misc]
        assert value(two, of_one[0], "memory", **STALE)[0] == 500, "others are"
    one.stop_worker(signal.SIGKILL)
    one.stop_server()
    seen = set[str]()
    while value(two, of_one[0], require_active="true")[0] != 200:
        for key in of_one[:5]:
            for store, accepted in product(("counts", "memory"), (STALE, bound)):
                status, found, by = value(two, key, store, **accepted)
                assert (status, found) == (200, machines.sent[key])
                seen.add(f"{store}: {by}")
    assert {"counts: standby two", "memory: standby two"} <= seen
    machines.send()
    asked = {"position_bound": machines.bound(), "wait_ms": 30_000}
    for key, store in product(KEYS, ("counts", "memory")):
        assert value(two, key, store, **asked) == (200, machines.sent[key], "active two")


@long_only("who accepts a standby is answered through the loss of the owner")
def test_who_accepts_a_standby_is_answered_while_the_group_waits_for_a_member_to_say_who_has_what(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    ways = dict.fromkeys(("one", "two", "three"), kafka_broker.bootstrap_servers)
    with ExitStack() as stack:
        settings = f"node.peer.secret.file={write_secret(tmp_path)}"
        machines = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, settings)
        one, two, three = machines.every.values()
        machines.send()
        for machine in (one, two):
            machine.start_worker()
        wait_until(lambda: len(one.active()) == len(two.active()) == 1, HANGING_S)
        key = next(key for key in KEYS if value(one, key)[2] == "active one")
        assert two.worker is not None
        two.worker.send_signal(signal.SIGSTOP)
        three.start_worker()
        stores, seen = ("counts", "memory", "cache"), set[tuple[str, int, Any, str]]()
        suspended = {(store, 200, 1, "standby one") for store in stores}
        deadline_s = time.monotonic() + LOST_S
        while not suspended <= seen and time.monotonic() < deadline_s:
            seen |= {(store, *value(one, key, store, **STALE, wait_ms=0)) for store in stores}
        assert seen == suspended | {(store, 200, 1, "active one") for store in stores}


def test_a_node_that_is_lost_in_the_middle_of_a_commit_holds_nobody_up_for_longer_than_its_session(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    settings = (f"node.peer.secret.file={write_secret(tmp_path)}", "transaction.timeout.ms=600000")
    with ExitStack() as stack:
        machines = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings)
        one, two = machines.every.values()
        # Input first: a task that has had none yet makes a commit of its own, which would be the one to die in.
        two.start_worker()
        wait_until(lambda: len(two.active()) == 2, HANGING_S)
        machines.send()
        asked: dict[str, Any] = {"position_bound": machines.bound(), "wait_ms": 30_000}
        for key in KEYS:
            assert value(two, key, **asked) == (200, 1, "active two")
        one.start_worker(STATELINE_CRASH_AT="commit:offsets-sent")
        wait_until(lambda: all(len(each.active()) == 1 for each in (one, two)), HANGING_S)
        machines.send()
        assert one.worker is not None
        one.worker.wait(HANGING_S)
        one.stop_server()
        wait_until(lambda: len(two.active()) == 2, LOST_S)
        asked = {"position_bound": machines.bound(), "wait_ms": 30_000}
        for key in KEYS:
            assert value(two, key, **asked) == (200, 2, "active two")


@long_only("test_crash_steps.py kills a worker at each step of a commit, and a takeover begins and ends with one")
@pytest.mark.parametrize("step", ["standby:opened", "standby:let-go"])
def test_a_standby_that_is_killed_as_it_begins_or_takes_over_goes_on_and_every_record_counts_once(
    machines: Machines, step: str
) -> None:
    one, two = machines.every.values()
    wait_until(lambda: follows_all(two), HANGING_S)
    two.stop_worker(signal.SIGKILL)
    two.start_worker(STATELINE_CRASH_AT=step)
    dying = two.worker
    assert dying is not None
    if step == "standby:let-go":
        wait_until(lambda: follows_all(two) and two.active() != set(), HANGING_S)
        assert dying.poll() is None
    one.stop_worker(signal.SIGKILL)
    one.stop_server()
    machines.send()
    assert dying.wait(HANGING_S) == -signal.SIGKILL
    two.start_worker()
    machines.send()
    asked = {"position_bound": machines.bound(), "wait_ms": 30_000, "require_active": "true"}
    wait_until(lambda: len(two.active()) == 2, HANGING_S)
    for key, store in product(KEYS, ("counts", "memory")):
        assert value(two, key, store, **asked) == (200, 3, "active two")


@long_only("test_standby_stores.py has what a standby may claim that lacks something")
def test_a_standby_that_is_behind_is_not_taken_for_less(machines: Machines) -> None:
    one, two = machines.every.values()
    wait_until(lambda: follows_all(two), HANGING_S)
    of_one = next(key for key in KEYS if value(two, key)[2] == "active one")
    old = machines.bound()
    for store in ("counts", "memory"):
        bounded = partial(value, two, of_one, store, position_bound=old)
        wait_until(lambda bounded=bounded: bounded() == (200, 1, "standby two"), HANGING_S)  # type: ignore[misc]
    one.stop_worker(signal.SIGKILL)
    one.stop_server()
    machines.send()
    wait_until(lambda: value(two, of_one, **STALE)[2] == "standby two", HANGING_S)
    new = machines.bound()
    for store in ("counts", "memory"):
        assert value(two, of_one, store)[0] in (421, 503)
        assert value(two, of_one, store, position_bound=old, wait_ms=0) == (200, 1, "standby two")
        assert value(two, of_one, store, position_bound=new, wait_ms=0)[0] in (412, 421)
    two.stop_worker(signal.SIGKILL)
    assert value(two, of_one, **STALE)[:2] == (200, 1), "also while nobody follows"
    wait_until(lambda: value(two, of_one, "memory", **STALE)[0] == 421, HANGING_S)
