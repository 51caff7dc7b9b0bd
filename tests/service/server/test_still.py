"""What ends the short way to a partition, and what does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.stores.topology_file import Placement
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.server.state.still import Still
from stateline.stores import key_value
from stateline_store import IsolationLevel, KeyQuery, KeyValueStore, StateDirectory, StoreContext, StoreState
from support.processes.owned import Owned

TERMS = Terms("s", IsolationLevel.READ_COMMITTED)


class Lost(Owned):
    """Ownership that a test can take away."""

    is_lost = False

    def is_active(self, task_id: str) -> bool:
        return not self.is_lost


class Scene:
    """One partition, its owner, and what a server has open of it."""

    def __init__(self, root: Path) -> None:
        directory = StateDirectory(root / "state", "app")
        self.ownership = Lost()
        self.context = StoreContext("0_0", directory.task("0_0"))
        self.store = self.opened()
        self.commit(b"1")
        self.served = ServedStore(key_value("s", key=serdes.bytes, value=serdes.bytes), Placement(0, 1, None))
        self.partitions = Partitions(directory, root / "scratch", self.ownership)

    def opened(self) -> KeyValueStore:
        self.store = KeyValueStore("s")
        self.store.init(self.context)
        self.store.set_state(StoreState.ACTIVE)
        return self.store

    def commit(self, value: bytes) -> None:
        self.store.put(b"k", value)
        self.store.commit({})

    def still(self) -> Still:
        """The partition as of an answer of now."""
        answer = self.partitions.ask(self.served, TERMS, 0, KeyQuery(b"k"))
        assert isinstance(answer, PartitionAnswer)
        found = self.partitions.still(self.served, 0, answer)
        assert found is not None
        return found

    def reopen(self) -> None:
        self.store.close()
        self.opened()

    def lose(self) -> None:
        self.ownership.is_lost = True

    def refresh(self) -> None:
        self.partitions.catch_up()

    def commit_and_refresh(self) -> None:
        self.commit(b"2")
        self.refresh()

    def close(self) -> None:
        self.partitions.close()
        self.store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path)) as made:
        yield made


def test_a_key_is_read_while_nothing_changes(scene: Scene) -> None:
    still = scene.still()
    for _ in range(2):
        assert still.value(b"k", time.monotonic()) == (b"1",)
        assert still.value(b"absent", time.monotonic()) == (None,)


ENDS: dict[str, Callable[[Scene], None]] = {
    "a commit that is announced": lambda scene: scene.commit(b"2"),
    "a commit that another request has read": Scene.commit_and_refresh,
    "another look at the files": Scene.refresh,
    "a restore": lambda scene: scene.store.set_state(StoreState.RESTORING),
    "the task's end here": lambda scene: scene.store.set_state(StoreState.STANDBY),
    "the worker's end": Scene.lose,
    "a clean stop": lambda scene: scene.store.close(),
    "another opening": Scene.reopen,
    "a closed secondary": lambda scene: scene.partitions.close_idle(-1),
}


@pytest.mark.parametrize("change", ENDS)
def test_the_partition_is_looked_at_again_after(scene: Scene, change: str) -> None:
    still = scene.still()
    ENDS[change](scene)
    assert still.value(b"k", time.monotonic()) is None


def test_what_is_staged_changes_the_figures_alone(scene: Scene) -> None:
    still = scene.still()
    before = still.copy
    still.value(b"k", 0.0)
    assert still.copy is before, "equal figures are the same object"
    scene.store.put(b"k", b"2")
    scene.store.publish_staged()
    assert still.value(b"k", time.monotonic()) == (b"1",)
    assert (still.copy.staged_records, still.copy.committed_at_ms) == (1, before.committed_at_ms)


def test_a_read_keeps_the_partition_open_and_followed(scene: Scene) -> None:
    still = scene.still()
    now_s = time.monotonic() + 1_000
    still.value(b"k", now_s)
    assert [found.asked_s for found in scene.partitions.readers.values()] == [now_s]
