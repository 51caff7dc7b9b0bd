"""Who follows the commits of stores, and when, while nobody asks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.topology_file import Placement
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.follower import Follower
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.stores import key_value
from stateline_store import IsolationLevel, KeyQuery, KeyValueStore, StateDirectory, StoreContext, StoreState
from support.processes.owned import Owned
from support.run.patience import HANGING_S

TERMS = Terms("s", IsolationLevel.READ_COMMITTED)


class Scene:
    """A store of one partition, its owner, and what a server has open of it."""

    def __init__(self, root: Path) -> None:
        directory = StateDirectory(root / "state", "app")
        self.store = KeyValueStore("s")
        self.store.init(StoreContext("0_0", directory.task("0_0")))
        self.store.set_state(StoreState.ACTIVE)
        self.served = ServedStore(key_value("s", key=serdes.bytes, value=serdes.bytes), Placement(0, 1, None))
        self.partitions = Partitions(directory, root / "scratch", Owned())
        self.commit(1)
        self.reader = self.partitions.open(self.served, 0)

    def commit(self, number: int) -> None:
        self.store.put(b"k", b"%d" % number)
        self.store.commit({})

    def ask(self) -> bytes:
        answer = self.partitions.ask(self.served, TERMS, 0, KeyQuery(b"k"))
        assert isinstance(answer, PartitionAnswer)
        ((_, value),) = answer.rows.entries
        assert isinstance(value, bytes)
        return value

    def close(self) -> None:
        self.partitions.close()
        self.store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path)) as made:
        yield made


def followed(scene: Scene, follower: Follower) -> bool:
    """Whether it was, when the follower had its turn."""

    async def turn() -> None:
        following = asyncio.create_task(follower.follow())
        follower.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        following.cancel()

    asyncio.run(turn())
    return not scene.reader.is_behind


def test_what_was_asked_is_followed_with_each_commit_and_nobody_pays_for_what_came_meanwhile(scene: Scene) -> None:
    follower = Follower(scene.partitions, 60_000)
    assert scene.ask() == b"1"
    for number in range(2, 6):
        scene.commit(number)
        assert scene.reader.is_behind
        assert followed(scene, follower)
        catch_ups = scene.partitions.catch_ups
        assert scene.ask() == b"%d" % number
        assert scene.partitions.catch_ups == catch_ups, "there was nothing left to do"


def test_what_is_not_asked_is_followed_before_a_catch_up_would_take_long(scene: Scene) -> None:
    follower = Follower(scene.partitions, 0)
    scene.ask()
    found = scene.partitions._open["0_0", "s"]
    found.asked_s, found.commit_s = -math.inf, 0.001
    for number in (2, 3, 4):
        scene.commit(number)
        assert not followed(scene, follower), "it takes as many milliseconds as there are commits"
    scene.commit(5)
    assert followed(scene, follower)
    assert scene.ask() == b"5"


def test_a_partition_that_cannot_be_followed_keeps_no_other_from_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(scene.partitions, 60_000)
    scene.ask()
    scene.store.close()
    scene.store.wipe()
    assert scene.reader.is_behind
    assert not followed(scene, follower)
    assert not caplog.records, "who asks for it is told"


def test_requests_have_their_turn_between_two_partitions(scene: Scene) -> None:
    """The follower gives the loop back after each, and never takes a second one before."""
    scene.ask()
    scene.commit(2)
    steps = scene.partitions.follow(HANGING_S, 0.0)
    next(steps)
    assert not scene.reader.is_behind
    assert next(steps, "the end") == "the end"
