"""Cuts that statements share: how many there are, for how long, and what one that is slow or lost does to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stateline.server.snapshots.asked_nodes import NodeRefusedError
from stateline.server.snapshots.cluster import ClusterSnapshots
from stateline.server.sql.cuts import Cuts
from stateline.server.state.served_stores import ServedStore
from stateline_store import NotReadyError, SqlInvalidError, TooManyRequestsError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Cluster:
    """Snapshots that are made at once, or when they are let go; those that are there now."""

    def __init__(self) -> None:
        self.nodes = SimpleNamespace(own="one")
        self.made: list[str] = []
        self.there: list[str] = []
        self.slow = asyncio.Event()
        self.failing = False
        self.owners = {"one"}
        self.refusal: Exception | None = None

    def nodes_of(self, stores: Sequence[ServedStore]) -> set[str]:
        return self.owners

    async def create(self, stores: Sequence[ServedStore], request: Any) -> tuple[Any, list[Any]]:
        if self.refusal is not None:
            raise self.refusal
        name = "+".join(request.stores)
        if "slow" in name:
            await self.slow.wait()
        self.made.append(name)
        self.there.append(name)
        return SimpleNamespace(name=name, nodes=[]), []

    async def release(self, kept: Any) -> None:
        if self.failing:
            raise ConnectionResetError("the node is gone")
        self.there.remove(kept.name)


def store(name: str) -> ServedStore:
    return cast(ServedStore, SimpleNamespace(name=name, is_global=False, definition=SimpleNamespace(persistent=True)))


def cuts_of(cluster: Cluster) -> Cuts:
    return Cuts(cast(ClusterSnapshots, cluster), 10_000, 600_000)


def asked(cuts: Cuts, *names: str, max_age_ms: int = 5_000) -> Any:
    return cuts.cut([store(name) for name in names], max_age_ms, is_needed=True)


async def test_a_cut_whose_reader_lost_it_is_given_to_nobody_else() -> None:
    cuts = cuts_of(cluster := Cluster())
    for error, made in ((NotReadyError("gone"), 1), (SqlInvalidError("wrong"), 2), (NotReadyError("gone"), 2)):
        with pytest.raises(type(error)):
            async with asked(cuts, "a", "b"):
                raise error
        assert len(cluster.made) == made


async def test_there_are_few_cuts_and_the_oldest_that_nobody_reads_goes_first() -> None:
    cuts = cuts_of(cluster := Cluster())
    async with AsyncExitStack() as reading:
        await reading.enter_async_context(asked(cuts, "a"))
        for name in "bcdef":
            async with asked(cuts, name):
                pass
        assert cluster.there == ["a", "d", "e", "f"]
        for name in "ghi":
            await reading.enter_async_context(asked(cuts, name))
        with pytest.raises(TooManyRequestsError, match="read 4 cuts already"):
            await reading.enter_async_context(asked(cuts, "j"))


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (TooManyRequestsError("16 snapshots are there (server.snapshots.max)."), "16 snapshots are there"),
        (NodeRefusedError(NotReadyError("It starts."), "http://two"), "It starts."),
        (TimeoutError(), "not made within 3 s"),
    ],
)
async def test_who_gets_no_cut_is_told_why(refusal: Exception, why: str) -> None:
    cuts = cuts_of(cluster := Cluster())
    cluster.owners, cluster.refusal = {"one", "two"}, refusal
    async with cuts.cut([store("a"), store("b")], 1_000, is_needed=False) as found:
        assert isinstance(found, str)
        assert found.startswith("The snapshot was refused: ")
        assert why in found


async def test_a_cut_that_takes_long_to_make_holds_up_no_other() -> None:
    cuts = cuts_of(cluster := Cluster())
    async with asked(cuts, "a"):
        pass

    async def waits() -> None:
        async with asked(cuts, "slow"):
            pass

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    for name in ("a", "b"):
        async with asked(cuts, name):
            pass
    assert cluster.made == ["a", "b"]
    cluster.slow.set()
    await waiting
    assert cluster.made == ["a", "b", "slow"]


async def test_statements_at_once_share_a_cut_that_takes_longer_to_make_than_it_may_be_old() -> None:
    cuts = cuts_of(cluster := Cluster())

    async def reads(max_age_ms: int) -> None:
        async with asked(cuts, "slow", max_age_ms=max_age_ms):
            pass

    for max_age_ms, made in ((100, 1), (0, 2)):  # for rows of now, one that began before a request came is too old
        cluster.slow.clear()
        cluster.made.clear()
        waiting = [asyncio.create_task(reads(max_age_ms)) for _ in range(5)]
        await asyncio.sleep(0.15)
        cluster.slow.set()
        await asyncio.gather(*waiting)
        assert len(cluster.made) == made


async def test_a_release_that_fails_ends_neither_sweep_nor_other_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.server.sql.cuts._SWEPT_EACH_S", 0.001)
    cuts = cuts_of(cluster := Cluster())
    sweeping = asyncio.create_task(cuts.sweep())
    cluster.failing = True
    async with asked(cuts, "a", max_age_ms=0):
        pass
    while cuts._cuts:
        await asyncio.sleep(0.001)
    cluster.failing = False
    async with asked(cuts, "b", max_age_ms=0):
        pass
    while "b" in cluster.there:
        await asyncio.sleep(0.001)
    assert not sweeping.done()
    sweeping.cancel()
