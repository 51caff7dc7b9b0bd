"""Every kind of store, for the contract suite."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateline_store import KeyValueStore, StoreContext, TimestampedKeyValueStore, TopicPartition

KINDS = {
    "key_value-rocksdb": lambda: KeyValueStore("s"),
    "key_value-memory": lambda: KeyValueStore("s", persistent=False),
    "timestamped-rocksdb": lambda: TimestampedKeyValueStore("s"),
    "timestamped-memory": lambda: TimestampedKeyValueStore("s", persistent=False),
}


@pytest.fixture
def context(tmp_path: Path) -> StoreContext:
    """A task's directory and changelog."""
    return StoreContext("0_0", tmp_path / "0_0", TopicPartition("changelog", 0))


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[[], KeyValueStore]:
    """Makes a closed store of each kind in turn."""
    return KINDS[request.param]


@pytest.fixture
def store(make: Callable[[], KeyValueStore], context: StoreContext) -> Iterator[KeyValueStore]:
    """An open store of each kind in turn."""
    store = make()
    store.init(context)
    yield store
    store.close()


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Become an ordinary user for the rest of the test: root may read and write anything."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folders = [folder for folder in tmp_path.parents if folder.stat().st_uid == 0]
    modes = {folder: folder.stat().st_mode for folder in folders}
    for folder, mode in modes.items():
        folder.chmod(mode | 0o055)
    yield lambda: os.seteuid(65534)
    os.seteuid(0)
    for folder, mode in modes.items():
        folder.chmod(mode)
