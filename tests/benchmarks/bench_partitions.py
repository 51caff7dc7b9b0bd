"""What store partitions cost that share a worker and a server: 200 of them against 20.

The owner writes at most 1.5 bytes per byte put, and a round of commits, one of each store, takes at most twice as long
per row. A process with 200 secondaries that follow all these commits ends with the descriptors and the memory that it
had in the first half of them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from figures import at_most

from stateline.processes.machine import allow_many
from stateline_store import KeyValueStore, SecondaryReader, StoreContext

PARTITIONS = 200
FEW = 20
COMMITS = 40
ROWS = 20
ROW_BYTES = 12 + 100
LARGER_ROWS = 100  # for the readers: the owner's memtables are full after some forty rounds, and flushed one by one
ROUNDS = 320


def written() -> int:
    """How many bytes this process has given to `write` so far."""
    with open("/proc/self/io") as counters:
        return next(int(line.split()[1]) for line in counters if line.startswith("wchar"))


def resident_bytes() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def opened(root: Path, count: int) -> list[KeyValueStore]:
    stores = [KeyValueStore(f"rows{number}") for number in range(count)]
    for store in stores:
        store.init(StoreContext("0_0", root, None))
    return stores


def one_round(stores: list[KeyValueStore], rnd: random.Random, count: int = ROWS) -> float:
    """A commit of each store; how long it took per row, in µs."""
    rows = [(b"%012d" % rnd.randrange(10**9), rnd.randbytes(100)) for _ in range(count)]
    started = time.perf_counter()
    for store in stores:
        for key, value in rows:
            store.put(key, value)
        store.commit({})
    return (time.perf_counter() - started) / len(stores) / count * 1e6


def follow(root: Path, connection: Connection) -> None:
    """The reading process: opens all, and after each round catches up and says how many descriptors it has, how much
    memory, and how long it took."""
    allow_many()
    readers = [
        SecondaryReader(root / "rocksdb" / f"rows{number}", root / f"rows{number}.notice", root / "scratch")
        for number in range(PARTITIONS)
    ]
    while connection.recv():
        started = time.perf_counter()
        for reader in readers:
            reader.refresh()
        took = time.perf_counter() - started
        connection.send((len(os.listdir("/proc/self/fd")), resident_bytes(), took))
    for reader in readers:
        reader.close()


def owner(root: Path, rnd: random.Random) -> None:
    few, many = opened(root / "few", FEW), opened(root / "many", PARTITIONS)
    before = written()
    rounds = [(one_round(few, rnd), one_round(many, rnd)) for _ in range(COMMITS)]
    put = (FEW + PARTITIONS) * COMMITS * ROWS * ROW_BYTES
    at_most(f"bytes written ÷ bytes put, {PARTITIONS} stores", (written() - before) / put, 1.5)
    of_few, of_many = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(f"  a row costs {of_few:.1f} µs in {FEW} stores and {of_many:.1f} µs in {PARTITIONS}", flush=True)
    at_most(f"a round of commits per row, {PARTITIONS} stores ÷ {FEW}", of_many / of_few, 2)
    reading(root / "many", many, rnd)
    for store in few + many:
        store.close()


def reading(root: Path, stores: list[KeyValueStore], rnd: random.Random) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=follow, args=(root, theirs))
    process.start()
    figures = []
    for _ in range(ROUNDS):
        one_round(stores, rnd, LARGER_ROWS)
        ours.send(True)
        figures.append(ours.recv())
    ours.send(False)
    process.join()
    files, memory, _ = map(max, zip(*figures[: ROUNDS // 2], strict=True))
    last_files, last_memory, _ = map(max, zip(*figures[ROUNDS // 2 :], strict=True))
    took = statistics.median(times for _, _, times in figures) * 1000
    print(
        f"  {PARTITIONS} secondaries: {last_files} files, {last_memory / 1e6:.0f} MB, catching up {took:.0f} ms",
        flush=True,
    )
    at_most(f"descriptors of {PARTITIONS} secondaries, later of {ROUNDS} rounds ÷ before", last_files / files, 1.1)
    at_most("their memory, the same", last_memory / memory, 1.1)


def main() -> None:
    allow_many()
    with tempfile.TemporaryDirectory() as directory:
        owner(Path(directory), random.Random(1))


if __name__ == "__main__":
    main()
