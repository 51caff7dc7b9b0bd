"""A server looks only at its node's own tasks. Its map is the map that a look at all partitions makes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stateline import serdes
from stateline.deployment.stores.topology_file import GLOBAL_TABLES
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.stores import key_value, timestamped_key_value
from stateline_store import StoreState
from stateline_store.inspection.format_upgrade import remove_plain_files
from support.processes.node_files import NodeFiles

STORES = [
    key_value("counts", key=serdes.bytes, value=serdes.bytes),
    timestamped_key_value("names", key=serdes.bytes, value=serdes.bytes),
    key_value("memory", key=serdes.bytes, value=serdes.bytes, persistent=False),
    key_value("local", key=serdes.bytes, value=serdes.bytes, logged=False),
]


def whole_map(node: NodeFiles, number: int) -> NodeMap:
    """Look at each partition of each store."""
    instances = node.workers.instances.values()
    known = {task for task, _, _ in node.partitions.opened()} | {task for each in instances for task in each.tasks}
    known -= {GLOBAL_TABLES}  # every node has its own
    tasks, copies, plain = {}, dict[str, dict[str, int]](), set()
    for task in known:
        role = node.ownership.role(task)
        tasks[task] = HeldTask(role) if role == "standby" else HeldTask(role, node.workers.generation(task))
    for store in node.stores:
        for partition in store.partitions:
            task = store.placement.task_id(partition)
            if task not in tasks:
                continue
            if node.partitions.is_plain(store, partition):
                plain.add(task)
            changelog = node.ownership.changelog(store.definition, partition)
            shown = node.partitions.shown(store, partition)
            if changelog is not None and shown is not None and tasks[task].role != "active":
                if not node.ownership.is_owned(task):
                    shown[0].refresh()
                copies.setdefault(store.name, {})[str(partition)] = shown[0].offsets.get(changelog, -1)
    opened = [(task, reader.notice.restore_remaining) for task, _, reader in node.partitions.opened()]
    restoring = [task for task, held in tasks.items() if held.role == "restoring"]
    remaining = {task: sum(left for opened_task, left in opened if opened_task == task) for task in restoring}
    followed = frozenset(filter(node.workers.follows, tasks))
    return NodeMap(number, tasks, copies, {}, remaining, frozenset(plain), followed, node.workers.faults())


def looked_at(node: NodeFiles) -> NodeMap:
    """The map, which is compared. `OwnMap` looks first: the other look refreshes readers."""
    now = node.own.now()
    assert now == whole_map(node, now.number)
    assert node.own.now() is now
    return now


def test_the_map_of_a_nodes_own_tasks_is_that_of_all_partitions(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path, STORES, partitions=4)

    async def scene() -> None:
        assert looked_at(node) == NodeMap()

        # Tasks appear.
        node.write("0_0", 10, StoreState.ACTIVE)
        node.write("0_1", 11, StoreState.RESTORING, plain=True, remaining=5)
        node.write("0_2", 12, StoreState.STANDBY)
        await node.say("a", {"0_0": "running", "0_1": "restoring", "0_2": "standby", GLOBAL_TABLES: "running"})
        assert looked_at(node).plain == {"0_1"}  # no reader is open
        node.read("0_0", "0_1", "0_2")
        now = looked_at(node)
        assert now.tasks == {
            "0_0": HeldTask("active", 1), "0_1": HeldTask("restoring", 1), "0_2": HeldTask("standby"),
        }  # fmt: skip
        assert now.copies == {"counts": {"1": 11, "2": 12}, "names": {"1": 11, "2": 12}}
        assert (now.remaining, now.plain, now.followed) == ({"0_1": 15}, frozenset({"0_1"}), frozenset({"0_2"}))

        # A copy that its worker keeps up to date is read at each look, and a restoring copy by its reader.
        node.write("0_1", 21, StoreState.RESTORING, plain=True, remaining=3)
        node.write("0_2", 22, StoreState.STANDBY)
        assert looked_at(node).copies == {"counts": {"1": 11, "2": 22}, "names": {"1": 21, "2": 22}}
        node.partitions.catch_up()
        assert looked_at(node).copies["counts"] == {"1": 21, "2": 22}

        # A task changes its state.
        number = now.number
        node.write("0_1", 31, StoreState.ACTIVE)
        remove_plain_files(node.directory.task("0_1"), "names")
        await node.say("a", {"0_0": "running", "0_1": "running", "0_2": "standby"})
        now = looked_at(node)
        assert now.copies == {"counts": {"2": 22}, "names": {"2": 22}}
        assert (now.number > number, now.remaining, now.plain) == (True, {}, frozenset())

        # The owner of a task moves to another worker. That worker restores the task, and the first one follows it.
        await node.say("b", {"0_0": "restoring"}, generation=2)
        await node.say("a", {"0_0": "standby", "0_1": "running", "0_2": "standby"}, generation=2)
        now = looked_at(node)
        assert (now.tasks["0_0"], now.copies["counts"]) == (HeldTask("restoring", 2), {"0": 10, "2": 22})

        # Nobody has a task any more: its copy is read to the last commit, and it goes with its files.
        node.write("0_2", 32, StoreState.STANDBY)
        await node.say("a", {"0_1": "running"}, generation=3)
        assert looked_at(node).copies["counts"] == {"0": 10, "2": 32}
        with node.directory.lock_task("0_2") as lock:
            node.directory.delete_task(lock)
        assert looked_at(node).copies["counts"] == {"0": 10}

        # The topic gets partitions.
        node.count(6)
        node.write("0_5", 45, StoreState.STANDBY)
        await node.say("a", {"0_1": "running", "0_5": "standby"}, generation=3)
        node.read("0_5")
        assert looked_at(node).copies["counts"] == {"0": 10, "5": 45}
        await node.workers.close()

    with node.running("a", "b"):
        asyncio.run(scene())
