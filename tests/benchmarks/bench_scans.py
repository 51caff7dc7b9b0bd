"""Reads of the store library against rocksdict itself.

A range scan gives at least 0.7 of the rows per second of a raw iteration, also with 10,000 staged records merged in. A
committed read from a secondary, with nothing new, takes at most 1.3 of a read from the primary.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from figures import at_least, at_most
from rocksdict import Rdict
from topic import key_of, value

from stateline_store import IsolationLevel, KeyValueStore, Reader, SecondaryReader, StoreContext

ROWS = 500_000
STAGED = 10_000
GETS = 100_000
ROUNDS = 7


def rows_per_second(rows: Iterable[tuple[object, object]]) -> float:
    started = time.perf_counter()
    count = 0
    for _key, _value in rows:
        count += 1
    assert count == ROWS
    return count / (time.perf_counter() - started)


def ratio(store: KeyValueStore, raw: Rdict) -> float:
    """Median of scan ÷ raw iteration, one after the other."""
    return statistics.median(
        rows_per_second(store.range(None, None)) / rows_per_second(raw.items()) for _ in range(ROUNDS)
    )


def seconds(get: Callable[[bytes], object], keys: list[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        get(key)
    return time.perf_counter() - started


def asked(reader: SecondaryReader) -> Callable[[bytes], bytes | None]:
    """A read as a server makes it: look whether there is anything new, then read."""

    def get(key: bytes) -> bytes | None:
        if reader.is_behind:
            reader.refresh()
        return reader.get(key)

    return get


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        store = KeyValueStore("rows")
        store.init(StoreContext("0_0", root, None))
        store.put_all((key_of(number), value()) for number in range(ROWS))
        store.commit({})
        raw: Rdict = store._open()._db  # type: ignore[attr-defined]  # the very database, for a fair comparison
        at_least("a range scan ÷ raw iteration", ratio(store, raw), 0.7)
        store.put_all((key_of(number), value()) for number in random.Random(3).sample(range(ROWS), STAGED))
        at_least(f"a range scan with {STAGED:,} staged records ÷ raw iteration", ratio(store, raw), 0.7)
        store.rollback()

        keys = random.Random(4).choices([key_of(number) for number in range(ROWS)], k=GETS)
        primary: Reader = store.reader(IsolationLevel.READ_COMMITTED)
        reader = SecondaryReader(root / "rocksdb" / "rows", root / "rows.notice", root / "scratch")
        found = [seconds(asked(reader), keys) / seconds(primary.get, keys) for _ in range(ROUNDS)]
        at_most("a read from a secondary with nothing new ÷ a read from the primary", statistics.median(found), 1.3)
        reader.close()
        store.close()


if __name__ == "__main__":
    main()
