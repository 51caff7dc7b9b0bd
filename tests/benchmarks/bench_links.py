"""Links of nodes that nobody asks: 12 nodes of 4 server processes, each linked with the 11 other nodes, and the maps of
500 partitions with 4 stores and a standby each. All run in this process: bytes that all send in a second, and
processor time of one process for its links.

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

from stateline.server.nodes.node_map import HeldTask, NodeMap
from support.processes.linked_nodes import LinkedNode, run, until, with_secret

NODES, PROCESSES, PARTITIONS, STORES, SECONDS = 12, 4, 500, 4, 10


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


async def measure() -> None:
    sent = Sent()
    with TemporaryDirectory() as directory:
        config = with_secret(Path(directory))
        nodes = [[LinkedNode(f"node-{n}", config) for _ in range(PROCESSES)] for n in range(NODES)]
        for n, processes in enumerate(nodes):
            for process in processes:
                process.map = map_of(n, 1_000_000_000)
                for other in range(NODES):
                    if other != n:
                        process.hear_of(f"node-{other}", nodes[other][0].entry)
        everybody = [process for processes in nodes for process in processes]
        await until(lambda: all(len(list(each.nodes.links())) == NODES - 1 for each in everybody))
        await asyncio.sleep(1)
        for what, commits in (("idle", False), ("committing", True)):
            before, began_s, cpu_s = sent.bytes, time.monotonic(), time.process_time()
            for step in range(4 * SECONDS):
                for n, processes in enumerate(nodes):
                    if commits:
                        processes[0].map = map_of(n, 1_000_000_000 + step)
                await asyncio.sleep(0.25)
            took_s = time.monotonic() - began_s
            share = (time.process_time() - cpu_s) / took_s / len(everybody)
            at_most(f"MB/s of all links, {what}", (sent.bytes - before) / took_s / 1e6, 1)
            at_most(f"% of a core of a process for its links, {what}", 100 * share, 0.5)
        for each in everybody:
            await each.close()


if __name__ == "__main__":
    run(measure())
