"""What open cursors may keep: how many bytes in memory, and how many on disk."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateline.query.open_scan import OpenScan
from stateline.server.state import cursors
from stateline.server.state.cursors import Cursor, Cursors
from support.http.paging import EndlessScan, entries, follow, good, pages, refused
from support.processes.open_files import kept_tables
from support.processes.query_server import PARTITIONS, OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.rocksdb import database_of

EXPIRED = (410, "CURSOR_EXPIRED")
VALUE_BYTES = 10_000
MOST = 50_000  # the files of one commit of the tables have more, those of small stores less


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[OwningWorker]:
    worker = OwningWorker(tmp_path)
    yield worker
    worker.close()


def rewrite(worker: OwningWorker, seed: str) -> None:
    """Write the rows of the tables anew, with values that cannot be compressed to nothing."""
    chance = random.Random(seed)
    for n in range(60):
        worker.put(f"{n:02}", chance.randbytes(VALUE_BYTES // 2).hex())
    worker.commit()


def flush(worker: OwningWorker, *, compact: bool) -> None:
    """Write files; what they replace is deleted when `compact`."""
    for store in worker.stores.values():
        if store.persistent:
            worker.run(database_of(store).flush)
            if compact:
                worker.run(partial(database_of(store).compact_range, None, None))


def begun(here: Here, store: str = "aircraft", **params: Any) -> Any:
    given: dict[str, Any] = {"limit": 1} | params
    return good(here.client.get(f"/v1/stores/{store}/range", params=given))


def deleted_and_open(worker: OwningWorker) -> int:
    """Bytes of the worker's tables that were deleted and are open here."""
    return sum(kept_tables(worker.application).values())


def replaced(worker: OwningWorker) -> None:
    """All files of the tables are others now, and those that were there are kept by who reads them."""

    def again() -> bool:
        for seed in "bcd":
            rewrite(worker, seed)
            flush(worker, compact=False)
        flush(worker, compact=True)
        return deleted_and_open(worker) > MOST

    wait_until(again)  # RocksDB deletes them when its own threads have let go of them


