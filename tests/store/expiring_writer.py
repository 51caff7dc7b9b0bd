"""A program that tests kill: it commits puts of a store whose entries expire, some of them by the clock."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from stateline_store import ExpiringKeyValueStore, StoreContext, TopicPartition
from stateline_store.rocksdb.options import Tuning

TTL_MS, CHANGELOG = 1_000, TopicPartition("changelog", 0)
SMALL = Tuning(write_buffer_bytes=64 * 1024)  # a flush every few dozen commits


def opened(task: Path) -> ExpiringKeyValueStore:
    """The store that is written."""
    store = ExpiringKeyValueStore("s", ttl_ms=TTL_MS, tuning=SMALL)
    store.init(StoreContext("0_0", task))
    return store


def puts(number: int) -> dict[bytes, int]:
    """The keys that a commit puts, with their timestamps."""
    draw = random.Random(number)
    return {b"%d" % draw.randrange(500): number * 100 + 700 - draw.choice([0, 0, 50, 700]) for _ in range(40)}


def clock_ms(number: int) -> int:
    """The clock when a commit is made: ahead of stream time for every third one."""
    return number * 100 + 700 + (300 if number % 3 == 0 else 0)


def there_after(number: int) -> dict[bytes, int]:
    """The keys that are there after a commit, with their timestamps."""
    found: dict[bytes, int] = {}
    stream_time = -1
    for each in range(1, number + 1):
        found |= puts(each)
        stream_time = max(stream_time, *puts(each).values())
        found = {key: at for key, at in found.items() if at >= max(stream_time, clock_ms(each)) - TTL_MS}
    return found


def write(store: ExpiringKeyValueStore, number: int) -> None:
    """Make this commit."""
    store.put_all_with_timestamp([(key, bytes(200), at) for key, at in puts(number).items()])
    store.expire(clock_ms(number))
    store.commit({CHANGELOG: number})


if __name__ == "__main__":
    written = opened(Path(sys.argv[1]))
    at = written.committed_offset(CHANGELOG) or 0
    while True:
        at += 1
        write(written, at)
        sys.stdout.write(f"{at}\n")
        sys.stdout.flush()
