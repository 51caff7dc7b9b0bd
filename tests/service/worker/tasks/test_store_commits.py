"""The figures of KIP-892 for a store, and the number of rows from which a write holds readers up."""

from __future__ import annotations

import random

import pytest

from stateline.deployment.workers.figures import StoreFigures
from stateline.worker.files.figures import StoreCommits
from stateline.worker.tasks.write_stall import MOST_S, WriteStall


def test_figures_are_those_of_the_commits_of_the_last_thirty_seconds() -> None:
    chance, commits = random.Random(7), StoreCommits(0.0)
    made: list[tuple[int, float]] = []
    for second in range(1, 100):
        for _ in range(chance.randrange(3) if second % 50 else 0):
            made.append((second, chance.random()))
            commits.committed(made[-1][1])
        first = max(0, second - 30)
        recent = [seconds for at, seconds in made if at > first]
        found = commits.sample(float(second), second)
        assert found.uncommitted_bytes == second
        assert found.commit_rate == pytest.approx(len(recent) / (second - first))
        assert found.commit_latency_avg_s == pytest.approx(sum(recent) / len(recent))
        assert found.commit_latency_max_s == max(recent)


def test_without_a_commit_there_is_no_latency() -> None:
    commits = StoreCommits(0.0)
    assert commits.sample(1.0, 5) == StoreFigures(0.0, None, None, 5)


def first_long(stall: WriteStall) -> int:
    """The fewest rows of which the write is long, to within a percent."""
    rows = 1
    while not stall.is_long(rows):
        rows += max(1, rows // 100)
    return rows


def test_it_comes_to_what_writes_take() -> None:
    stall = WriteStall()
    for _ in range(50):
        stall.learn(1_000, 1_000 * 5e-6)
    assert 0.9 * MOST_S / 5e-6 < first_long(stall) < 1.1 * MOST_S / 5e-6


def test_a_pause_in_the_middle_of_a_write_halves_it_at_most_and_is_forgotten() -> None:
    stall, paused = WriteStall(), WriteStall()
    paused.learn(1_000, 30.0)
    assert first_long(paused) >= 0.49 * first_long(stall)
    for each in (stall, paused):
        for _ in range(30):
            each.learn(1_000, 1_000 * 1e-6)
    assert abs(first_long(paused) - first_long(stall)) < 0.03 * first_long(stall)


def test_a_write_of_few_rows_tells_nothing() -> None:
    stall = WriteStall()
    before = first_long(stall)
    stall.learn(1, 1.0)
    assert first_long(stall) == before


def test_a_write_of_few_rows_is_never_made_sooner_so_that_what_is_learned_is_forgotten() -> None:
    stall = WriteStall()
    for _ in range(50):
        stall.learn(100, 1.0)
    assert first_long(stall) >= 100
    for _ in range(50):
        stall.learn(100, 100e-6)
    assert first_long(stall) > 2_500
