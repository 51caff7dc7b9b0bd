"""Opening a store with 10 million records: under 1 s. Rolling back 64 MiB of staged records: under 50 ms."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from figures import at_most
from topic import key_of, value

from stateline_store import KeyValueStore, StoreContext

ROWS = 10_000_000
BATCH = 200_000
ROUNDS = 5
STAGED_BYTES = 64 * 1024 * 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        context = StoreContext("0_0", Path(directory), None)
        store = KeyValueStore("rows")
        store.init(context)
        values = [value() for _ in range(1000)]
        started = time.perf_counter()
        for first in range(0, ROWS, BATCH):
            store.put_all((key_of(number), values[number % 1000]) for number in range(first, first + BATCH))
            store.commit({})
        print(f"  {ROWS:,} records written in {time.perf_counter() - started:.0f} s", flush=True)
        store.close()

        opened, rolled_back = [], []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            store.init(context)
            assert store.get(key_of(ROWS // 2)) is not None
            opened.append(time.perf_counter() - started)
            number = 0
            while store.approximate_num_uncommitted_bytes < STAGED_BYTES:
                store.put(key_of(number), values[number % 1000])
                number += 1
            started = time.perf_counter()
            store.rollback()
            rolled_back.append((time.perf_counter() - started) * 1000)
            store.close()
        at_most("opening a store with 10 million records", statistics.median(opened), 1.0, " s")
        at_most("rolling back 64 MiB staged", statistics.median(rolled_back), 50, " ms")


if __name__ == "__main__":
    main()
