"""Transactional puts with commits every 100 ms ÷ direct RocksDB puts without WAL: at least 1.3.

Both write the same records (12 + 100 bytes, keys at random), put by put, to a database with the same options. The
transactional side counts every commit in, the last one too, and keeps the WAL on; that is the point: it may
buffer, sort and write in batches.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figures import at_least
from rocksdict import Rdict, WriteOptions
from topic import key_of, value

from stateline_store import KeyValueStore, StoreContext, TimestampedKeyValueStore
from stateline_store.rocksdb.options import DEFAULT_TUNING, primary_options

PUTS = 1_000_000
KEYS = 200_000
ROUNDS = 5
COMMIT_INTERVAL_S = 0.1
SLICE = 500  # records between two looks at the clock; the worker's slices are of this order

Rows = list[tuple[bytes, bytes]]
Stager = Callable[[Rows], None]


def rows() -> Rows:
    values = [value() for _ in range(1000)]
    chosen = random.Random(1)
    return [(key_of(chosen.randrange(KEYS)), values[i % 1000]) for i in range(PUTS)]


def direct(records: Rows, directory: Path) -> float:
    database = Rdict(str(directory), primary_options(DEFAULT_TUNING))
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stub says
    database.set_write_options(options)
    put = database.put
    started = time.perf_counter()
    for key, stored in records:
        put(key, stored)
    seconds = time.perf_counter() - started
    database.close()
    return len(records) / seconds


def transactional(records: Rows, store: KeyValueStore, stage: Stager) -> float:
    started = committed = time.perf_counter()
    for at in range(0, len(records), SLICE):
        stage(records[at : at + SLICE])
        if time.perf_counter() - committed >= COMMIT_INTERVAL_S:
            store.commit({})
            committed = time.perf_counter()
    store.commit({})
    return len(records) / (time.perf_counter() - started)


def one_by_one(records: Rows, directory: Path) -> float:
    store = KeyValueStore("puts")
    store.init(StoreContext("0_0", directory, None))

    def stage(slice_: Rows) -> None:
        put = store.put
        for key, stored in slice_:
            put(key, stored)

    rate = transactional(records, store, stage)
    store.close()
    return rate


def together(records: Rows, directory: Path) -> float:
    """As the worker stages a table's records."""
    store = TimestampedKeyValueStore("puts")
    store.init(StoreContext("0_0", directory, None))
    rate = transactional(records, store, lambda s: store.put_all_with_timestamp([(k, v, 1_000) for k, v in s]))
    store.close()
    return rate


def main() -> None:
    records = rows()
    found: dict[str, list[float]] = {"direct": [], "put": [], "put_all": []}
    for _ in range(ROUNDS):
        for name, measure in (("direct", direct), ("put", one_by_one), ("put_all", together)):
            with tempfile.TemporaryDirectory() as directory:
                found[name].append(measure(records, Path(directory)))
        print("  " + ", ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in found.items()), flush=True)
    ratio = {n: statistics.median(a / b for a, b in zip(r, found["direct"], strict=True)) for n, r in found.items()}
    print(f"  staged together, as a table's records are: {ratio['put_all']:.2f} of direct puts")
    at_least("transactional puts ÷ direct puts without WAL", ratio["put"], 1.3)


if __name__ == "__main__":
    main()
