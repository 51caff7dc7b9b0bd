"""Calls of a client that are given up when they do not come back."""

from __future__ import annotations

import threading

import pytest

from stateline.log.waiting import within
from support.run.patience import HANGING_S


def test_what_comes_back_in_time_is_handed_on_and_so_is_what_it_raises() -> None:
    late = list[str]()
    assert within(30.0, "work", lambda: 7, late=lambda: late.append("late")) == 7

    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        within(30.0, "work", fail, late=lambda: late.append("late"))
    assert late == []


def test_what_does_not_come_back_is_given_up_and_closed_behind_its_end() -> None:
    may_end, is_closed = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError, match="offsets has not come back"):
        within(0.01, "offsets", may_end.wait, late=is_closed.set)
    assert not is_closed.is_set()
    may_end.set()
    assert is_closed.wait(HANGING_S)
