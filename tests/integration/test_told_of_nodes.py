"""What three nodes on a real broker tell people of each other, one of which has no task: who has what, how far it is,
whether all can be asked, and what went over the links.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stateline.config.loading import load_config
from stateline.deployment.configured_log import configured_log
from stateline.worker.restore.store_restore import StoreRestore
from support.kafka.kafka_broker import KafkaBroker
from support.processes.machines import PARTITIONS, SESSION_MS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import running
from support.run.length import long_only
from support.run.patience import HANGING_S

NAMES = ("one", "three", "two")
COUNTS = "/v1/stores/counts"


@pytest.fixture(scope="module")
def machines(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    root = tmp_path_factory.mktemp("told")
    write_secret(root)
    settings = f"node.peer.secret.file={root / 'secret'}", "consumer.client.rack=r1"
    with ExitStack() as stack:
        ways = dict.fromkeys(NAMES, kafka_broker.bootstrap_servers)
        made = Machines(ways, kafka_broker.bootstrap_servers, root, stack, *settings)
        made.send()
        for machine in made.every.values():
            machine.start_worker()
        wait_until(lambda: all(is_settled(each) for each in made.every.values()), HANGING_S)
        yield made


def is_settled(machine: Machine) -> bool:
    """Whether it knows who owns what, two partitions being of the two nodes whose names come first: so it is when the
    workers of all three have joined."""
    nodes = machine.get("/v1/nodes").json()["nodes"]
    counts = [len(roles(nodes[name])) for name in sorted(nodes)]
    return counts == [1, 1, 0] and machine.get("/readyz").status_code == 200


def roles(node: dict[str, Any]) -> list[str]:
    """The tasks that a node has as the owner's, of the first subtopology."""
    return [task for task, each in node["tasks"].items() if each["role"] == "active" and task.startswith("0_")]


@pytest.fixture
def idle(machines: Machines) -> Machine:
    """The one that has no task."""
    nodes = machines.every["one"].get("/v1/nodes").json()["nodes"]
    (name,) = (name for name, node in nodes.items() if not roles(node))
    return machines.every[name]


def test_each_tells_of_every_partition_whose_it_is_and_how_far(machines: Machines, idle: Machine) -> None:
    told = {name: machine.get(COUNTS).json()["partitions"] for name, machine in machines.every.items()}
    urls = {name: str(machine.server.client.base_url).rstrip("/") for name, machine in machines.every.items()}
    for partitions in told.values():
        assert set(partitions) == {str(p) for p in range(PARTITIONS)}
        for each in partitions.values():
            assert (each["state"], each["lag_records"], each["lag_ms"], each["restore_remaining"]) == (
                "active",
                0,
                0,
                0,
            )
            assert each["url"] == urls[each["node"]]
            assert each["copies"][each["node"]]["state"] == "active"
            assert "unreadable" not in each
    owners = [{p: each["node"] for p, each in partitions.items()} for partitions in told.values()]
    assert owners == owners[:1] * 3
    assert set(owners[0].values()) == set(machines.every) - {idle.name}
    for name, partitions in told.items():
        assert {p for p, each in partitions.items() if each["owner"]} == {p for p, n in owners[0].items() if n == name}


def test_each_tells_of_every_node_where_it_stands_and_what_it_has(machines: Machines, idle: Machine) -> None:
    nodes = idle.get("/v1/nodes").json()["nodes"]
    assert {each["rack"] for each in nodes.values()} == {"r1"}
    for name, each in nodes.items():
        assert (each["reached"], each["fault"]) == (True, None)
        assert (each["reached_at_ms"] is None) is (name == idle.name)
        assert {task["lag_records"] for task in each["tasks"].values() if task["role"] == "active"} <= {0}
    (shown,) = (each for each in idle.get("/v1/instances").json()["instances"] if each["alive"])
    assert shown["tasks"] == {}, "instances are those of this node alone"


def test_the_console_is_told_of_all_nodes(machines: Machines, idle: Machine) -> None:
    told = idle.get("/v1/console", store="counts").json()
    cluster = told["cluster"]
    assert cluster["node"] == idle.name
    assert cluster["nodes"] == idle.get("/v1/nodes").json()["nodes"]
    assert [task for task in cluster["tasks"] if task.startswith("0_")] == ["0_0", "0_1"]
    (counts,) = (each for each in told["stores"] if each["store"] == "counts")
    assert counts["states"] == {"active": PARTITIONS}


