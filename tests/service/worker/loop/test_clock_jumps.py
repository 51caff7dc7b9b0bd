"""The machine's clock jumps forward and back while a worker runs: nothing is lost, counted twice, or stands still."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

from service.worker.faults import GUARANTEES, Place, counting, entries
from stateline_store import StateDirectory, TopicPartition
from stateline_store.files.commit_notice import NoticeView

DAY_S = 86_400
IN = TopicPartition("in", 0)


class Clock:
    """The wall clock, moved by `offset_s`; clocks that measure durations are left alone."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.offset_s = 0
        real_s, real_ns = time.time, time.time_ns
        patches.setattr(time, "time", lambda: real_s() + self.offset_s)
        patches.setattr(time, "time_ns", lambda: real_ns() + self.offset_s * 1_000_000_000)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("jumps", [[DAY_S, -2 * DAY_S, 0], [-3650 * DAY_S, 3650 * DAY_S]], ids=["both ways", "decades"])
def test_commits_go_on_and_their_times_are_those_of_the_clock(
    place: Place, monkeypatch: pytest.MonkeyPatch, guarantee: str, jumps: list[int]
) -> None:
    clock, app = Clock(monkeypatch), counting()
    config = place.config(app, processing__guarantee=guarantee)
    found, left, sent = place.stores(app, config), list(jumps), 0
    path = StateDirectory(config.state_dir, "app").notice("0_0", "counts", timestamped=False)
    seen: list[tuple[int, int]] = []

    def next_jump() -> bool:
        nonlocal sent
        if found.offset("counts", "in", 0) < sent - 1:
            return False
        if sent:
            view = NoticeView(path)
            seen.append((view.commit_number, time.time_ns() // 1_000_000 - view.committed_at_ms))
            view.close()
        if not left:
            return True
        clock.offset_s = left.pop(0)
        place.send(entries("abc"))
        sent += 3
        return False

    place.worker(app, config).reach(next_jump)
    counted: Any = found.rows("counts", 1)
    assert counted == {key: b"%d" % len(jumps) for key in (b"a", b"b", b"c")}
    assert len(seen) == len(jumps)
    assert all(number < later for (number, _), (later, _) in pairwise(seen))
    assert all(0 <= age_ms < 60_000 for _, age_ms in seen), seen


def test_a_worker_that_starts_before_its_last_commit_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, app = Clock(monkeypatch), counting()
    config = place.config(app)
    clock.offset_s = 10 * DAY_S
    place.send(entries("ab"))
    place.work_off(app, config, 1)
    clock.offset_s = -10 * DAY_S
    place.send(entries("ab"))
    assert place.work_off(app, config, 3).rows("counts", 1) == {b"a": b"2", b"b": b"2"}
