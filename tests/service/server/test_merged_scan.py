"""Entries of several partitions in one order, held against sorting all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.query.kinds import descends
from stateline.query.values import CopyStatus, Entry, PartitionAnswer, QueryRows, Rest, ScanQuery
from stateline.server.state import merged_scan
from stateline.server.state.merged_scan import MergedScan
from stateline_store import (
    CursorExpiredError,
    MultiVersionedKeyQuery,
    Order,
    Position,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    VersionedRangeQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
)
from stateline_store.rows.windowed_keys import window_key

COPY = CopyStatus("active", 0, 0, 0)
INTERVAL_MS = 100
Chunks = list[list[Entry]]


class Partition:
    """A partition whose entries come chunk by chunk; notes what it was asked for and whether it was let go of."""

    def __init__(self, chunks: Chunks, interval_ms: int = INTERVAL_MS) -> None:
        self.chunks = [*chunks]
        self.interval_ms = interval_ms
        self.limits: list[int] = []
        self.open = 0
        self.before_more: Callable[[], None] = lambda: None

    def answer(self) -> PartitionAnswer:
        return PartitionAnswer(self._rows(), Position(), COPY)

    async def more(self, limit: int) -> QueryRows:
        self.before_more()
        self.limits.append(limit)
        await asyncio.sleep(0)
        return self._rows()

    def _rows(self) -> QueryRows:
        entries = self.chunks.pop(0) if self.chunks else []
        rest: Rest | None = _Rest(self) if self.chunks else None
        return QueryRows(entries, interval_ms=self.interval_ms, rest=rest)


class _Rest:
    """Each rest is good for one reading on, as a worker's is."""

    def __init__(self, partition: Partition) -> None:
        self._partition: Partition | None = partition
        partition.open += 1

    async def more(self, limit: int) -> QueryRows:
        partition = self._partition
        assert partition is not None, "this rest was used or closed"
        self.close()
        return await partition.more(limit)

    def close(self) -> None:
        if self._partition is not None:
            self._partition.open -= 1
        self._partition = None


def merged(query: ScanQuery, partitions: Sequence[Partition], limit: int = 9) -> MergedScan:
    return MergedScan(query, {n: partition.answer() for n, partition in enumerate(partitions)}, limit)


def goes_down(query: ScanQuery) -> bool:
    return descends(query)


async def batches(scan: MergedScan, most_bytes: int | None = None) -> list[list[Entry]]:
    found = []
    while batch := await scan.page(7, most_bytes):
        found.append(batch)
    return found


def flat(lists: Sequence[Sequence[Entry]]) -> list[Entry]:
    return [entry for entries in lists for entry in entries]


