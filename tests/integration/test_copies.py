"""A node that comes with an empty disk: its standbys begin from the files of the owner, whoever dies meanwhile."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.machines import Machine, Machines, started
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

ON_DISK = ("newest", "dated", "counts", "windows", "stamped", "visits", "history")
_COPIED = re.compile(r'^stateline_node_copied_bytes_total\{direction="(\w+)",node="\w+"\} (\S+)$', re.MULTILINE)


@pytest.fixture
def machines(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Machines]:
    """Two nodes, of which the first has everything, and some of it deleted again; the second has nothing yet."""
    secret = write_secret(tmp_path)
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    # More than 100 times as many records as it may lack are copied.
    settings = (f"node.peer.secret.file={secret}", "num.standby.replicas=1", "acceptable.recovery.lag=1")
    with ExitStack() as stack:
        made = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings)
        one = made.every["one"]
        one.start_worker()
        for _ in range(12):
            made.send()
        wait_until(lambda: one.active() == {"0", "1"}, HANGING_S)
        bound = {"position_bound": made.bound(), "wait_ms": 30_000}
        assert one.get("/v1/stores/counts/range", **bound).status_code == 200
        yield made


def copied(client: httpx.Client) -> dict[str, float]:
    return {direction: float(count) for direction, count in _COPIED.findall(client.get("/metrics").text)}


def rows(client: httpx.Client, bound: str) -> dict[str, Any]:
    """All that a copy which has this answers, by store."""
    found = {}
    for store in ON_DISK:
        asked: dict[str, Any] = {"position_bound": bound, "wait_ms": 30_000, "max_staleness_ms": 60_000}
        path = {"windows": "windows", "stamped": "windows", "visits": "sessions"}.get(store, "range")
        told = client.get(f"/v1/stores/{store}/{path}", params=asked)
        assert told.status_code == 200, told.text
        found[store] = told.json()["entries"]
    return found


def fetched(machines: Machines) -> Path:
    """Where the files of the second node arrive."""
    return machines.root / "two" / machines.app.application_id / "copies"


@long_only("the next test has it through kills")
def test_a_fresh_node_begins_from_the_files_of_the_owner_and_answers_the_same(machines: Machines) -> None:
    one, two = machines.every.values()
    two.start_worker()
    wait_until(lambda: len(two.active()) == 1, HANGING_S)
    received, sent = copied(two.server.client), copied(one.server.client)
    assert received["received"] == sent["sent"] > 0
    machines.send()
    assert rows(two.server.client, machines.bound()) == rows(one.server.client, machines.bound())
    snapshots = machines.root / "one" / machines.app.application_id / "snapshots"
    wait_until(lambda: not [*fetched(machines).iterdir(), *snapshots.glob("[0-9a-f]*")], HANGING_S)


@contextmanager
def serving(machine: Machine, **more: str) -> Iterator[tuple[Forked, httpx.Client]]:
    """Its server as a process, killed in the end; `more` are variables of its environment."""
    port = free_port()
    server = started("serve", [*machine.settings, f"server.port={port}"], machine.run, **more)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            yield server, client
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(HANGING_S)


def test_who_is_killed_while_files_are_fetched_sent_or_placed_goes_on_with_what_has_come(machines: Machines) -> None:
    one, two = machines.every.values()
    for each in (one, two):
        each.stop_server()
    with ExitStack() as stack:
        sender, _ = stack.enter_context(serving(one, STATELINE_CRASH_AT="copy:piece-sent#12"))
        with serving(two, STATELINE_CRASH_AT="copy:piece-written#5") as (receiver, _):
            two.start_worker(STATELINE_CRASH_AT="copy:store-placed#3")
            receiver.wait(HANGING_S)
        before = {path.relative_to(fetched(machines)) for path in fetched(machines).rglob("*") if path.is_file()}
        assert len(before) >= 5
        _, client = stack.enter_context(serving(two))
        sender.wait(HANGING_S)
        _, owner = stack.enter_context(serving(one))
        assert two.worker is not None
        two.worker.wait(HANGING_S)
        placed = fetched(machines).parent / "0_1" / "rocksdb"
        assert len({path.name for path in placed.iterdir()} - {"quiet"}) == 3, "half of them, each of them whole"
        two.start_worker()
        machines.send()
        assert rows(client, machines.bound()) == rows(owner, machines.bound())
        assert copied(client)["received"] > 0
