"""Long work in steps: how large they are, and that others have their turn in between. Clocks are the tests' own."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from stateline.server.wire.turns import STEP_S, ScanPace, let_others_in


class Clock:
    """Time that passes as work is done."""

    def __init__(self, row_s: float) -> None:
        self.now_s, self._row_s = 0.0, row_s

    def work(self, rows: int) -> float:
        """How long that took."""
        self.now_s += rows * self._row_s
        return rows * self._row_s


def steps(row_s: float, count: int, most: int = 10**9) -> list[tuple[int, float]]:
    """Rows and seconds of so many steps, none of more than `most` rows."""
    clock = Clock(row_s)
    pace, found = ScanPace(lambda: clock.now_s), []
    for _ in range(count):
        rows = min(pace.rows, most)
        with pace.step(rows):
            found.append((rows, clock.work(rows)))
    return found


@pytest.mark.parametrize("row_s", [1e-6, 5e-6, 20e-6, 50e-6])
def test_steps_take_as_long_as_they_should_whatever_a_row_costs(row_s: float) -> None:
    taken = [seconds for _, seconds in steps(row_s, 20)][10:]
    assert max(taken) <= STEP_S * 1.01
    assert min(taken) >= STEP_S / 2


def test_a_row_that_costs_more_than_a_step_may_is_not_met_with_nothing() -> None:
    assert [rows for rows, _ in steps(0.01, 10)][-1] > 0


def test_a_step_is_at_most_twice_or_half_as_large_as_the_one_before() -> None:
    for row_s in (1e-9, 1.0):
        rows = [rows for rows, _ in steps(row_s, 10)]
        assert all(b <= 2 * a and 2 * b >= a for a, b in pairwise(rows))


def test_steps_that_had_few_rows_for_another_reason_make_the_next_ones_no_smaller() -> None:
    assert [rows for rows, _ in steps(1e-6, 10, most=3)] == [3] * 10
    clock = Clock(1e-6)
    pace = ScanPace(lambda: clock.now_s)
    before = pace.rows
    with pace.step(1):
        clock.work(1)
    assert pace.rows >= before


def test_between_any_two_steps_of_many_scans_others_have_their_turn() -> None:
    seen: list[str] = []

    async def scan() -> None:
        for _ in range(5):
            await let_others_in()
            seen.append("step")

    async def others() -> None:
        while True:
            seen.append("turn")
            await asyncio.sleep(0)

    async def run() -> None:
        other = asyncio.create_task(others())
        await asyncio.gather(*(scan() for _ in range(7)))
        other.cancel()

    asyncio.run(run())
    assert seen.count("step") == 35
    assert "step step" not in " ".join(seen)


def test_a_scan_that_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody() -> None:
    async def run() -> None:
        first, second = (asyncio.create_task(let_others_in()) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await first
        await let_others_in()

    asyncio.run(run())
