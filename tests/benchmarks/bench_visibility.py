"""From a commit to its being visible, p99: at most 20 ms, in a reader of another process and over HTTP.

Records are ingested at an even rate with commits every 100 ms. A watcher notes when each commit notice shows a new
commit; that is when `store.commit` returns in the worker. It is visible when a `SecondaryReader` has refreshed to it,
or when a query that waited for the next position (`position_bound`, `wait_ms`) was answered. Every commit counts, also
one that was seen only together with the next. Producer, broker, worker, server, watcher and readers are a process each.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

from figures import at_most, latencies, percentile
from http_client import Connection
from processes import Table, server, until_committed, until_ready, worker
from topic import PARTITIONS, TOPIC, Group, key_of, loaded_broker, produce_evenly

from stateline.serde.partitioner import home_partition

# The target holds at the first; the other is ten times the load that two cores share with producer, broker, worker,
# server, watcher and readers, and shows where it goes.
RATES = (10_000, 100_000)
KEYS = 200_000
PHASE_S = 12.0
_LOOK_EVERY_S = 0.0005
_WARM_UP_S = 1.0

# (partition, when committed by the owner's clock in ms, when seen by time.monotonic)
Sighting = tuple[int, int, float]


def watch_notices(state_dir: Path, until_s: float) -> list[Sighting]:
    """When each commit was announced."""
    seen: list[Sighting] = []
    with closing(Table(state_dir)) as table:
        numbers = [notice.commit_number for notice in table.notices]
        while time.monotonic() < until_s:
            for partition, notice in enumerate(table.notices):
                if notice.commit_number != numbers[partition]:
                    numbers[partition] = notice.commit_number
                    seen.append((partition, notice.committed_at_ms, time.monotonic()))
            time.sleep(_LOOK_EVERY_S)
    return seen


def follow_with_readers(state_dir: Path, until_s: float) -> list[Sighting]:
    """When each commit was visible to this process's readers, one per partition."""
    visible: list[Sighting] = []
    with ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        table = stack.enter_context(closing(Table(state_dir)))
        readers = [stack.enter_context(closing(table.reader(p, Path(scratch)))) for p in range(PARTITIONS)]
        while time.monotonic() < until_s:
            for partition, reader in enumerate(readers):
                if reader.notice.commit_number > reader.commit_number:
                    announced_ms = reader.notice.committed_at_ms
                    reader.refresh()
                    visible.append((partition, announced_ms, time.monotonic()))
            time.sleep(_LOOK_EVERY_S)
    return visible


def follow_over_http(port: int, until_s: float) -> list[Sighting]:
    """When each commit was visible to a client that waits for it, one connection per partition."""
    visible: list[Sighting] = []
    threads = [threading.Thread(target=_follow_partition, args=(port, p, until_s, visible)) for p in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return visible


def _follow_partition(port: int, partition: int, until_s: float, visible: list[Sighting]) -> None:
    key = next(k for k in map(key_of, range(KEYS)) if home_partition(k, PARTITIONS) == partition).decode()
    path = f"/v1/stores/{TOPIC}/keys/{key}?isolation_level=read_committed&partition={partition}&wait_ms=10000"
    offset = 0
    with Connection(port) as connection:
        while time.monotonic() < until_s:
            bound = quote(json.dumps({TOPIC: {partition: offset}}))
            status, body = connection.get(f"{path}&position_bound={bound}")
            at = time.monotonic()
            assert status == 200, f"{status} {body[:500]!r}"
            answer = json.loads(body)["partitions"][str(partition)]
            offset = answer["position"][TOPIC][str(partition)] + 1
            visible.append((partition, answer["committed_at_ms"], at))


def delays(announced: Sequence[Sighting], visible: Sequence[Sighting]) -> list[float]:
    """Seconds from each announcement to the first sight of that commit or a later one.

    What was announced while the readers were still being opened is left out.
    """
    ready = max(min(at for p, _, at in visible if p == partition) for partition in range(PARTITIONS)) + _WARM_UP_S
    announced = [sighting for sighting in announced if sighting[2] >= ready]
    found = []
    for partition in range(PARTITIONS):
        sights = [(committed, at) for p, committed, at in visible if p == partition]
        commits = [committed for committed, _ in sights]
        for p, committed, at in announced:
            if p == partition and (index := bisect_left(commits, committed)) < len(sights):
                found.append(max(0.0, sights[index][1] - at))
    return found


def main() -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(KEYS, KEYS))
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(closing(Group(servers)))
        port = stack.enter_context(server(servers, state_dir))
        stack.enter_context(worker(servers, state_dir, {}))
        stack.enter_context(closing(Table(state_dir)))
        until_ready(port)
        until_committed(group, KEYS)
        pool = stack.enter_context(ProcessPoolExecutor(3, multiprocessing.get_context("spawn")))
        found = {rate: _at_rate(pool, servers, state_dir, port, rate) for rate in RATES}
    reader, over_http = found[RATES[0]]
    at_most("commit to visible in a reader, p99", percentile(reader, 0.99) * 1000, 20, " ms")
    at_most("commit to visible over HTTP, p99", percentile(over_http, 0.99) * 1000, 20, " ms")


def _at_rate(
    pool: ProcessPoolExecutor, servers: str, state_dir: Path, port: int, rate: int
) -> tuple[list[float], list[float]]:
    """Seconds from commit to visible at this load: in readers, over HTTP."""
    begin = time.monotonic() + 2  # processes start, the ingest gets going
    middle, end = begin + PHASE_S, begin + 2 * PHASE_S
    producing = pool.submit(produce_evenly, servers, rate, KEYS, end)
    reader = _phase(pool, state_dir, middle, pool.submit(follow_with_readers, state_dir, middle))
    over_http = _phase(pool, state_dir, end, pool.submit(follow_over_http, port, end))
    print(
        f"  {producing.result():,.0f} records/s; reader: {latencies(reader)}; HTTP: {latencies(over_http)}", flush=True
    )
    return reader, over_http


def _phase(
    pool: ProcessPoolExecutor, state_dir: Path, until_s: float, following: Future[list[Sighting]]
) -> list[float]:
    watching = pool.submit(watch_notices, state_dir, until_s - 0.5)  # the last commits have time to be seen
    return delays(watching.result(), following.result())


if __name__ == "__main__":
    main()
