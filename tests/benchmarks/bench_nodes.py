"""Two nodes: what a point read costs that the other node answers, beside one that is answered where it is asked. At
most 2.5 × the processor time, over all server processes, at 5,000 questions a second that are asked whatever the
answers take (`asker`). Each round asks one node for keys that it has, and then for keys that the other has.

What links and heartbeats cost that carry nothing: what the event loops of three linked servers take that nobody asks,
less what those of three take that are not linked. Everything that a server does with other nodes is on that thread, and
what it asks Kafka is not. At most 1 % of a core, all three together.

How long it takes until all three show what one of them has: its worker is stopped and started again and again, and its
instance file and ``/v1/nodes`` of all three are looked at all the while. At most a second (p99) for each change of a
task at each node.
"""

from __future__ import annotations

import math
import secrets
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from cores import cpu_s
from figures import at_most, percentile
from ingest_app import app
from processes import process, server_process, until, worker
from topic import PARTITIONS, TOPIC, key_of, loaded_broker

from stateline.deployment.workers.instance_file import read_instances

KEYS = 20_000
ROUNDS = 3
SECONDS = 8.0
RATE = 5_000
IDLE_S = 30.0
RESTARTS = 15
PATH = f"/v1/stores/{TOPIC}/keys/%s?isolation_level=read_committed"

APPLICATION = app.application_id


@dataclass(frozen=True)
class Node:
    """One node: where it answers, its server's process, and what ends its worker."""

    name: str
    port: int
    server: int
    state_dir: Path
    start_worker: Callable[[ExitStack], object]
    running: ExitStack = field(default_factory=ExitStack)

    @property
    def loop_cpu_s(self) -> float:
        """Processor seconds that its server's event loop has taken: proc(5), nanoseconds of its main thread."""
        return int(Path(f"/proc/{self.server}/task/{self.server}/schedstat").read_text().split()[0]) / 1e9

    @property
    def cpu_s(self) -> float:
        """Processor seconds that its server has taken."""
        return cpu_s(self.server)

    def restart_worker(self, rest_s: float) -> None:
        """Stop it, wait so long, and start it again."""
        self.running.close()
        time.sleep(rest_s)
        self.start_worker(self.running)

    def runs(self) -> frozenset[str]:
        """The tasks that its worker runs, as it says itself."""
        instances = read_instances(self.state_dir / APPLICATION).values()
        return frozenset(task for each in instances for task, state in each.tasks.items() if state == "running")

    def owners(self) -> dict[str, str | None]:
        """Where each partition's owner is, as this node says it."""
        stores: dict[str, dict[str, str | None]] = httpx.get(f"http://127.0.0.1:{self.port}/v1/nodes").json()["stores"]
        return stores.get(TOPIC, {})


@contextmanager
def nodes(servers: str, root: Path, names: list[str], *, linked: bool = True) -> Iterator[dict[str, Node]]:
    """Nodes of one application, each with a worker and a server, linked by a secret if at all."""
    secret = root / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    with ExitStack() as stack:
        found = {}
        for name in names:
            state_dir = root / name
            state_dir.mkdir()
            settings = {"node.name": name} | ({"node.peer.secret.file": secret} if linked else {})
            port, child = stack.enter_context(server_process(servers, state_dir, settings))
            start = partial(_start_worker, servers, state_dir, settings)
            found[name] = Node(name, port, child.pid, state_dir, start)
            start(stack.enter_context(found[name].running))
        yield found


def _start_worker(servers: str, state_dir: Path, settings: Mapping[str, object], running: ExitStack) -> None:
    running.enter_context(worker(servers, state_dir, settings))


def settled(found: dict[str, Node]) -> bool:
    """Whether all say the same, and each has as much as another."""
    told = [node.owners() for node in found.values()]
    owners = list(told[0].values())
    counts = {owners.count(f"http://127.0.0.1:{node.port}") for node in found.values()}
    if len(owners) < PARTITIONS or None in owners:
        return False
    return all(each == told[0] for each in told) and max(counts) - min(counts) <= 1