def test_what_went_over_the_links_is_counted_at_both_ends(machines: Machines, idle: Machine) -> None:
    before = forwards(idle), answers(machines)
    for key in list(machines.sent)[:10]:
        assert idle.get(f"{COUNTS}/keys/{key}").status_code == 200
    ahead = {"position_bound": '{"in-%s": {"0": 99999}}' % machines.run}  # noqa: UP031 - braces of JSON
    assert idle.get(f"{COUNTS}/range", partition=0, **ahead).status_code == 412
    after = forwards(idle), answers(machines)
    assert [a.get("ok", 0) - b.get("ok", 0) for a, b in zip(after, before, strict=True)] == [10, 10]
    assert [a["NOT_UP_TO_BOUND"] > b.get("NOT_UP_TO_BOUND", 0) for a, b in zip(after, before, strict=True)] == [
        True
    ] * 2
    timed = samples(idle, "stateline_node_forward_seconds_count")
    assert sum(timed.values()) == sum(after[0].values())
    assert set(samples(idle, "stateline_node_link_up").values()) == {1.0}
    assert all(silent < 60 for silent in samples(idle, "stateline_node_link_silent_seconds").values())
    tasks = {name: samples(machine, "stateline_node_tasks") for name, machine in machines.every.items()}
    assert tasks[idle.name][("active",)] == 0
    assert sum(each[("active",)] for each in tasks.values()) == sum(
        1
        for node in idle.get("/v1/nodes").json()["nodes"].values()
        for t in node["tasks"].values()
        if t["role"] == "active"
    )


def samples(machine: Machine, name: str) -> dict[tuple[str, ...], float]:
    """By the values of its labels."""
    families = text_string_to_metric_families(machine.get("/metrics").text)
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in found}


def forwards(machine: Machine) -> dict[str, float]:
    """Outcome → requests to any node."""
    return by_outcome([samples(machine, "stateline_node_forwards_total")])


def answers(machines: Machines) -> dict[str, float]:
    return by_outcome([samples(machine, "stateline_node_answers_total") for machine in machines.every.values()])