def test_cursors_that_keep_too_much_on_disk_end_and_the_first_that_was_opened_before_others(
    tmp_path: Path, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_LOOK_INTERVAL_S", math.inf)
    rewrite(worker, "a")
    flush(worker, compact=False)
    with served_here(tmp_path, f"server.cursors.max.bytes={MOST}", "server.cursor.ttl.ms=600000") as here:
        here.serving.cursors.looked_at_s = time.monotonic()  # it has not looked before, and would at once
        old = begun(here)
        replaced(worker)
        rewrite(worker, "e")  # what is opened now is of files that are there
        new = begun(here)
        assert deleted_and_open(worker) > MOST
        used = good(follow(here.client, old["cursor"]))  # most recently, and yet it is the one that keeps files
        assert cursors.held_on_disk(worker.application) == deleted_and_open(worker)
        here.serving.cursors.looked_at_s = -math.inf
        monkeypatch.setattr(cursors, "_LOOK_INTERVAL_S", 0.0)
        wait_until(lambda: len(here.serving.cursors) == 1)
        assert refused(follow(here.client, used["cursor"])) == EXPIRED
        wait_until(lambda: deleted_and_open(worker) <= MOST)
        assert len(entries(pages(here.client, new, limit=100))) == 60


def test_files_that_an_idle_reader_keeps_end_no_cursor(
    tmp_path: Path, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_LOOK_INTERVAL_S", math.inf)
    for p in range(PARTITIONS):
        worker.run(partial(worker.stores["blobs", p].put_all, [(b"%d" % n, b"v") for n in range(9)]))
    rewrite(worker, "a")
    flush(worker, compact=False)
    with served_here(tmp_path, f"server.cursors.max.bytes={MOST}", "server.cursor.ttl.ms=600000") as here:
        here.serving.cursors.looked_at_s = time.monotonic()  # it has not looked before, and would at once
        good(here.client.get("/v1/stores/aircraft/count"))
        cursor = begun(here, "blobs")["cursor"]
        replaced(worker)  # and nobody asks
        assert deleted_and_open(worker) > MOST
        monkeypatch.setattr(cursors, "_LOOK_INTERVAL_S", 0.0)
        here.serving.cursors.looked_at_s = -math.inf
        wait_until(lambda: deleted_and_open(worker) <= MOST or len(here.serving.cursors) == 0)
        assert (
            len(entries(pages(here.client, good(follow(here.client, cursor, "blobs")), "blobs", limit=100)))
            == 9 * 3 - 1
        )


def test_cursors_of_who_has_fewer_outlive_what_others_keep_on_disk() -> None:
    """The oldest is of somebody who has two; another has four."""

    kept = Cursors(bytes(32), ttl_s=60, most=9, most_bytes=0, on_disk=lambda: int(len(kept) > 4))

    async def run() -> list[tuple[str, float]]:
        for at, caller in enumerate(["few", "many", "many", "few", "many", "many"]):
            cursor: Any = Cursor(None, None, {}, EndlessScan(), 1, False, caller, opened_at_s=at)  # type: ignore[arg-type]
            await kept.begin(cursor)
        for _ in range(9):
            kept.expire()
        return [(each.caller, each.opened_at_s) for each in kept.open.values()]

    assert asyncio.run(run()) == [("few", 0), ("few", 3), ("many", 4), ("many", 5)]


def test_what_is_kept_on_disk_for_an_instant_ends_no_cursor() -> None:
    """Two looks in a row find too much only at the end, of those at which there were cursors."""
    found = [0]
    kept = Cursors(bytes(32), ttl_s=60, most=9, most_bytes=5, on_disk=lambda: found[-1])

    async def run() -> list[int]:
        open_after = []
        for on_disk, opened in [(9, 2), (0, 0), (9, 0), (9, 0), (9, 0), (0, 0), (9, 0), (None, 0), (9, 1), (9, 0)]:
            for _ in range(opened):
                cursor: Any = Cursor(None, None, {}, EndlessScan(), 1, False, "caller")  # type: ignore[arg-type]
                await kept.begin(cursor)
            found.append(on_disk or 0)
            if on_disk is None:
                kept.close()  # read to their ends
            kept.looked_at_s = -math.inf
            kept.expire()
            open_after.append(len(kept))
        return open_after

    assert asyncio.run(run()) == [2, 2, 2, 1, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_cursors_that_keep_too_much_in_memory_end_and_the_longest_unused_before_others(
    tmp_path: Path, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    rewrite(worker, "a")
    with served_here(tmp_path) as here:
        asked: dict[str, Any] = {"isolation_level": level, "limit": 10}
        first = begun(here, **asked)
        each = here.serving.cursors.held_bytes
        held = sum(len(cursor.scan.left) + sum(len(p.entries) for p in cursor.scan.parts)
                   for cursor in here.serving.cursors.open.values())  # fmt: skip
        assert held > 0, "each partition was asked for a whole page"
        assert each > (held + 10) * VALUE_BYTES, "what was given last counts: it may be asked for again"
        ahead = sum(part.rest.held_bytes for cursor in here.serving.cursors.open.values()
                    for part in cursor.scan.parts if isinstance(part.rest, OpenScan))  # fmt: skip
        assert each < (held + 10) * VALUE_BYTES * 1.1 + ahead
        monkeypatch.setattr(cursors, "MAX_HELD_BYTES", 3 * each)
        others = [begun(here, **asked) for _ in range(2)]
        first = good(follow(here.client, first["cursor"]))
        newest = begun(here, **asked)
        assert here.serving.cursors.held_bytes <= 3 * each
        assert refused(follow(here.client, others[0]["cursor"])) == EXPIRED
        for page in (first, others[1], newest):
            good(follow(here.client, page["cursor"]))


def test_one_cursor_may_go_beyond_alone(tmp_path: Path, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(worker, "a")
    monkeypatch.setattr(cursors, "MAX_HELD_BYTES", 1)
    with served_here(tmp_path) as here:
        other = begun(here, limit=7)
        assert len(entries(pages(here.client, begun(here, limit=7)))) == 60
        assert refused(follow(here.client, other["cursor"])) == EXPIRED
        here.serving.cursors.close()
        assert here.serving.cursors.held_bytes == 0
