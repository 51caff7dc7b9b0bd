"""Every kind of store, for the contract suite."""

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
