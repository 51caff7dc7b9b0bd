"""Ingest of a table from a real broker, commits every 100 ms ÷ a bare loop that takes messages apart: at least 0.6.

Both read the same topic in turns, in processes of their own and with the same consumer settings; the table's time
goes from its first record to its last commit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from figures import at_least
from processes import Table, worker
from topic import Group, forget_group, loaded_broker

RECORDS = 2_000_000
KEYS = 200_000
ROUNDS = 3

# What the worker's consumer is set to without being told, and the same for the bare loop.
CONSUMER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 2,
}


def bare_rate(servers: str) -> float:
    settings = {
        "bootstrap.servers": servers,
        "group.id": f"bare-{time.time_ns()}",
        "auto.offset.reset": "earliest",
        "log_level": 0,
        **CONSUMER,
    }
    command = [sys.executable, str(Path(__file__).with_name("bare_loop.py")), json.dumps(settings), str(RECORDS)]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def table_rate(servers: str) -> float:
    settings = {f"consumer.{name}": str(setting).lower() for name, setting in CONSUMER.items()}
    with ExitStack() as stack:
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(closing(Group(servers)))
        stack.enter_context(worker(servers, state_dir, settings))
        table = stack.enter_context(closing(Table(state_dir)))
        table.until_begun()
        started = time.perf_counter()
        table.until_all(group, RECORDS)
        seconds = time.perf_counter() - started
    forget_group(servers)
    return RECORDS / seconds


def main() -> None:
    ratios, rates = [], []
    with loaded_broker(RECORDS, KEYS) as servers:
        for _ in range(ROUNDS):
            bare, table = bare_rate(servers), table_rate(servers)
            print(f"  bare loop {bare:,.0f}/s, table {table:,.0f}/s, ratio {table / bare:.2f}", flush=True)
            ratios.append(table / bare)
            rates.append(table)
    print(f"  median of the table: {statistics.median(rates):,.0f} records/s")
    at_least("ingest of a table ÷ the bare loop", statistics.median(ratios), 0.6)


if __name__ == "__main__":
    main()
