"""Programs that tests run in processes of their own: a writer that may be killed, and a reader that follows.

Invariant: after commit n the keys k00 … k19 all hold the number of the newest commit with records, `data`; the
Position says input-0 = n and input-1 = data. Some commits hold no records.
"""

import random
import struct
import sys
import time
from pathlib import Path

from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    Position,
    RetryLaterError,
    SecondaryReader,
    StoreContext,
    TopicPartition,
)
from stateline_store.rocksdb.options import Tuning
from support.rocksdb import database_of

KEYS = [b"k%02d" % i for i in range(20)]
COMMIT, DATA = TopicPartition("input", 0), TopicPartition("input", 1)
CHANGELOG = TopicPartition("changelog", 0)
TESTS = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "store.store_processes")
"""How these programs are run, in the directory `TESTS`."""
SMALL = Tuning(write_buffer_bytes=128 * 1024, level_base_bytes=512 * 1024)  # a flush every 100 commits or so


def open_store(task: Path) -> KeyValueStore:
    """The store under test, with small memtables."""
    store = KeyValueStore("s", tuning=SMALL)
    store.init(StoreContext("0_0", task))
    return store


def write_commit(store: KeyValueStore, n: int, data: int, rnd: random.Random) -> int:
    """Commit n; returns the newest commit with records."""
    if rnd.random() < 0.5:
        data = n
        filler = rnd.randbytes(rnd.choice((1, 100, 1000)))
        store.put_all((key, struct.pack(">Q", n) + filler) for key in KEYS)
    store.commit({CHANGELOG: n}, position=Position.of({COMMIT: n, DATA: data}))
    return data


def agrees(rows: dict[bytes, bytes], position: Position) -> bool:
    """Whether rows and Position are of one commit."""
    data = position.get(*DATA) or 0
    expected = dict.fromkeys(KEYS, data) if data else {}
    return {key: struct.unpack_from(">Q", value)[0] for key, value in rows.items()} == expected


def write_forever(task: Path, seed: int) -> None:
    """Commit on and on, printing each number once it is committed."""
    store = open_store(task)
    rnd = random.Random(seed)
    position = store.position(IsolationLevel.READ_COMMITTED)
    n, data = position.get(*COMMIT) or 0, position.get(*DATA) or 0
    while True:
        n += 1
        data = write_commit(store, n, data, rnd)
        sys.stdout.write(f"{n}\n")
        sys.stdout.flush()


def write_everything(task: Path, seed: int, commits: int) -> None:
    """Commit with flushes, compactions, reopenings and one wipe in between."""
    store = open_store(task)
    context = StoreContext("0_0", task)
    rnd = random.Random(seed)
    n = data = 0
    while n < commits:
        n += 1
        data = write_commit(store, n, data, rnd)
        chance = rnd.random()
        if chance < 0.01:
            database_of(store).compact_range(None, None) if chance < 0.003 else database_of(store).flush()
        elif chance < 0.013:
            store.close()
            store.init(context)
        elif chance < 0.3:
            time.sleep(0.001)  # lets the reader fall behind by different amounts
        if n == commits // 2:
            store.close()
            store.wipe()
            store.init(context)
            data = 0
    store.close()


def follow(task: Path, scratch: Path, seed: int, until: int) -> None:
    """Follow the writer to commit `until`; prints how often data moved. Exits with an error at a wrong answer."""
    rnd = random.Random(seed)
    reader = None
    while reader is None:
        try:
            reader = SecondaryReader(task / "rocksdb" / "s", task / "s.notice", scratch)
        except RetryLaterError:
            time.sleep(0.001)
    last, generation, moved, position = -1, 0, 0, Position()
    while (position.get(*COMMIT) or 0) < until:
        announced = (reader.notice.generation, reader.notice.commit_number)
        try:
            reader.refresh()
        except RetryLaterError:
            continue
        position, number = reader.position, reader.commit_number
        with reader.range(None, None) as scan:
            scanned = dict(scan)
        got = {key: value for key in KEYS if (value := reader.get(key)) is not None}
        assert agrees(scanned, position), f"a scan disagrees with {position} at commit {number}"
        assert agrees(got, position), f"gets disagree with {position} at commit {number}"
        if announced[0] == reader.notice.generation:
            assert number >= announced[1], f"{number} is behind the announced {announced[1]}"
            assert generation != announced[0] or number >= last, f"{last} went back to {number}"
        generation = announced[0]
        moved, last = moved + (number != last), number
        if rnd.random() < 0.5:
            time.sleep(rnd.random() * rnd.choice((0.001, 0.01, 0.1)))
    reader.close()
    sys.stdout.write(f"{moved}\n")


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    if program == "forever":
        write_forever(Path(arguments[0]), int(arguments[1]))
    elif program == "everything":
        write_everything(Path(arguments[0]), int(arguments[1]), int(arguments[2]))
    else:
        follow(Path(arguments[0]), Path(arguments[1]), int(arguments[2]), int(arguments[3]))
