"""Slices and polls fit their time and memory, and commits come before the byte limit is crossed."""

from hypothesis import given
from hypothesis import strategies as st

from stateline.log import Record
from stateline.processing.reading import size_of
from stateline.worker.loop.pace import (
    POLL_BYTES,
    POLL_S,
    SLICE_BYTES,
    SLICE_GROWTH_BYTES,
    SLICE_S,
    SlicePace,
)


def records(sizes: list[int]) -> list[Record]:
    return [Record("t", 0, n, 0, b"k", bytes(size)) for n, size in enumerate(sizes)]


def test_a_slow_slice_makes_the_next_one_shorter_and_a_fast_one_longer_by_a_factor_of_two_at_most() -> None:
    pace = SlicePace()
    first = pace.records
    pace.learn(first, 0, SLICE_S * 10, 0)
    assert pace.records == first // 2
    pace.learn(pace.records, 0, SLICE_S / 10, 0)
    assert pace.records == first


@given(st.lists(st.floats(min_value=0, max_value=10), max_size=50))
def test_a_slice_always_has_a_record_and_never_more_than_five_thousand(seconds: list[float]) -> None:
    pace = SlicePace()
    for each in seconds:
        pace.learn(pace.records, 1, each, 0)
        assert 1 <= pace.records <= 5_000
        assert 1 <= pace.poll_records <= 10_000


def test_a_poll_brings_what_can_be_worked_off_in_its_time_and_fits_its_memory() -> None:
    slow = SlicePace()
    for _ in range(10):
        slow.learn(slow.records, 100 * slow.records, slow.records * 0.1, 0)
    assert slow.poll_records * 0.1 <= max(POLL_S, 0.1) * 100
    assert slow.records == 1
    large = SlicePace()
    large.learn(4, 4 * 900_000, SLICE_S, 0)
    assert large.poll_records * 900_000 <= POLL_BYTES


@given(st.lists(st.integers(min_value=0, max_value=3 * SLICE_BYTES), min_size=1, max_size=40), st.integers(0, 39))
def test_a_slice_is_cut_at_its_size_but_always_has_a_record(sizes: list[int], at: int) -> None:
    given_records = records(sizes)
    at = min(at, len(sizes) - 1)
    slice_, size = SlicePace().cut(given_records, at)
    assert list(slice_) == given_records[at : at + len(slice_)]
    assert len(slice_) == 1 or size <= SLICE_BYTES
    assert size == size_of(slice_) >= sum(sizes[at : at + len(slice_)])


def test_a_tombstone_has_a_size_too() -> None:
    assert size_of([Record("t", 0, 0, 0, b"key", None), Record("t", 0, 1, 0, None, b"")]) > 0


def test_the_limit_counts_what_the_next_slice_is_likely_to_stage() -> None:
    pace = SlicePace()
    pace.learn(100, 100, SLICE_S, 400)
    assert not pace.would_cross(600, 0, 1_000)
    assert pace.would_cross(601, 0, 1_000)
    assert pace.would_cross(1, 1_000, 1_000)
    assert not pace.would_cross(10**9, 10**9, -1)
    assert not pace.would_cross(0, 10**9, 100), "a commit of nothing would not help"


def test_records_that_stage_far_more_than_they_have_come_in_shorter_slices() -> None:
    pace = SlicePace()
    first = pace.records
    pace.learn(first, 100, SLICE_S / 2, 2 * SLICE_GROWTH_BYTES)
    assert pace.records == first // 2
