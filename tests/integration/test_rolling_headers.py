"""Stores that get headers at one node after the other, and nodes without them that come back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stateline_store import StateDirectory
from support.apps import changes_app
from support.kafka.shared_broker import SharedBroker
from support.processes.machines import KEYS, PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.processes.running_worker import produce
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

AT_MS = time.time_ns() // 1_000_000  # the broker deletes old records of windows' changelogs
CALLERS_MISTAKE = 2
HEADED = {"newest": "range", "stamped": "windows"}  # the stores that get headers, and how to ask for all rows
PLACES = [str(number) for number in range(PARTITIONS)]
Sent = dict[str, tuple[int, list[tuple[str, bytes]]]]  # by key: the newest value, and its headers


@pytest.fixture
def machines(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Machines]:
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    settings = (f"node.peer.secret.file={write_secret(tmp_path)}", "num.standby.replicas=1", "node.leave=true")
    with ExitStack() as stack:
        made = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings)
        for machine in made.every.values():
            machine.start_worker()
        yield made


def restart(machines: Machines, machine: Machine, stack: ExitStack, *, headers: bool) -> None:
    """Stop a node in order, and start it with stores that keep headers, or without."""
    machine.stop_worker()
    machine.stop_server()
    app = changes_app.build(machine.run, headers=headers)
    running = stack.enter_context(ExitStack())
    served = served_here(machines.root / machine.name, *machine.settings, app=app, until_ready=False)
    machine.server, machine.stop_server = running.enter_context(served), running.close
    machine.start_worker(**({"CHANGES_HEADERS": "1"} if headers else {}))


def send(machines: Machines, keys: list[str], value: int, headers: list[tuple[str, bytes]], sent: Sent) -> None:
    rows = [(key.encode(), json.dumps(value).encode(), AT_MS, headers) for key in keys]
    produce(machines.log, f"in-{machines.run}", rows)
    sent.update(dict.fromkeys(keys, (value, headers)))


def answered(machine: Machine, bound: str, **more: Any) -> list[dict[str, Any]]:
    """The entries of both stores that get headers, once this node shows all up to the bound."""
    asked = {"position_bound": bound, "wait_ms": 5_000, **more}
    paths = [f"/v1/stores/{store}/{kind}" for store, kind in HEADED.items()]

    def answers() -> bool:
        return all(machine.get(path, **asked).status_code == 200 for path in paths)

    wait_until(answers, HANGING_S)
    return [entry for path in paths for entry in machine.get(path, **asked).json()["entries"]]


def copies_are_complete(machines: Machines) -> bool:
    """Whether each node has all rows of the stores that get headers, as the owner or as a standby."""
    lags: list[int | None] = []
    for store in HEADED:
        for name, machine in machines.every.items():
            partitions = machine.get(f"/v1/stores/{store}").json()["partitions"]
            lags += [partitions[place]["copies"].get(name, {}).get("lag_records") for place in PLACES]
    return set(lags) == {0}


@long_only("test_rolling_upgrade.py rolls nodes over, and test_crash_steps.py has a store that gets headers")
def test_stores_get_headers_at_one_node_after_the_other_and_go_back_through_their_changelogs(
    machines: Machines,
) -> None:
    one, two = machines.every.values()
    sent: Sent = {}
    with ExitStack() as stack:
        send(machines, KEYS, 1, [("of", b"before")], sent)
        for each in (one, two):
            answered(each, machines.bound())
        wait_until(lambda: copies_are_complete(machines), HANGING_S)  # rows that are read later get their headers
        restart(machines, two, stack, headers=True)
        send(machines, KEYS[:20], 2, [("of", b"between")], sent)
        assert_sent(answered(one, machines.bound()), sent, with_headers=None)
        assert two.get("/v1/stores/newest/range", max_staleness_ms=60_000).status_code in (421, 503)

        restart(machines, one, stack, headers=True)  # which is when the other one goes on, with headers
        send(machines, KEYS[:10], 3, [("of", b"after")], sent)
        for each in (two, one):
            assert_sent(answered(each, machines.bound()), sent, with_headers=3)
        wait_until(lambda: len(one.active()) == len(two.active()) == 1, HANGING_S)

        two.stop_worker()
        two.stop_server()
        restart(machines, one, stack, headers=False)
        assert one.worker is not None
        assert one.worker.wait(HANGING_S) == CALLERS_MISTAKE
        directory = StateDirectory(machines.root / one.name, machines.app.application_id)
        for store in HEADED:
            for place in PLACES:
                shutil.rmtree(directory.store(f"0_{place}", store, timestamped=True))
        one.worker = None
        one.start_worker()
        send(machines, KEYS[:5], 4, [("of", b"back")], sent)
        assert_sent(answered(one, machines.bound()), sent, with_headers=None)


def assert_sent(entries: list[dict[str, Any]], sent: Sent, *, with_headers: int | None) -> None:
    """Each store has a row of each key. Rows of `with_headers` and later have the record's headers, and those of the
    first value have none. None: no row has headers."""
    assert len(entries) == len(HEADED) * len(sent)
    for entry in entries:
        value, headers = sent[entry["key"]]
        assert entry["value"] == value
        if with_headers is None:
            assert "headers" not in entry
        elif value == 1 or value >= with_headers:
            assert entry["headers"] == ([[name, content.decode()] for name, content in headers] if value > 1 else [])