def by_outcome(found: list[dict[tuple[str, ...], float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in found:
        for (_, outcome), count in each.items():
            sums[outcome] = sums.get(outcome, 0) + count
    return sums


def test_a_node_is_ready_while_its_peers_have_what_it_has_not_and_are_reached(
    machines: Machines, idle: Machine
) -> None:
    assert idle.get("/readyz").status_code == 200
    assert not asks_kafka_often(idle)
    owners = {p: each["node"] for p, each in idle.get(COUNTS).json()["partitions"].items()}
    lost = next(iter(owners.values()))
    with out_of_reach(idle, lost) as address:
        wait_until(lambda: idle.get("/readyz").status_code == 503, HANGING_S)
        reasons = idle.get("/readyz").json()["reasons"]
        assert asks_kafka_often(idle)
        gone = [p for p, node in owners.items() if node == lost]
        for partition in range(PARTITIONS):
            told = [reason for reason in reasons if reason.startswith(f"Partition {partition} of 'counts'")]
            assert bool(told) is (str(partition) in gone), reasons
            assert all(says_who_is_gone(why, lost, address) for why in told)
        assert any(reason.startswith(f"Node {lost!r} is not reached: {address}") for reason in reasons), reasons
        partitions = idle.get(COUNTS).json()["partitions"]
        assert {p: each["node"] for p, each in partitions.items()} == owners | dict.fromkeys(gone)
        assert idle.get("/v1/nodes").json()["nodes"][lost]["fault"].startswith(address)
        assert samples(idle, "stateline_node_link_up")[(lost,)] == 0
        wait_until(lambda: samples(idle, "stateline_node_dial_failures_total").get((lost,), 0) > 0, HANGING_S)
        refused = idle.get(f"{COUNTS}/count", partition=gone[0])
        assert refused.status_code in (421, 503)
        assert says_who_is_gone(refused.json()["detail"], lost, address)
        assert refused.json()["owner"] == str(machines.every[lost].server.client.base_url).rstrip("/")
    assert idle.get(f"{COUNTS}/count", partition=gone[0], wait_ms=30_000).status_code == 200
    wait_until(lambda: idle.get("/readyz").status_code == 200, HANGING_S)


def says_who_is_gone(why: str, node: str, address: str) -> bool:
    """Whether a refusal names the node, why it is not reached and how long that lasts, each once, and no files."""
    last = f"Node {node!r}, which had it last, is not reached: {address} cannot be reached: "
    lasts = f"{SESSION_MS // 1000} s (session.timeout.ms)"
    return last in why and lasts in why and why.count("Partition") == 1 and ".notice" not in why


@long_only("test_two_machines.py has a task that moves, and a copy that says how far it is behind")
def test_a_task_that_moves_is_seen_at_other_nodes_and_what_it_left_behind_says_how_far_it_is(
    machines: Machines, idle: Machine
) -> None:
    nodes = idle.get("/v1/nodes").json()["nodes"]
    left = machines.every[next(name for name, node in nodes.items() if roles(node))]
    number = left.get("/v1/nodes").json()["number"]
    (task,) = roles(nodes[left.name])
    partition = task.removeprefix("0_")
    left.stop_worker()
    wait_until(lambda: not roles(left.get("/v1/nodes").json()["nodes"][left.name]), HANGING_S)
    assert left.get("/v1/nodes").json()["number"] > number, "also of what this node has itself"
    wait_until(lambda: owners(idle, task) not in ([], [left.name]), HANGING_S)
    wait_until(lambda: lag(idle, left.name, partition) == 0, HANGING_S)
    machines.send()
    wait_until(lambda: all((lag(each, left.name, partition) or 0) >= 1 for each in (idle, left)), HANGING_S)
    told = left.get(COUNTS).json()["partitions"][partition]
    assert (told["state"], told["lag_records"]) == ("active", 0), "as its owner has it"
    assert told["node"] != left.name
    (held,) = (node["tasks"][task] for name, node in at_once(idle).items() if name == left.name)
    assert (held["role"], held["followed"]) == ("standby", False)
    assert held["lag_records"] >= 1, "asked once, after whatever time"
    assert samples(left, "stateline_node_tasks")[("left",)] >= 1
    assert samples(left, "stateline_node_tasks")[("standby",)] == 0
    left.start_worker()
    wait_until(lambda: all(is_settled(each) for each in machines.every.values()), HANGING_S)


def at_once(machine: Machine) -> dict[str, dict[str, Any]]:
    """All nodes as this one tells, when nobody has asked it for long how far copies are."""
    group = machine.server.serving.group
    assert group is not None
    group.ends, group.ends_wanted_until_ms = None, 0
    nodes: dict[str, dict[str, Any]] = machine.get("/v1/nodes").json()["nodes"]
    return nodes


def lag(machine: Machine, node: str, partition: str) -> int | None:
    """How far this node's copy is behind, as another one says."""
    copies = machine.get(COUNTS).json()["partitions"][partition]["copies"]
    found: int | None = copies.get(node, {}).get("lag_records")
    return found


def owners(machine: Machine, task: str) -> list[str]:
    """The nodes that have it as the owner's, as the console of this one is told."""
    nodes = machine.get("/v1/console").json()["cluster"]["nodes"]
    return [name for name, node in nodes.items() if node["tasks"].get(task, {}).get("role") == "active"]


def asks_kafka_often(machine: Machine) -> bool:
    """Whether it has a copy of which nobody says that he is its owner."""

    async def is_urgent() -> bool:
        return machine.server.serving.wanted_of_group().is_urgent

    return asyncio.run_coroutine_threadsafe(is_urgent(), loop_of(machine)).result(HANGING_S)


def loop_of(machine: Machine) -> asyncio.AbstractEventLoop:
    """Its server's."""
    nodes = machine.server.serving.nodes
    assert nodes is not None
    return next(other.dialing.get_loop() for other in nodes.others.values() if other.dialing is not None)


@contextmanager
def out_of_reach(machine: Machine, node: str) -> Iterator[str]:
    """The registry says another address of this node, at which nobody listens."""
    nodes = machine.server.serving.nodes
    assert nodes is not None
    other = nodes.others[node]
    loop = loop_of(machine)
    address = f"127.0.0.1:{free_port()}"
    loop.call_soon_threadsafe(nodes.told, node, replace(other.entry, peer=address))
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(nodes.told, node, other.entry)


def test_no_node_is_ready_while_an_owner_restores_what_nobody_else_answers(machines: Machines) -> None:
    restoring, *others = machines.every.values()
    restoring.stop_worker(signal.SIGKILL)
    with never_restored(machines, restoring):
        wait_until(lambda: all(restored_at(each, restoring.name) for each in others), HANGING_S)
        (task,) = restored_at(others[0], restoring.name)
        partition = task.removeprefix("0_")
        for each in others:
            refused = each.get(f"{COUNTS}/range", partition=partition)
            assert (refused.status_code, refused.json()["reason"]) == (503, "NOT_ACTIVE"), refused.text
            told = each.get("/readyz")
            assert told.status_code == 503
            reasons = [why for why in told.json()["reasons"] if why.startswith(f"Partition {partition} of 'counts'")]
            assert all(f"Node {restoring.name!r} has it, and answers when it has restored it: " in r for r in reasons)
            assert len(reasons) == 1
    restoring.start_worker()
    wait_until(lambda: all(is_settled(each) for each in machines.every.values()), HANGING_S)


@contextmanager
def never_restored(machines: Machines, machine: Machine) -> Iterator[None]:
    """A worker of this machine in the test's process, whose restores have no end."""
    config = load_config(machines.app.application_id, environment={}, overrides=machine.settings)
    with pytest.MonkeyPatch.context() as patched, closing(configured_log(config)) as log:
        patched.setattr(StoreRestore, "finish", lambda restore, level: restore.commit())
        patched.setattr(StoreRestore, "remaining", 1)
        with running(machines.app, config, log):
            yield


def restored_at(machine: Machine, node: str) -> list[str]:
    """The tasks of the first subtopology that this node restores, as another one says."""
    tasks = machine.get("/v1/nodes").json()["nodes"][node]["tasks"].items()
    return [task for task, each in tasks if each["role"] == "restoring" and task.startswith("0_")]
