"""A client that knows the map asks at the speed of one node: `Client`, one committed read of a key after the other, of
a node that is alone and of two that share its partitions. At least 0.9 of the questions per second, at most 1.1 of the
processor time a question takes, the client's and the servers', without what servers take that nobody asks.

The node that is alone is another application's, over the same topic, so that all can be asked in turns: it; of the two
their owners; and of the two the first for all, which asks the other one.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench_nodes import Node, nodes, settled
from figures import at_least, at_most
from processes import until
from topic import TOPIC, key_of, loaded_broker

from stateline.client import Client

KEYS = 20_000
ROUNDS = 5
SECONDS = 3.0
IDLE_S = 3.0
WARM_UP = 500


class Asked:
    """What questions of one kind took, in rounds: how many there were per second, and processor seconds of each."""

    def __init__(self, name: str, *, ask_owners: bool = True) -> None:
        self.name, self._ask_owners = name, ask_owners
        self.rates: list[float] = []
        self.client_s: list[float] = []
        self.servers_s: list[float] = []

    def round(self, found: Mapping[str, Node], idle: float) -> None:
        """Ask for keys at random, beginning with what the first of these nodes knows; `idle` is the processor time
        that the servers take in a second in which nobody asks."""
        first = next(iter(found.values()))
        with Client(f"http://127.0.0.1:{first.port}", ask_owners=self._ask_owners) as client:
            table = client.store(TOPIC, isolation_level="read_committed")
            for number in range(WARM_UP):
                table.get(key_of(number).decode())
            count, servers_s, client_s = 0, _cpu_s(found), time.process_time()
            begin = time.perf_counter()
            while (taken_s := time.perf_counter() - begin) < SECONDS:
                assert table.get(key_of(random.randrange(KEYS)).decode()).found
                count += 1
        self.rates.append(count / taken_s)
        self.client_s.append((time.process_time() - client_s) / count)
        self.servers_s.append((_cpu_s(found) - servers_s - idle * taken_s) / count)

    @property
    def all_s(self) -> list[float]:
        """Processor seconds of a question, the client's and the servers'."""
        return [a + b for a, b in zip(self.client_s, self.servers_s, strict=True)]

    def __str__(self) -> str:
        client_s, servers_s = statistics.median(self.client_s), statistics.median(self.servers_s)
        return (
            f"  {self.name}: {statistics.median(self.rates):,.0f} questions/s, of processor {client_s * 1e6:.0f} µs "
            f"the client's and {servers_s * 1e6:.0f} µs the servers' each"
        )


def ratio(above: list[float], below: list[float]) -> float:
    """The median of the rounds."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _cpu_s(found: Mapping[str, Node]) -> float:
    return sum(node.cpu_s for node in found.values())


def _idle(found: Mapping[str, Node]) -> float:
    """Processor seconds that the servers take in a second."""
    before = _cpu_s(found)
    time.sleep(IDLE_S)
    return (_cpu_s(found) - before) / IDLE_S


def main() -> None:
    alone = Asked("one node, alone")
    direct, through = Asked("two, owners asked"), Asked("two, one asked for all", ask_owners=False)
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(KEYS, KEYS))
        first, second = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        two = stack.enter_context(nodes(servers, first, ["one", "two"]))
        os.environ["INGEST_ID"] = "ingest-alone"
        one = stack.enter_context(nodes(servers, second, ["alone"]))
        until(lambda: settled(two) and settled(one), "all nodes have their partitions", 0.2)
        idle_one, idle_two = _idle(one), _idle(two)
        for _ in range(ROUNDS):
            alone.round(one, idle_one)
            direct.round(two, idle_two)
            through.round(two, idle_two)
    print(alone, direct, through, sep="\n", flush=True)
    rates, taken = ratio(direct.rates, alone.rates), ratio(direct.all_s, alone.all_s)
    at_least("questions per second of a client that knows the map, two nodes ÷ one alone", rates, 0.9)
    at_most("processor time of a question, the same", taken, 1.1)


if __name__ == "__main__":
    main()
