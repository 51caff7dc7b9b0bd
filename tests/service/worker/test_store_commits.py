"""KIP-892's figures of a store, against the commits that it was told of."""

from __future__ import annotations

import random

import pytest

from stateline.deployment.worker_figures import StoreFigures
from stateline.worker.store_commits import StoreCommits


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
