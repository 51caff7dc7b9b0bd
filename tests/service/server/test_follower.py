"""Who follows the commits of stores, and when, while nobody asks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.stores.topology_file import Placement
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.follower import Follower
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.stores import key_value
from stateline_store import IsolationLevel, KeyQuery, KeyValueStore, StateDirectory, StoreContext, StoreState
from support.processes.owned import Owned
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

TERMS = Terms("s", IsolationLevel.READ_COMMITTED)


class Scene:
    """A store of two partitions, their owner, and what a server has open of them."""

    def __init__(self, root: Path) -> None:
        directory = StateDirectory(root / "state", "app")
        self.stores = [KeyValueStore("s") for _ in range(2)]
        for number, store in enumerate(self.stores):
            store.init(StoreContext(f"0_{number}", directory.task(f"0_{number}")))
            store.set_state(StoreState.ACTIVE)
        self.served = ServedStore(key_value("s", key=serdes.bytes, value=serdes.bytes), Placement(0, 2, None))
        self.partitions = Partitions(directory, root / "scratch", Owned())
        self.commit(1)
        self.readers = [self.partitions.open(self.served, number) for number in range(2)]

    def commit(self, number: int) -> None:
        for store in self.stores:
            store.put(b"k", b"%d" % number)
            store.commit({})

    def behind(self) -> list[bool]:
        """Whether each of them is."""
        return [reader.is_behind for reader in self.readers]

    def ask(self) -> bytes:
        """What both answer."""
        (value,) = {self._ask(number) for number in range(2)}
        return value

    def _ask(self, number: int) -> bytes:
        answer = self.partitions.ask(self.served, TERMS, number, KeyQuery(b"k"))
        assert isinstance(answer, PartitionAnswer)
        ((_, value),) = answer.rows.entries
        assert isinstance(value, bytes)
        return value

    def close(self) -> None:
        self.partitions.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path)) as made:
        yield made


def followed(scene: Scene, follower: Follower) -> bool:
    """Whether both were, when the follower had its turn."""

    async def turn() -> None:
        following = asyncio.create_task(follower.follow())
        follower.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        following.cancel()

    asyncio.run(turn())
    return not any(scene.behind())


def test_what_was_asked_is_followed_with_each_commit_and_nobody_pays_for_what_came_meanwhile(scene: Scene) -> None:
    follower = Follower(scene.partitions, 60_000)
    assert scene.ask() == b"1"
    for number in range(2, 6):
        scene.commit(number)
        assert all(scene.behind())
        assert followed(scene, follower)
        catch_ups = scene.partitions.catch_ups
        assert scene.ask() == b"%d" % number
        assert scene.partitions.catch_ups == catch_ups, "there was nothing left to do"


def test_what_is_not_asked_is_followed_before_a_catch_up_would_take_long(scene: Scene) -> None:
    follower = Follower(scene.partitions, 0)
    scene.ask()
    for found in scene.partitions.readers.values():
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
    scene.commit(2)
    scene.stores[0].close()
    scene.stores[0].wipe()
    assert all(scene.behind())
    assert not followed(scene, follower)
    assert scene.behind() == [True, False]
    assert not caplog.records, "who asks for it is told"


def test_requests_have_their_turn_between_two_partitions(scene: Scene) -> None:
    scene.ask()
    scene.commit(2)
    steps = scene.partitions.follow(HANGING_S, 0.0)
    seen = [scene.behind() for _ in steps]
    assert seen == [[False, True], [False, False]]


def test_a_server_follows_what_was_asked_as_its_worker_commits(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    partition = worker.put("a", 1).partition
    worker.commit()
    with served_here(tmp_path) as here:
        assert here.client.get("/v1/stores/aircraft/keys/a").json()["value"] == 1
        (reader,) = (
            found.reader
            for (task_id, store), found in here.serving.partitions.readers.items()
            if store == "aircraft" and task_id.endswith(f"_{partition}")
        )
        for number in range(2, 6):
            worker.put("a", number)
            worker.commit()
            wait_until(lambda: not reader.is_behind)  # and nobody asks
    worker.close()
