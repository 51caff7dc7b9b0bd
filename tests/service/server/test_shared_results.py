"""Equal requests share a run and its result, as far as each of them accepts the age of the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stateline.server.sql.shared_results import Run, SharedResults
from stateline_store import NotReadyError

KEY = b"statement"


class Runs:
    """Makes results that tests let read and end. `made` are the runs so far."""

    def __init__(self) -> None:
        self.shared = SharedResults[str](len, lambda _: self.is_unchanged)
        self.is_unchanged = False
        self.made: list[Run[str]] = []
        self.cancelled = 0
        self.ends: list[asyncio.Future[str]] = []

    async def make(self, run: Run[str]) -> str:
        self.made.append(run)
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        try:
            return await end
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def ask(self, max_age_ms: int, key: bytes = KEY) -> asyncio.Task[str]:
        """A request that waits."""
        task = asyncio.create_task(self.shared.get(key, max_age_ms, self.make))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task

    async def finish(self, result: str = "rows", age_ms: int = 0) -> None:
        """End the newest run with rows of this age."""
        self.made[-1].note_read(age_ms)
        self.ends[-1].set_result(result)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def running(scenario: Callable[[Runs], Awaitable[Any]]) -> None:
    async def run() -> None:
        await scenario(Runs())

    asyncio.run(run())


def test_equal_requests_at_once_share_a_run_and_others_do_not() -> None:
    async def scenario(runs: Runs) -> None:
        waiting = [await runs.ask(1_000) for _ in range(3)]
        other = await runs.ask(1_000, b"other")
        assert len(runs.made) == 2
        runs.ends[0].set_result("one")
        runs.ends[1].set_result("two")
        assert await asyncio.gather(*waiting, other) == ["one", "one", "one", "two"]

    running(scenario)


def test_a_result_is_given_to_whoever_accepts_its_age() -> None:
    async def scenario(runs: Runs) -> None:
        first = await runs.ask(60_000)
        await runs.finish("old", age_ms=30_000)
        assert await first == "old"
        assert await (await runs.ask(60_000)) == "old"
        strict = await runs.ask(10_000)
        assert len(runs.made) == 2
        await runs.finish("new")
        assert await strict == "new"

    running(scenario)


def test_a_result_of_unchanged_rows_is_as_good_as_a_new_one_but_for_rows_of_now() -> None:
    async def scenario(runs: Runs) -> None:
        first = await runs.ask(60_000)
        await runs.finish(age_ms=120_000)
        assert await first == "rows"
        runs.is_unchanged = True
        assert await (await runs.ask(60_000)) == "rows"
        assert len(runs.made) == 1
        runs.is_unchanged = False
        assert await (await runs.ask(60_000)) == "rows", "it was read when it was asked for last"
        await runs.ask(0)
        assert len(runs.made) == 2
        runs.ends[-1].set_result("new")

    running(scenario)


def test_a_request_for_rows_of_now_joins_a_run_only_before_it_reads() -> None:
    async def scenario(runs: Runs) -> None:
        first = await runs.ask(0)
        joined = await runs.ask(0)
        assert len(runs.made) == 1
        runs.made[0].note_read(0)
        late = await runs.ask(0)
        assert len(runs.made) == 2
        runs.ends[0].set_result("before")
        await runs.finish("after")
        assert [await each for each in (first, joined, late)] == ["before", "before", "after"]

    running(scenario)


def test_who_waited_for_rows_that_turn_out_too_old_gets_others() -> None:
    async def scenario(runs: Runs) -> None:
        first = await runs.ask(100)
        await asyncio.sleep(0.2)
        late = await runs.ask(100)
        assert len(runs.made) == 1
        await runs.finish("old", age_ms=200)
        assert await first == "old"
        assert not late.done()
        assert len(runs.made) == 2
        await runs.finish("new")
        assert await late == "new"

    running(scenario)


def test_a_request_joins_a_run_whose_rows_were_read_long_ago_only_if_it_accepts_their_age() -> None:
    async def scenario(runs: Runs) -> None:
        first = await runs.ask(1_000)
        runs.made[0].note_read(30_000)
        strict = await runs.ask(10_000)
        assert len(runs.made) == 2
        runs.ends[0].set_result("old")
        await runs.finish("new")
        assert [await each for each in (first, strict)] == ["old", "new"]

    running(scenario)


def test_a_request_does_not_join_a_run_that_may_take_older_rows() -> None:
    async def scenario(runs: Runs) -> None:
        await runs.ask(60_000)
        await runs.ask(1_000)
        assert len(runs.made) == 2
        await runs.ask(2_000)
        assert len(runs.made) == 2
        for each in runs.ends:
            each.set_result("")
        await runs.settle()

    running(scenario)


def test_a_run_ends_when_nobody_waits_for_it_any_more() -> None:
    async def scenario(runs: Runs) -> None:
        first, second = await runs.ask(1_000), await runs.ask(1_000)
        first.cancel()
        await runs.settle()
        assert runs.cancelled == 0
        second.cancel()
        await runs.settle()
        assert runs.cancelled == 1
        third = await runs.ask(1_000)
        assert len(runs.made) == 2
        await runs.finish("rows")
        assert await third == "rows"

    running(scenario)


def test_a_failure_is_told_to_all_that_wait_and_to_nobody_later() -> None:
    async def scenario(runs: Runs) -> None:
        waiting = [await runs.ask(1_000) for _ in range(2)]
        runs.made[0].note_read(0)
        runs.ends[0].set_exception(NotReadyError("It ended."))
        for each in waiting:
            with pytest.raises(NotReadyError):
                await each
        later = await runs.ask(1_000)
        assert len(runs.made) == 2
        runs.ends[1].set_result("not of rows")
        assert await later == "not of rows"
        await runs.ask(1_000)
        assert len(runs.made) == 3
        runs.ends[2].set_result("")
        await runs.settle()

    running(scenario)


def test_a_result_that_grows_counts_with_its_size_of_now() -> None:
    async def scenario(runs: Runs) -> None:
        mib = 1024 * 1024
        sizes = {"a": mib, "b": mib}
        runs.shared = SharedResults[str](sizes.__getitem__)
        for name in sizes:
            await runs.ask(60_000, name.encode())
            await runs.finish(name)
        sizes["b"] = 64 * mib - 10_000
        runs.shared.count_anew(b"b")
        assert await (await runs.ask(60_000, b"b")) == "b"
        await runs.ask(60_000, b"a")
        assert len(runs.made) == 3
        await runs.finish("a")

    running(scenario)


def test_the_oldest_results_go_when_all_take_too_much_memory() -> None:
    async def scenario(runs: Runs) -> None:
        large = "x" * (24 * 1024 * 1024)
        for name in (b"a", b"b", b"c"):
            await runs.ask(60_000, name)
            await runs.finish(large)
        for name in (b"c", b"b"):
            assert await (await runs.ask(60_000, name)) == large
        assert len(runs.made) == 3
        await runs.ask(60_000, b"a")
        assert len(runs.made) == 4
        await runs.finish("")

    running(scenario)
