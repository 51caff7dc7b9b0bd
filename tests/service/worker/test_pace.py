"""Slices fit their time, and commits come before the byte limit is crossed."""

from hypothesis import given
from hypothesis import strategies as st

from stateline.worker.pace import SLICE_S, Pace


def test_a_slow_slice_makes_the_next_one_shorter_and_a_fast_one_longer_by_a_factor_of_two_at_most() -> None:
    pace = Pace()
    first = pace.records
    pace.learn(first, SLICE_S * 10, 0)
    assert pace.records == first // 2
    pace.learn(pace.records, SLICE_S / 10, 0)
    assert pace.records == first


@given(st.lists(st.floats(min_value=0, max_value=10), max_size=50))
def test_a_slice_always_has_a_record_and_never_more_than_five_thousand(seconds: list[float]) -> None:
    pace = Pace()
    for each in seconds:
        pace.learn(pace.records, each, 0)
        assert 1 <= pace.records <= 5_000


def test_the_limit_counts_what_the_next_slice_is_likely_to_stage() -> None:
    pace = Pace()
    pace.learn(100, SLICE_S, 400)
    assert not pace.would_cross(600, 1_000)
    assert pace.would_cross(601, 1_000)
    assert not pace.would_cross(10**9, -1)
    assert not pace.would_cross(0, 100), "a commit of nothing would not help"
