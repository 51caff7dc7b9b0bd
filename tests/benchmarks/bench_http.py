"""Committed point queries per second over HTTP: one server process ÷ a bare ASGI application that does the same read,
at least 0.6; two processes ÷ one, at least 1.6 (where there are cores for them and for wrk). And streams of a range:
Arrow at least a million rows per second, NDJSON 300,000.

`wrk` sends keys at random over 32 connections; the worker is idle. The two that are compared take turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
from figures import at_least
from processes import free_port, ingested, process, server, until, until_ready
from topic import TOPIC
from wrk import load

KEYS = 200_000
ROUNDS = 5
SECONDS = 4
STREAM_ROUNDS = 5


def rows_per_second(port: int, media_type: str) -> float:
    """How fast all rows of the table arrive, over one connection that reads and does nothing else."""
    url = f"http://127.0.0.1:{port}/v1/stores/{TOPIC}/range?isolation_level=read_committed"
    begin, size = time.perf_counter(), 0
    with httpx.stream("GET", url, headers={"accept": media_type, "accept-encoding": "identity"}, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for chunk in answer.iter_raw():
            size += len(chunk)
    assert size > KEYS * 50, "the stream is shorter than its rows"
    return KEYS / (time.perf_counter() - begin)


def compare(servers: str, state_dir: Path, stack: ExitStack) -> None:
    """Servers over the table that a worker has ingested."""
    one = stack.enter_context(server(servers, state_dir))
    two = stack.enter_context(server(servers, state_dir, {"server.processes": 2}))
    bare = free_port()
    stack.enter_context(process(["bare_asgi.py", str(state_dir), str(bare)], state_dir / "bare.txt"))
    for port in (one, two):
        until_ready(port)
    until(lambda: _listens(bare), "the bare application answers", 0.05)
    script, path = state_dir / "keys.lua", f"/v1/stores/{TOPIC}/keys/key-%08d?isolation_level=read_committed"
    found: dict[str, list[float]] = {"bare": [], "one": [], "two": []}
    for _ in range(ROUNDS):
        for name, port in (("bare", bare), ("one", one), ("two", two)):
            found[name].append(load(port, path, KEYS, SECONDS, script).rate)
        print("  " + ", ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in found.items()), flush=True)
    at_least("point queries of one process ÷ a bare ASGI application", _ratio(found["one"], found["bare"]), 0.6)
    cores = len(os.sched_getaffinity(0))
    if cores > 2:
        at_least("point queries of two processes ÷ one", _ratio(found["two"], found["one"]), 1.6)
    else:
        ratio = _ratio(found["two"], found["one"])
        print(f"two processes ÷ one: {ratio:.2f}; wrk and both share {cores} cores here, which is too few to tell")
    for name, media_type, target in (
        ("Arrow", "application/vnd.apache.arrow.stream", 1_000_000),
        ("NDJSON", "application/x-ndjson", 300_000),
    ):
        rates = [rows_per_second(one, media_type) for _ in range(STREAM_ROUNDS)]
        at_least(f"rows per second of a range as {name}", statistics.median(rates), target)


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/none").status_code == 404
    except httpx.TransportError:
        return False


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing: install it (Debian: wrk).")
    with ExitStack() as stack:
        servers, state_dir = stack.enter_context(ingested(KEYS))
        compare(servers, state_dir, stack)


if __name__ == "__main__":
    main()
