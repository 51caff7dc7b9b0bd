"""Stores that get timestamps at one node after the other, while either is asked and the changelogs grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from stateline import __version__
from stateline.dsl.app import App
from stateline.server import serving
from stateline.server.nodes.greeting import WIRE_VERSIONS
from stateline.server.nodes.joining import hello_of
from stateline_store import StateDirectory
from support.apps import changes_app
from support.kafka.shared_broker import SharedBroker
from support.processes.machines import PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

SENT_AT_MS = 1_000_000
ROLL_OVER = ["upgrade.from=v1", "upgrade.mode=roll_over"]


@pytest.fixture(scope="module")
def scene(kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tmp_path = tmp_path_factory.mktemp("nodes")
    secret = write_secret(tmp_path)
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    settings = (f"node.peer.secret.file={secret}", "num.standby.replicas=1", "node.leave=true")
    with ExitStack() as stack:
        machines = Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings)
        machines.send()
        for machine in machines.every.values():
            machine.start_worker()
        yield Scene(machines, stack)


class Scene:
    """Two nodes."""

    def __init__(self, machines: Machines, stack: ExitStack) -> None:
        self.machines, self._stack = machines, stack

    def roll_over(self, machine: Machine) -> None:
        """Have it hand over, and start it with timestamps."""
        machine.stop_worker()
        machine.settings += ROLL_OVER
        self.serve_anew(machine, changes_app.build(machine.run, stamped=True))
        machine.start_worker(CHANGES_STAMPED="1")

    def serve_anew(self, machine: Machine, app: App) -> None:
        """Stop its server, and start it with this application."""
        machine.stop_server()
        running = self._stack.enter_context(ExitStack())
        served = served_here(self.machines.root / machine.name, *machine.settings, app=app, until_ready=False)
        machine.server, machine.stop_server = running.enter_context(served), running.close

    def tasks(self, of: Machine) -> dict[str, tuple[str, bool]]:
        """Role, and whether it has timestamps, by task of this node, as another one says."""
        (other,) = (each for each in self.machines.every.values() if each is not of)
        told = other.get("/v1/nodes").json()["nodes"].get(of.name, {"tasks": {}})["tasks"]
        return {task: (each["role"], each["upgraded"]) for task, each in told.items()}

    def roles(self, of: Machine) -> list[str]:
        return sorted(role for role, _ in self.tasks(of).values())

    def each_has_one_and_follows_the_other(self) -> bool:
        every = self.machines.every.values()
        return all(self.roles(each) == ["active", "standby"] and lacks_nothing(each) for each in every)

    def check(self) -> None:
        """Either answers for every key and for all of them, wherever they are, what was sent."""
        bound: dict[str, Any] = {"position_bound": self.machines.bound(), "wait_ms": 30_000}
        for machine in self.machines.every.values():
            for accepted in ({}, {"max_staleness_ms": 60_000}):
                told = machine.get("/v1/stores/counts/range", **bound, **accepted)
                assert told.status_code == 200, told.text
                assert {e["key"]: e["value"] for e in told.json()["entries"]} == self.machines.sent
            pages = machine.get("/v1/stores/counts/range", limit=7, **bound).json()
            found = pages["entries"]
            while "cursor" in pages:
                pages = machine.get("/v1/stores/counts/range", cursor=pages["cursor"]).json()
                found += pages["entries"]
            assert {e["key"]: e["value"] for e in found} == self.machines.sent
            for key in list(self.machines.sent)[:8]:
                told = machine.get(f"/v1/stores/counts/keys/{key}", **bound)
                assert (told.status_code, told.json()["value"]) == (200, self.machines.sent[key]), told.text

    def records_of(self, partitions: set[str]) -> int:
        """How many were sent there."""
        (one, _) = self.machines.every.values()
        told = [one.get("/v1/stores/counts/range", partition=p).json()["entries"] for p in partitions]
        return sum(entry["value"] for entries in told for entry in entries)

    def files(self, machine: Machine, *, timestamped: bool) -> list[bool]:
        """Whether there are such files of each partition."""
        directory = StateDirectory(self.machines.root / machine.name, self.machines.app.application_id)
        return [directory.store(f"0_{n}", "counts", timestamped=timestamped).exists() for n in range(PARTITIONS)]


def lacks_nothing(machine: Machine) -> bool:
    """Whether it has everything of what it follows."""
    told = machine.get("/v1/stores/counts").json()["partitions"].values()
    return all(each["copies"].get(machine.name, {}).get("lag_ms") == 0 for each in told)


def restored(machine: Machine) -> float:
    """How many records its worker has read of changelogs to take tasks, not as standbys."""
    lines = machine.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("stateline_restore_total{"))


@long_only("test_wire_versions.py links nodes of several builds")
def test_nodes_of_several_builds_answer_as_one_where_they_understand_each_other_and_else_say_who_speaks_what(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = scene.machines.every.values()
    wait_until(scene.each_has_one_and_follows_the_other, HANGING_S)
    own = max(WIRE_VERSIONS)
    for wire, spoken in (((99, *WIRE_VERSIONS), own), ((98, 99), None), (WIRE_VERSIONS, own)):
        with monkeypatch.context() as patch:
            patch.setattr(serving, "hello_of", lambda *given, wire=wire: replace(hello_of(*given), wire=wire))
            scene.serve_anew(one, scene.machines.app)

        def told(asked: Machine, other: Machine) -> dict[str, Any]:
            found: dict[str, Any] = (
                asked.get("/v1/nodes").json()["nodes"].get(other.name, dict.fromkeys(("wire", "spoken", "fault")))
            )
            return found

        wait_until(lambda wire=wire: told(two, one)["wire"] == [*wire], HANGING_S)  # type: ignore[misc]
        if spoken is not None:
            wait_until(lambda spoken=spoken: told(two, one)["spoken"] == told(one, two)["spoken"] == spoken, HANGING_S)  # type: ignore[misc]
            scene.machines.send()
            scene.check()
            continue
        spoken_by_two = ", ".join(map(str, sorted(WIRE_VERSIONS)))
        said = f"speaks version 98, 99 of the wire, 'two' runs {__version__} and speaks {spoken_by_two}: they do not"
        wait_until(lambda said=said: said in (told(two, one)["fault"] or ""), HANGING_S)  # type: ignore[misc]
        (elsewhere,) = {str(p) for p in range(PARTITIONS)} - two.active()
        refused = two.get("/v1/stores/counts/range", partition=elsewhere, require_active="true")
        assert refused.status_code in (421, 503), refused.text
        assert said in refused.json()["detail"]
        assert refused.json()["owner"], "who asks may reach it"
        assert two.get("/v1/stores/counts/range", max_staleness_ms=60_000).status_code == 200, "a standby is here"


def test_rolled_over_a_node_has_timestamps_before_it_owns_anything_and_all_are_asked_all_the_while(
    scene: Scene,
) -> None:
    one, two = scene.machines.every.values()
    wait_until(scene.each_has_one_and_follows_the_other, HANGING_S)
    scene.check()
    for machine in (two, one):
        scene.roll_over(machine)
        scene.check()
        wait_until(scene.each_has_one_and_follows_the_other, HANGING_S)
        wait_until(lambda machine=machine: all(done for _, done in scene.tasks(machine).values()), HANGING_S)  # type: ignore[misc]
        assert scene.files(machine, timestamped=False) == [False, False]
        # Two stores in memory are read anew where it did not follow: of any task that it was given for a while.
        in_memory = [2 * scene.records_of({str(n)}) for n in range(PARTITIONS)]
        read_anew = {0, *in_memory, sum(in_memory)}
        assert restored(machine) in read_anew, "it had all else, with timestamps, before it was given anything"
        scene.machines.send()
        scene.check()
        asked = {"position_bound": scene.machines.bound(), "wait_ms": 30_000, "require_active": "true"}
        told = machine.get("/v1/stores/counts/range", **asked).json()
        unknown = set() if machine is one else {None}  # at the other one, which keeps none yet
        assert {entry["timestamp"] for entry in told["entries"]} == {SENT_AT_MS} | unknown
    assert [scene.files(each, timestamped=True) for each in (one, two)] == [[True, True]] * 2
