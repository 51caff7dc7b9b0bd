"""A standby that begins from the files of another node, against one that reads the changelog alone: ≥ 3 × as fast.

Two nodes, exactly once, each a worker and a server; the store counts records per key. Its input and its changelog are
written as a worker would have left them (`bench_recovery.fill`), and the first node has restored all. The second comes:
from when its worker is started until it has caught up with its half of the partitions and runs them. In turns with
files, at the default `node.copy.max.bytes.per.second`, and without. Each record has a key of its own, which is the
worst for files: what a changelog has of a key several times, they have once.

`bench_copies.py RECORDS KEYS` takes other numbers of records of the changelog, and of keys.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from bench_recovery import PARTITIONS, RECORDS, Input, fill
from bench_standbys import APPLICATION, SESSION_MS, Node
from figures import at_least
from processes import free_port, process, until

from stateline.log.kafka import KafkaLog
from support.kafka.kafka_broker import KafkaBroker
from support.processes.node_secret import write_secret

ROUNDS = 2
_DEFAULT = 52_428_800


def node(servers: str, root: Path, name: str, secret: Path, **settings: object) -> Node:
    made = Node(servers, root, name, 1)
    # So that a smaller number of records than the default one is copied as well.
    made.settings |= {"node.peer.secret.file": secret, "server.port": free_port(), "acceptable.recovery.lag": 1_000}
    made.settings |= {key.replace("_", "."): value for key, value in settings.items()}
    return made


def join_s(servers: str, root: Path, one: Node, secret: Path, name: str, limit: int) -> float:
    """How long a second node takes from its worker's start to its first running task."""
    two = node(servers, root, name, secret, node_copy_max_bytes_per_second=limit)
    with process(two.command("serve"), root / f"{name}-server.txt"):
        began_s = time.perf_counter()
        with two.working():
            until(lambda: two.tasks() != [], "the worker is there", 0.01)
            until(lambda: "running" in two.tasks(), "it has joined", 0.01)
            took_s, worked_s = time.perf_counter() - began_s, two.cpu_s()
    print(f"  limit {limit:,}: {took_s:.2f} s, of which the worker works {worked_s:.2f} s", flush=True)
    came = "files of another node" in two.output.read_text()
    if came != (limit != 0):
        raise RuntimeError(f"With {limit} bytes per second files {'came' if came else 'did not come'}.")
    until(lambda: one.tasks() == ["running"] * PARTITIONS, "the first node has all again", 0.1)
    return took_s


def main(arguments: Sequence[str]) -> None:
    records = int(arguments[0]) if arguments else 2 * RECORDS  # half of them are the second node's
    input_ = Input(int(arguments[1]) if arguments[1:] else records)
    os.environ["RECOVERY_JOB"] = "store"
    found: dict[int, list[float]] = {_DEFAULT: [], 0: []}
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        log = stack.enter_context(closing(KafkaLog(broker.bootstrap_servers)))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fill(log, records, input_)
        secret = write_secret(root)
        one = node(broker.bootstrap_servers, root, "one", secret)
        stack.enter_context(one.working())
        stack.enter_context(process(one.command("serve"), root / "one-server.txt"))
        until(lambda: one.tasks() == ["running"] * PARTITIONS, "the first node has restored all", 0.1)
        for number in range(ROUNDS):
            for limit, seen in found.items():
                seen.append(join_s(broker.bootstrap_servers, root, one, secret, f"two-{number}-{limit}", limit))
                time.sleep(SESSION_MS / 1000 + 2)
        size = sum(f.stat().st_size for f in (root / "one" / APPLICATION).rglob("*") if f.is_file())
        print(f"  {size / 1e6:,.0f} MB at the first node", flush=True)
    files_s, changelog_s = (statistics.median(seen) for seen in found.values())
    print(f"  {records // 2:,} records: from files {files_s:.2f} s, from the changelog {changelog_s:.2f} s", flush=True)
    at_least("a fresh copy from files ÷ from the changelog alone, speed", changelog_s / files_s, 3, " ×")


if __name__ == "__main__":
    main(sys.argv[1:])
