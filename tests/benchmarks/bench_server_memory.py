"""Resident memory of a server over a million requests of every kind: after the last at most 5 % more than after the
first 100,000.

wrk sends them over 32 connections: keys, present and absent, many at once, ranges page by page, some of whose cursors
are left, counts, and what is refused, at both isolation levels. The worker has nothing to ingest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from cores import memory_mb
from figures import at_most
from processes import ingested, server_process, until_ready
from topic import TOPIC

KEYS = 200_000
FIRST = 100_000
LAST = 1_000_000
SLICE_S = 3
_SCRIPT = Path(__file__).with_name("mixed_requests.lua")

# What refuses and what is absent is part of the mix; 410 says that a cursor had to make room for another.
EXPECTED = {200, 400, 404, 410, 422}


def ask(port: int) -> Counter[int]:
    """How many answers of which status a slice of requests got."""
    command = [
        "wrk",
        "-t1",
        "-c32",
        f"-d{SLICE_S}s",
        "--timeout",
        "30s",
        "-s",
        str(_SCRIPT),
        f"http://127.0.0.1:{port}",
    ]
    command += ["--", f"/v1/stores/{TOPIC}", str(KEYS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = Counter({int(status): int(answers) for status, answers in re.findall(r"^status (\d+): (\d+)$", said, re.M)})
    if "Socket errors" in said or not set(found) <= EXPECTED or 2 * found[200] < found.total():
        raise RuntimeError(said)
    return found


def measure(port: int, pid: int) -> dict[int, float]:
    """Resident memory in MB of 10^6 bytes, by the number of requests answered, each time the server has answered some
    100,000 more.
    """
    answered: Counter[int] = Counter()
    found: dict[int, float] = {}
    while (total := answered.total()) < LAST or not found:
        answered += ask(port)
        if answered.total() // FIRST > total // FIRST:
            found[answered.total()] = memory_mb(pid, "VmRSS")
            print(f"  {answered.total():,} requests: {found[answered.total()]:.1f} MB", flush=True)
    print("  answers by status: " + ", ".join(f"{status}: {n:,}" for status, n in sorted(answered.items())))
    return found


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing: install it (Debian: wrk).")
    with ExitStack() as stack:
        servers, state_dir = stack.enter_context(ingested(KEYS))
        port, child = stack.enter_context(server_process(servers, state_dir))
        until_ready(port)
        found = measure(port, child.pid)
    first, last = found[min(found)], found[max(found)]
    at_most("growth of a server's memory over a million requests", (last / first - 1) * 100, 5, " %")


if __name__ == "__main__":
    main()