# Few values, so that keys and times come up again in other partitions, and twice in one.
keys, times = st.binary(max_size=2), st.integers(0, 350)
ORDERS: dict[type[Any], tuple[st.SearchStrategy[Entry], Callable[[Any], Any]]] = {
    RangeQuery: (st.tuples(keys, keys), itemgetter(0)),
    WindowRangeQuery: (
        st.tuples(st.builds(lambda k, at: Windowed(k, at, at + 50), keys, times), keys),
        lambda e: (e[0].start_ms // INTERVAL_MS, window_key(e[0].key, e[0].start_ms)),
    ),
    SessionRangeQuery: (
        st.tuples(st.builds(lambda k, at, gap: Windowed(k, at, at + gap), keys, times, st.integers(0, 60)), keys),
        lambda e: (e[0].key, e[0].end_ms, e[0].start_ms),
    ),
    VersionedRangeQuery: (
        st.tuples(keys, st.builds(VersionedRecord, keys, times, st.none() | times)),
        itemgetter(0),
    ),
    SessionKeyQuery: (
        st.tuples(st.builds(lambda at, gap: Windowed(b"k", at, at + gap), times, st.integers(0, 60)), keys),
        lambda e: (e[0].end_ms, e[0].start_ms),
    ),
    MultiVersionedKeyQuery: (
        st.tuples(st.just(b"k"), st.builds(VersionedRecord, keys, times, st.none() | times)),
        lambda e: e[1].timestamp,
    ),
}


@st.composite
def scenes(draw: st.DrawFn) -> tuple[ScanQuery, list[Chunks], Callable[[Any], Any]]:
    """A query, what its partitions have, in order and in chunks (some of them empty), and what orders it."""
    kind = draw(st.sampled_from(sorted(ORDERS, key=lambda each: each.__name__)))
    entry, order = ORDERS[kind]
    down = draw(st.booleans())
    of_key = {"key": b"k"} if kind in (SessionKeyQuery, MultiVersionedKeyQuery) else {}
    query: ScanQuery = kind(order=Order.DESCENDING if down else Order.ASCENDING, **of_key)
    partitions = []
    for entries in draw(st.lists(st.lists(entry, max_size=12), max_size=4)):
        ordered = sorted(entries, key=order, reverse=down)
        cuts = sorted(draw(st.lists(st.integers(0, len(ordered)), max_size=5)))
        partitions.append([ordered[a:b] for a, b in pairwise([0, *cuts, len(ordered)])])
    return query, partitions, order


@given(scenes(), st.none() | st.integers(1, 30) | st.just(10**6))
def test_batches_are_all_entries_in_order(
    scene: tuple[ScanQuery, list[Chunks], Callable[[Any], Any]], most_bytes: int | None
) -> None:
    query, chunks, order = scene
    partitions = [Partition(each) for each in chunks]
    found = flat(asyncio.run(batches(merged(query, partitions), most_bytes)))
    everything = flat([flat(each) for each in chunks])
    assert [order(e) for e in found] == sorted(map(order, everything), reverse=goes_down(query))
    assert sorted(map(repr, found)) == sorted(map(repr, everything)), "each as often as it is there"
    assert [partition.open for partition in partitions] == [0] * len(partitions)


@given(scenes(), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_pages_of_any_limits_are_the_batches(
    scene: tuple[ScanQuery, list[Chunks], Callable[[Any], Any]], limits: list[int]
) -> None:
    query, chunks, _ = scene

    async def pages() -> list[list[Entry]]:
        scan, found = merged(query, [Partition(each) for each in chunks]), []
        for n in range(10_000):
            limit = limits[n % len(limits)]
            page = await scan.page(limit)
            found.append(page)
            more = await scan.has_more()
            assert len(page) == limit if more else len(page) <= limit
            if not more:
                assert await scan.page(1) == []
                break
        return found

    whole = asyncio.run(batches(merged(query, [Partition(each) for each in chunks])))
    assert flat(asyncio.run(pages())) == flat(whole)


@given(scenes())
def test_equal_entries_are_in_the_order_of_their_partitions_when_nothing_is_left_out(
    scene: tuple[ScanQuery, list[Chunks], Callable[[Any], Any]],
) -> None:
    query, chunks, order = scene
    whole = [[flat(each)] for each in chunks]
    found = flat(asyncio.run(batches(merged(query, [Partition(each) for each in whole]))))
    assert found == sorted(flat([flat(each) for each in chunks]), key=order, reverse=goes_down(query))


def windows(*starts: int) -> list[Entry]:
    return [(Windowed(b"k", start, start + 10), b"") for start in starts]


@pytest.mark.parametrize("order", [Order.ASCENDING, Order.DESCENDING])
def test_partitions_whose_segments_differ_come_one_after_the_other(order: Order) -> None:
    chunks: list[Chunks] = [[windows(1), windows(250)], [windows(2, 3), windows(300)], [[], windows(4)]]
    partitions = [Partition(each, interval_ms) for each, interval_ms in zip(chunks, (100, 200, 100), strict=True)]
    scan = merged(WindowRangeQuery(order=order), partitions)
    assert flat(asyncio.run(batches(scan))) == windows(1, 250, 2, 3, 300, 4)


def test_windows_of_one_key_have_one_order_whatever_the_segments() -> None:
    partitions = [Partition([windows(1, 250)], 100), Partition([windows(2, 3)], 200)]
    assert flat(asyncio.run(batches(merged(WindowKeyQuery(b"k"), partitions)))) == windows(1, 2, 3, 250)


def test_no_partition_is_read_on_before_its_entries_are_wanted() -> None:
    partitions = [Partition([[(b"a", b"")], [(b"x", b"")]]), Partition([[(b"b", b""), (b"c", b"")], [(b"d", b"")]])]
    scan = merged(RangeQuery(), partitions, 5)
    assert asyncio.run(scan.page(1)) == [(b"a", b"")]
    assert [partition.limits for partition in partitions] == [[], []]
    assert asyncio.run(scan.page(1)) == [(b"b", b"")]
    assert [partition.limits for partition in partitions] == [[5], []]


def test_a_stream_reads_on_while_it_has_entries_so_that_it_orders_many_at_once() -> None:
    letters: list[Entry] = [(bytes([n]), b"") for n in range(40)]
    chunks: list[Chunks] = [[letters[at : at + 8] for at in range(start, 40, 16)] for start in (0, 8)]
    scan = merged(RangeQuery(), [Partition(each) for each in chunks])
    pages = asyncio.run(batches(scan, 10**6))
    assert flat(pages) == letters
    assert all(len(page) == 7 for page in pages[:-1])


def test_a_larger_page_reads_more_at_a_time() -> None:
    letters: list[Entry] = [(bytes([n]), b"") for n in range(6)]
    partition = Partition([[each] for each in letters])
    scan = merged(RangeQuery(), [partition], 1)
    assert asyncio.run(scan.page(1)) == letters[:1]
    assert asyncio.run(scan.page(4)) == letters[1:5]
    assert partition.limits == [4] * 4


def test_a_page_ends_when_it_has_its_share_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_scan, "MAX_RESULT_BYTES", 100)
    rows: list[list[Entry]] = [[(bytes([p, n]), b"x" * 30) for n in range(10)] for p in range(3)]
    scan = merged(RangeQuery(), [Partition([each]) for each in rows], 99)
    pages = []
    while page := asyncio.run(scan.page(99)):
        pages.append(page)
    assert {len(page) for page in pages[:-1]} == {4}, "the one that goes beyond is the last of a page"
    assert flat(pages) == sorted(flat(rows))


def test_closing_lets_go_of_every_rest() -> None:
    partitions = [Partition([[(b"a", b"")], [(b"b", b"")], [(b"c", b"")]]) for _ in range(3)]
    scan = merged(RangeQuery(), partitions)
    asyncio.run(scan.page(1))
    scan.close()
    scan.close()
    assert [partition.open for partition in partitions] == [0, 0, 0]


def test_what_was_closed_never_looks_like_the_end() -> None:
    scan = merged(RangeQuery(), [Partition([[(b"a", b"")], [(b"b", b"")]])])
    assert asyncio.run(scan.page(1)) == [(b"a", b"")]
    scan.close()
    for read in (scan.has_more, lambda: scan.page(1)):
        with pytest.raises(CursorExpiredError):
            asyncio.run(read())


def test_what_is_closed_while_it_reads_never_looks_whole() -> None:
    """The entries of the other partitions are gone by then."""
    partitions = [Partition([[(b"a", b"")], [(b"b", b"")], [(b"c", b"")]]) for _ in range(2)]
    scan = merged(RangeQuery(), partitions)
    partitions[1].before_more = scan.close
    with pytest.raises(CursorExpiredError):
        asyncio.run(scan.page(9))
    assert [partition.open for partition in partitions] == [0, 0]


def test_equal_keys_come_from_every_partition_and_together() -> None:
    chunks: Chunks = [[(b"a", b"1"), (b"b", b"1")], [(b"c", b"1")]]
    found = flat(asyncio.run(batches(merged(RangeQuery(), [Partition([*chunks]) for _ in range(3)]))))
    together = [(key, len(list(group))) for key, group in groupby(found, itemgetter(0))]
    assert together == [
        (b"a", 3),
        (b"b", 3),
        (b"c", 3),
    ]
