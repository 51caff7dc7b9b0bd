"""Thousands of keys of a partition: others have their turn in between, and all values are of one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.stores.topology_file import Placement
from stateline.query.values import MAX_KEYS_BYTES, Failure, Outcome, PartitionAnswer, Terms
from stateline.server.routing.copies import ask_for_keys
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.stores import key_value
from stateline_store import IsolationLevel, KeysQuery, KeyValueStore, StateDirectory, StoreContext, StoreState
from support.processes.owned import Owned

KEYS = tuple(b"%d" % at for at in range(2500))
SERVED = ServedStore(key_value("s", key=serdes.bytes, value=serdes.bytes), Placement(0, 1, None))
TERMS = Terms("s", IsolationLevel.READ_COMMITTED)


@contextmanager
def store_and_reader(tmp_path: Path) -> Iterator[tuple[KeyValueStore, Partitions]]:
    directory = StateDirectory(tmp_path / "state", "app")
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", directory.task("0_0")))
    store.set_state(StoreState.ACTIVE)
    partitions = Partitions(directory, tmp_path / "scratch", Owned())
    try:
        yield store, partitions
    finally:
        partitions.close()
        store.close()


def written(store: KeyValueStore, value: bytes) -> None:
    for key in KEYS:
        store.put(key, value)
    store.commit({})


async def asked(partitions: Partitions, keys: tuple[bytes, ...], in_between: Callable[[], None]) -> tuple[Outcome, int]:
    """The outcome, and how often others had their turn."""
    asking = asyncio.create_task(ask_for_keys(partitions, SERVED, TERMS, 0, KeysQuery(keys, MAX_KEYS_BYTES)))
    turns = 0
    while not asking.done():
        await asyncio.sleep(0)
        if not asking.done():
            in_between()
            turns += 1
    return asking.result(), turns


@pytest.mark.parametrize("commits", [0, 1, 100])
def test_they_are_of_one_commit_however_often_it_moves_meanwhile(tmp_path: Path, commits: int) -> None:
    with store_and_reader(tmp_path) as (store, partitions):
        written(store, b"0")
        left = iter(range(1, commits + 1))

        def commit() -> None:
            if (number := next(left, None)) is not None:
                written(store, b"%d" % number)

        outcome, turns = asyncio.run(asked(partitions, (*KEYS, b"absent"), commit))
        assert isinstance(outcome, PartitionAnswer)
        assert [key for key, _ in outcome.rows.entries] == list(KEYS)
        assert len({value for _, value in outcome.rows.entries}) == 1
        assert turns >= 2


def test_of_more_than_one_answer_may_have_they_are_refused(tmp_path: Path) -> None:
    with store_and_reader(tmp_path) as (store, partitions):
        written(store, b"v" * 8000)
        outcome, _ = asyncio.run(asked(partitions, KEYS, lambda: None))
        assert isinstance(outcome, Failure)
        assert "ask for fewer keys" in str(outcome.error)
