"""Links of nodes that nobody asks: 12 nodes of 4 server processes, each linked with the 11 other nodes, and the maps of
500 partitions with 4 stores and a standby each.

The links of all 48 processes run in this process, with maps that are made here: bytes that all send in a second, and
processor time of one process for its links. `OwnMap` of one process runs over real files: a node's 84 tasks are 336
databases, with a secondary each. Its time, four times a second, is added.

At most 1 MB/s in all, and 0.5 % of a core for each process. Then every copy commits four times a second.
"""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import processes  # noqa: F401 - finds the tests' modules
from figures import at_most

from stateline import serdes
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.stores import key_value, timestamped_key_value
from stateline_store import StoreState
from support.processes.linked_nodes import LinkedNode, run, until, with_secret
from support.processes.node_files import NodeFiles

NODES, PROCESSES, PARTITIONS, STORES, SECONDS, LOOKS = 12, 4, 500, 4, 10, 100


class Sent:
    """Bytes of all messages from now on."""

    def __init__(self) -> None:
        self.bytes = 0
        exchange: Any = import_module("stateline.server.wire.exchange")
        framed = exchange.frame

        def counted(message: dict[str, object]) -> bytes:
            data: bytes = framed(message)
            self.bytes += len(data)
            return data

        exchange.frame = counted


def map_of(node: int, offset: int) -> NodeMap:
    """A twelfth of the tasks runs here, and another twelfth is followed."""
    own = {f"0_{p}": HeldTask("active", 7) for p in range(node, PARTITIONS, NODES)}
    copies = list(range((node + 1) % NODES, PARTITIONS, NODES))
    followed = {f"0_{p}": HeldTask("standby") for p in copies}
    offsets = {f"store-{n}": dict.fromkeys(map(str, copies), offset) for n in range(STORES)}
    return NodeMap(1, own | followed, offsets, followed=frozenset(followed))


async def own_map_cpu_s(root: Path) -> float:
    """Processor seconds of one look at what the first node has."""
    kinds = [key_value, timestamped_key_value]
    stores = [kinds[n % 2](f"s{n}", key=serdes.bytes, value=serdes.bytes) for n in range(STORES)]
    node = NodeFiles(root, stores, PARTITIONS)
    told = [("running", StoreState.ACTIVE), ("standby", StoreState.STANDBY)]
    tasks = {f"0_{p}": told[n] for n in range(2) for p in range(n, PARTITIONS, NODES)}
    for task, (_, state) in tasks.items():
        node.write(task, 1_000_000_000, state)
    with node.running("w"):
        await node.say("w", {task: name for task, (name, _) in tasks.items()})
        node.read(*tasks)
        assert len(node.own.now().tasks) == len(tasks)
        began_s = time.thread_time()
        for _ in range(LOOKS):
            node.own.now()
        took_s = time.thread_time() - began_s
        await node.workers.close()
    return took_s / LOOKS


def linked_nodes(directory: Path) -> list[list[LinkedNode]]:
    """The processes of each node, which dial all other nodes."""
    config = with_secret(directory)
    nodes = [[LinkedNode(f"node-{n}", config) for _ in range(PROCESSES)] for n in range(NODES)]
    for n, own in enumerate(nodes):
        for process in own:
            process.map = map_of(n, 1_000_000_000)
            for other in range(NODES):
                if other != n:
                    process.hear_of(f"node-{other}", nodes[other][0].entry)
    return nodes


async def measure() -> None:
    sent = Sent()
    with TemporaryDirectory() as directory:
        own_map = 4 * await own_map_cpu_s(Path(directory) / "state")
        print(f"  own map, 4 times a second: {100 * own_map:.2f} % of a core")
        nodes = linked_nodes(Path(directory))
        everybody = [process for processes in nodes for process in processes]
        await until(lambda: all(len(list(each.nodes.links())) == NODES - 1 for each in everybody))
        await asyncio.sleep(1)
        for commits in (False, True):
            before, began_s, cpu_s = sent.bytes, time.monotonic(), time.process_time()
            for step in range(4 * SECONDS):
                for n, processes in enumerate(nodes):
                    if commits:
                        processes[0].map = map_of(n, 1_000_000_000 + step)
                await asyncio.sleep(0.25)
            took_s = time.monotonic() - began_s
            share = (time.process_time() - cpu_s) / took_s / len(everybody)
            megabytes_s, percent = (sent.bytes - before) / took_s / 1e6, 100 * (share + own_map)
            if commits:
                print(f"  every copy commits 4 times a second: {megabytes_s:.2f} MB/s, {percent:.2f} % of a core")
            else:
                at_most("MB/s of all links", megabytes_s, 1)
                at_most("% of a core of a process for its links and its map", percent, 0.5)
        for each in everybody:
            await each.close()


if __name__ == "__main__":
    run(measure())