def keys_by_owner(found: dict[str, Node], root: Path) -> dict[str, Path]:
    """A file of keys for each node that has them."""
    by_port = {node.port: node.name for node in found.values()}
    keys: dict[str, list[str]] = {name: [] for name in found}
    node = next(iter(found.values()))
    with httpx.Client(base_url=f"http://127.0.0.1:{node.port}") as client:
        owners = node.owners()
        for number in range(0, KEYS, KEYS // 400):
            key = key_of(number).decode()
            (partition,) = client.get(f"/v1/stores/{TOPIC}/keys/{key}").json()["partitions"]
            keys[by_port[httpx.URL(owners[partition] or "").port or 0]].append(key)
    files = {name: root / f"{name}.keys" for name in found}
    for name, path in files.items():
        path.write_text("\n".join(keys[name]))
    return files


def ask(node: Node, keys: Path, found: dict[str, Node], root: Path) -> tuple[float, array[float]]:
    """Processor seconds of all servers per question, and the seconds of each answer."""
    output = root / "taken"
    before = sum(each.cpu_s for each in found.values())
    with process(
        ["asker.py", str(RATE), str(SECONDS), str(output), PATH, str(node.port), str(keys)], root / "asker.txt"
    ) as child:
        child.wait()
    used = sum(each.cpu_s for each in found.values()) - before
    taken = array("d", output.read_bytes())
    return used / len(taken), taken


def told(taken: array[float]) -> str:
    """As printed."""
    p50, p99 = statistics.median(taken) * 1000, percentile(taken, 0.99) * 1000
    return f"p50 {p50:.2f} ms, p99 {p99:.1f} ms, longest {max(taken) * 1000:.0f} ms"


def measure_reads(servers: str, root: Path) -> None:
    """Local and forwarded point reads in turns."""
    with nodes(servers, root, ["one", "two"]) as found:
        until(lambda: settled(found), "both nodes have their partitions", 0.2)
        keys = keys_by_owner(found, root)
        ratios = []
        for _ in range(ROUNDS):
            local_s, local = ask(found["one"], keys["one"], found, root)
            away_s, away = ask(found["one"], keys["two"], found, root)
            ratios.append(away_s / local_s)
            print(f"  answered here: {local_s * 1e6:.0f} µs of processor a question, {told(local)}")
            print(f"  by the other:  {away_s * 1e6:.0f} µs of processor a question, {told(away)}", flush=True)
        at_most(
            f"a forwarded point read at {RATE:,}/s ÷ a local one, in processor time", statistics.median(ratios), 2.5
        )


def idle_cpu_s(servers: str, root: Path, names: list[str], *, linked: bool) -> float:
    """Processor seconds that the event loops of three nodes take in a second, all together, while nobody asks."""
    with nodes(servers, root, names, linked=linked) as found:
        until(lambda: settled(found) if linked else _run(found) == PARTITIONS, "all partitions have owners", 0.2)
        time.sleep(5)
        before, began_s = sum(node.loop_cpu_s for node in found.values()), time.monotonic()
        time.sleep(IDLE_S)
        return (sum(node.loop_cpu_s for node in found.values()) - before) / (time.monotonic() - began_s)


def _run(found: dict[str, Node]) -> int:
    return sum(len(node.runs()) for node in found.values())


def measure_idle(servers: str, root: Path) -> None:
    """Three nodes that nobody asks, linked and not."""
    linked_s = idle_cpu_s(servers, root, ["three", "four", "five"], linked=True)
    alone_s = idle_cpu_s(servers, root, ["six", "seven", "eight"], linked=False)
    print(f"  event loops of three servers: linked {linked_s * 100:.2f} % of a core, not linked {alone_s * 100:.2f} %")
    at_most("links and heartbeats of three idle nodes", (linked_s - alone_s) * 100, 1, " %")


class Seen:
    """When each task has begun and ceased to be run by one node, as somebody says."""

    def __init__(self, look: Callable[[], frozenset[str]]) -> None:
        self.changes: dict[str, list[float]] = defaultdict(list)
        self._look = look
        self._ended = threading.Event()
        self._tasks = look()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            tasks, at_s = self._look(), time.monotonic()
            for task in tasks ^ self._tasks:
                self.changes[task].append(at_s)
            self._tasks = tasks


def shown(client: httpx.Client, name: str) -> frozenset[str]:
    """The tasks that this node runs, as the one says that is asked."""
    told = client.get("/v1/nodes").json()["nodes"].get(name, {}).get("tasks", {})
    return frozenset(task for task, each in told.items() if each["role"] == "active")


def taken_s(
    said: Mapping[str, Sequence[float]], seen: Sequence[Mapping[str, Sequence[float]]]
) -> tuple[list[float], list[str]]:
    """Seconds from each change of a task that was said until each of those who look has seen it, and which tasks they
    have missed a change of: they were so late that the next one came first, so these were never seen."""
    taken: list[float] = []
    missed: list[str] = []
    for each in seen:
        for task, said_s in said.items():
            at_s = each.get(task, ())
            if len(at_s) == len(said_s):
                taken += [at - since for since, at in zip(said_s, at_s, strict=True)]
            else:
                missed.append(task)
                taken += [math.inf] * len(said_s)
    return taken, missed


def measure_changes(servers: str, root: Path) -> None:
    """From a worker's word to every node's."""
    with nodes(servers, root, ["nine", "ten", "eleven"]) as found, ExitStack() as stack:
        until(lambda: settled(found), "all nodes have their partitions", 0.2)
        moved = found["ten"]
        clients = [httpx.Client(base_url=f"http://127.0.0.1:{node.port}") for node in found.values()]
        for client in clients:
            stack.enter_context(client)
        owner, *others = [Seen(moved.runs), *(Seen(partial(shown, client, moved.name)) for client in clients)]
        try:
            for number in range(RESTARTS):
                moved.restart_worker(1 + number / RESTARTS)  # at no beat of what is looked at now and then
                until(lambda: settled(found), "all nodes have their partitions", 0.2)
                time.sleep(1)
        finally:
            for seen in (owner, *others):
                seen.end()
    taken, missed = taken_s(owner.changes, [seen.changes for seen in others])
    p50, p99 = statistics.median(taken), percentile(taken, 0.99)
    print(f"  {len(taken)} changes of a task at a node: p50 {p50:.2f} s, longest {max(taken):.2f} s; missed: {missed}")
    at_most("a change of a task until a node shows it, p99", p99, 1, " s")
    at_most("tasks of which a node has not shown every change", len(missed), 0)


def main() -> None:
    measures = {"reads": measure_reads, "idle": measure_idle, "changes": measure_changes}
    wanted = sys.argv[1:] or list(measures)
    with loaded_broker(KEYS, KEYS) as servers, tempfile.TemporaryDirectory() as directory:
        for name in wanted:
            measures[name](servers, Path(directory))


if __name__ == "__main__":
    main()
