"""Window and session puts with commits every 100 ms ÷ direct RocksDB puts of the same keys without WAL: at least 1.0.

Both write the same rows, put by put, to a database with the same options; the direct side is given the stored keys
ready-made, so that it does nothing but put. Beside them: a get of a versioned store takes at most twice a plain get.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_transactions import COMMIT_INTERVAL_S, SLICE, direct
from figures import at_least, at_most
from topic import key_of, value

from stateline_store import (
    KeyValueStore,
    SessionStore,
    StoreContext,
    TransactionalStore,
    VersionedStore,
    Windowed,
    WindowStore,
)

PUTS = 500_000
KEYS = 20_000
WINDOWS = 10
WINDOW_MS = 60_000
RETENTION_MS = WINDOWS * WINDOW_MS * 2
ROUNDS = 5
GETS = 100_000

Events = list[tuple[bytes, int, bytes]]  # key, window start or session end in ms, value


def events() -> Events:
    """Keys and windows at random, the windows moving on slowly, as a stream's do."""
    values = [value() for _ in range(1000)]
    chosen = random.Random(1)
    return [(key_of(chosen.randrange(KEYS)), (i * WINDOWS // PUTS) * WINDOW_MS, values[i % 1000]) for i in range(PUTS)]


def measured(store: TransactionalStore, put_all: Callable[[Events], None], records: Events) -> float:
    """Puts per second, the commits counted in."""
    started = committed = time.perf_counter()
    for at in range(0, len(records), SLICE):
        put_all(records[at : at + SLICE])
        if time.perf_counter() - committed >= COMMIT_INTERVAL_S:
            store.commit({})
            committed = time.perf_counter()
    store.commit({})
    return len(records) / (time.perf_counter() - started)


def windows(records: Events, directory: Path) -> float:
    store = WindowStore("puts", retention_ms=RETENTION_MS, window_size_ms=WINDOW_MS)
    store.init(StoreContext("0_0", directory, None))

    def put_all(part: Events) -> None:
        put = store.put
        for key, start_ms, stored in part:
            put(key, stored, start_ms)

    rate = measured(store, put_all, records)
    store.close()
    return rate


def sessions(records: Events, directory: Path) -> float:
    store = SessionStore("puts", retention_ms=RETENTION_MS)
    store.init(StoreContext("0_0", directory, None))

    def put_all(part: Events) -> None:
        put = store.put
        for key, end_ms, stored in part:
            put(Windowed(key, end_ms, end_ms), stored)

    rate = measured(store, put_all, records)
    store.close()
    return rate


def stored_rows(records: Events, kind: Callable[[Events, Path], float]) -> list[tuple[bytes, bytes]]:
    """The rows that a store of this kind writes for these events, in their order."""
    found: list[tuple[bytes, bytes]] = []
    store: TransactionalStore
    if kind is windows:
        window = store = WindowStore("rows", retention_ms=RETENTION_MS, window_size_ms=WINDOW_MS, persistent=False)
    else:
        session = store = SessionStore("rows", retention_ms=RETENTION_MS, persistent=False)
    with tempfile.TemporaryDirectory() as directory:
        store.init(StoreContext("0_0", Path(directory), None))
        for key, at_ms, stored in records:
            if kind is windows:
                window.put(key, stored, at_ms)
            else:
                session.put(Windowed(key, at_ms, at_ms), stored)
            found += [(row, stored) for row, _ in store.staged()]
            store.rollback()
        store.close()
    return found


def versioned_get_over_plain_get() -> float:
    """Median of the ratio of the times."""
    with tempfile.TemporaryDirectory() as directory:
        plain = KeyValueStore("plain")
        versioned = VersionedStore("versioned", history_retention_ms=3_600_000)
        for store in (plain, versioned):
            store.init(StoreContext("0_0", Path(directory), None))
        keys = [key_of(number) for number in range(100_000)]
        for key in keys:
            plain.put(key, value())
            for at_ms in (1_000, 2_000, 3_000):
                versioned.put(key, value(), at_ms)
        plain.commit({})
        versioned.commit({})
        sample = random.Random(2).choices(keys, k=GETS)
        ratios = [_seconds(versioned.get, sample) / _seconds(plain.get, sample) for _ in range(ROUNDS)]
        plain.close()
        versioned.close()
    return statistics.median(ratios)


def _seconds(get: Callable[[bytes], object], sample: list[bytes]) -> float:
    started = time.perf_counter()
    for key in sample:
        get(key)
    return time.perf_counter() - started


def main() -> None:
    records = events()
    for name, kind in (("window", windows), ("session", sessions)):
        rows = stored_rows(records, kind)
        ratios = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
                base, rate = direct(rows, Path(one)), kind(records, Path(other))
            ratios.append(rate / base)
            print(f"  {name}: direct {base:,.0f}/s, transactional {rate:,.0f}/s", flush=True)
        at_least(f"transactional {name} puts ÷ direct puts without WAL", statistics.median(ratios), 1.0)
    at_most("a versioned get ÷ a plain get", versioned_get_over_plain_get(), 2.0)


if __name__ == "__main__":
    main()
