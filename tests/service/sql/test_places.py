"""Statements of SQL share the places: no caller has them all, and the others take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stateline.sql.places import Places
from stateline_store import TooManyRequestsError

SOON_S, LATE_S = 0.05, 60.0


class Statement:
    """A statement of a caller that runs until it is ended."""

    def __init__(self, places: Places, caller: str, wait_s: float = LATE_S) -> None:
        self._places, self.caller = places, caller
        self.runs, self._ends = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run(asyncio.get_running_loop().time() + wait_s))

    async def _run(self, end: float) -> None:
        async with self._places.place(self.caller, end):
            self.runs.set()
            await self._ends.wait()

    async def end(self) -> None:
        self._ends.set()
        await self.task


async def running(statements: Sequence[Statement]) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [statement.runs.is_set() for statement in statements]


def test_a_caller_has_its_share_and_another_one_finds_a_place() -> None:
    async def scene() -> None:
        places = Places(4, 2)
        mine = [Statement(places, "a") for _ in range(4)]
        assert await running(mine) == [True, True, False, False]
        theirs = [Statement(places, "b") for _ in range(2)]
        assert (await running(theirs), places.running) == ([True, True], 4)
        await theirs[0].end()
        assert await running(mine) == [True, True, False, False]
        await mine[0].end()
        assert await running(mine) == [True, True, True, False]
        for each in (*mine[1:], theirs[1]):
            await each.end()
        assert places.running == 0

    asyncio.run(scene())


def test_those_who_wait_come_in_the_order_of_their_arrival() -> None:
    async def scene() -> None:
        places = Places(1, 1)
        waiting = [Statement(places, caller) for caller in "abcab"]
        for at, each in enumerate(waiting):
            assert await running(waiting) == [number <= at for number in range(5)]
            await each.end()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("share", "why"), [(1, "1 statements are yours, as many of 2"), (2, "2 statements run already")]
)
def test_who_waits_too_long_is_told_why_and_takes_no_place(share: int, why: str) -> None:
    async def scene() -> None:
        places = Places(2, share)
        there = [Statement(places, "a") for _ in range(share)]
        await running(there)
        with pytest.raises(TooManyRequestsError, match=why):
            await Statement(places, "a", SOON_S).task
        for each in there:
            await each.end()
        assert places.running == 0

    asyncio.run(scene())


def test_one_that_gives_up_as_its_turn_comes_hands_the_place_on() -> None:
    async def scene() -> None:
        places = Places(1, 1)
        first, second, third = (Statement(places, caller) for caller in "abc")
        await running([first, second, third])
        first._ends.set()
        second.task.cancel()
        assert await running([second, third]) == [False, True]
        fourth = Statement(places, "d")
        await running([fourth])
        third._ends.set()
        await asyncio.sleep(0)
        fourth.task.cancel()  # perhaps its turn has come just now
        fifth = Statement(places, "e")
        assert await running([fifth]) == [True]
        await fifth.end()
        assert places.running == 0

    asyncio.run(scene())
