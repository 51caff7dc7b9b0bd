"""What a change feed holds until it is committed, pending against looking at every record each time."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.log import Record
from stateline.server.changes.pending import PendingChanges
from stateline.server.changes.topic_reader import is_covered
from stateline_store import Position, PositionBound

PARTITION = 3


def position(offset: int) -> Position:
    return Position({"in": {PARTITION: offset}})


def record(offset: int, carries: int | None = None) -> Record:
    headers = () if carries is None else (("v", b"\x00"), ("c", position(carries).encode()))
    return Record("log", PARTITION, offset, 0, b"k", b"v", headers)


# Positions do not only grow: what a worker had written before it crashed is written again.
logs = st.lists(st.none() | st.integers(0, 9), max_size=30).map(
    lambda carried: [record(2 * n, at) for n, at in enumerate(carried)]
)
looks = st.lists(st.tuples(st.integers(0, 7), st.integers(-1, 9)), max_size=20)


@given(logs, looks)
def test_commits_are_taken_up_to_the_last_one_that_the_position_covers(
    log: list[Record], looks: list[tuple[int, int]]
) -> None:
    pending, expected, coming = PendingChanges(PARTITION), list[Record](), iter(log)
    for count, offset in looks:
        new = list(islice(coming, count))
        pending.add(new, by_position=True)
        expected += new
        seen = position(offset) if offset >= 0 else Position()
        covered = max((n for n, each in enumerate(expected, 1) if is_covered(each, seen)), default=0)
        assert pending.up_to_position(seen) == expected[:covered]
        del expected[:covered]
        assert len(pending) == len(expected)


@given(logs, looks)
def test_records_are_taken_up_to_the_offset(log: list[Record], looks: list[tuple[int, int]]) -> None:
    pending, expected, coming = PendingChanges(PARTITION), list[Record](), iter(log)
    for count, offset in looks:
        new = list(islice(coming, count))
        pending.add(new, by_position=False)
        expected += new
        assert pending.up_to_offset(6 * offset) == [each for each in expected if each.offset <= 6 * offset]
        expected = [each for each in expected if each.offset > 6 * offset]
        assert len(pending) == len(expected)


def test_a_commit_that_comes_in_many_pieces_costs_one_look_at_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counting(position: Position) -> PositionBound:
        nonlocal looked_at
        looked_at += 1
        return PositionBound(position)

    monkeypatch.setattr("stateline.server.changes.pending.PositionBound", counting)
    pending, given = PendingChanges(PARTITION), list[Record]()
    ends = {999: 1, 1999: 2, 99_999: 3}  # and the store has the first commit only
    for first in range(0, 100_000, 500):
        pending.add([record(n, ends.get(n)) for n in range(first, first + 500)], by_position=True)
        given += pending.up_to_position(position(1))
    assert [each.offset for each in given] == list(range(1000))
    assert len(pending.up_to_position(position(3))) == 99_000
    assert looked_at <= 4
