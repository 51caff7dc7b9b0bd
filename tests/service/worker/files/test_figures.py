"""Totals, and rates and latencies of the last thirty seconds, beside a plain list of what happened."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from stateline.worker.files.figures import WINDOW_S, Figures


def drawn(draw: random.Random) -> tuple[list[tuple[float, bool]], int, int]:
    """What a second brings: commits with how long they took and whether forced, records processed and restored."""
    commits = [(draw.uniform(0.001, 2.0), draw.random() < 0.3) for _ in range(draw.choice([0, 0, 0, 1, 3]))]
    return commits, draw.randrange(5_000), draw.randrange(5_000)


def test_every_sample_is_what_a_list_of_all_events_says() -> None:
    draw = random.Random(7)
    seconds = [drawn(draw) for _ in range(100)] + [([], 0, 0)] * 40
    figures = Figures(0.0)
    for now, (commits, processed, restored) in enumerate(seconds, start=1):
        for took_s, forced in commits:
            figures.committed(took_s, forced=forced)
        figures.processed(processed, 0.25)
        figures.restored(restored)
        figures.followed(2 * restored, 0.125)
        if restored > 4_000:
            figures.promoted(0.5)
        found = figures.sample(float(now))
        recent, every = seconds[max(0, now - int(WINDOW_S)) : now], seconds[:now]
        elapsed = min(now, int(WINDOW_S))
        slow = [took_s for commits, _, _ in recent for took_s, _ in commits]
        assert asdict(found.totals) == {
            "commits": sum(len(commits) for commits, _, _ in every),
            "forced_commits": sum(forced for commits, _, _ in every for _, forced in commits),
            "commit_seconds": pytest.approx(sum(took_s for commits, _, _ in every for took_s, _ in commits)),
            "processed": sum(processed for _, processed, _ in every),
            "process_seconds": 0.25 * now,
            "restored": sum(restored for _, _, restored in every),
            "followed": 2 * sum(restored for _, _, restored in every),
            "follow_seconds": 0.125 * now,
            "promotions": sum(restored > 4_000 for _, _, restored in every),
            "promotion_seconds": 0.5 * sum(restored > 4_000 for _, _, restored in every),
        }
        assert asdict(found.rates) == {
            "commits": pytest.approx(len(slow) / elapsed),
            "processed": pytest.approx(sum(processed for _, processed, _ in recent) / elapsed),
            "restored": pytest.approx(sum(restored for _, _, restored in recent) / elapsed),
            "followed": pytest.approx(2 * sum(restored for _, _, restored in recent) / elapsed),
        }
        assert found.ratios.process == pytest.approx(0.25)
        assert found.ratios.commit == pytest.approx(min(sum(slow) / elapsed, 1.0))
        assert asdict(found.commit_latency) == {
            "avg_s": pytest.approx(sum(slow) / len(slow), abs=1e-9) if slow else None,
            "max_s": max(slow) if slow else None,
        }


def test_a_worker_that_was_silent_for_minutes_counts_over_all_of_them_and_then_over_thirty_seconds_again() -> None:
    figures = Figures(0.0)
    figures.processed(600, 0.1)
    assert figures.sample(300.0).rates.processed == 2.0
    for second in range(301, 332):
        last = figures.sample(float(second))
    assert last.rates.processed == 0.0
