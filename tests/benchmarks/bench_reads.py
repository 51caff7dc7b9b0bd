"""Committed point reads over HTTP: p99 while the worker ingests as fast as it can ÷ p99 while it is idle: at most 3.

Broker, worker, server and client are a process each. One client reads keys at random, one after the other, over a
connection that it keeps: first while the worker works off a topic that was written before, commits every 100 ms,
then with nothing to ingest.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from figures import at_most, latencies, percentile
from processes import Table, process, server, until_committed, until_ready, worker
from topic import Group, forget_group, loaded_broker

RECORDS = 4_000_000
KEYS = 200_000
ROUNDS = 3
IDLE_S = 5.0

Window = tuple[float, float]


def measure(servers: str, state_dir: Path) -> tuple[list[float], list[float]]:
    """Seconds of each read (while ingesting, while idle)."""
    output = state_dir / "reads"
    with ExitStack() as stack:
        group = stack.enter_context(closing(Group(servers)))
        port = stack.enter_context(server(servers, state_dir))
        stack.enter_context(worker(servers, state_dir, {}))
        table = stack.enter_context(closing(Table(state_dir)))
        until_ready(port)
        until_committed(group, KEYS)  # from here on every key exists
        client = ["point_reads.py", str(port), str(KEYS), str(output)]
        with process(client, state_dir / "client.txt"):
            time.sleep(0.5)  # the client's start
            busy = _window(lambda: table.until_all(group, RECORDS))
            time.sleep(0.5)  # compactions end
            idle = _window(lambda: time.sleep(IDLE_S))
    forget_group(servers)
    taken = array("d", output.read_bytes())
    return _within(taken, busy), _within(taken, idle)


def _window(work: Callable[[], None]) -> Window:
    begin = time.monotonic()
    work()
    return begin, time.monotonic()


def _within(taken: array[float], window: Window) -> list[float]:
    begins, seconds = taken[0::2], taken[1::2]
    return [s for begin, s in zip(begins, seconds, strict=True) if window[0] <= begin and begin + s <= window[1]]


def main() -> None:
    ratios = []
    with loaded_broker(RECORDS, KEYS) as servers:
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as directory:
                busy, idle = measure(servers, Path(directory))
            print(f"  ingesting: {latencies(busy)}; idle: {latencies(idle)}", flush=True)
            ratios.append(percentile(busy, 0.99) / percentile(idle, 0.99))
    at_most("p99 of reads under ingest ÷ idle", statistics.median(ratios), 3)


if __name__ == "__main__":
    main()
