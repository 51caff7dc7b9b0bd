"""Keys that are looked for while the state moves: whatever an answer has of a partition is of one look at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stateline.config.loading import load_config
from stateline.query.values import Outcome, PartitionAnswer, Terms, Value, answers_of
from stateline.serde.partitioner import home_partition
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.serving import Serving
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, KeysQuery, Query
from support.processes.query_server import PARTITIONS, TOPIC, OwningWorker, make_app

LEVELS = list(IsolationLevel)
TIMESTAMP_BYTES = 8
Found = tuple[dict[bytes, Value], dict[int, Outcome]]


class Watched(QueryRouting):
    """Notes which keys each look asks of which partition, and lets something happen after each."""

    looks: list[dict[int, set[bytes]]]
    after_look: Callable[[], None]

    async def _ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        outcomes = await super()._ask(store, terms, queries, deadline_s)
        self.looks.append({p: set(query.keys) for p, query in queries.items() if isinstance(query, KeysQuery)})
        self.after_look()
        return outcomes


class Finder:
    """Looks keys up in the committed or uncommitted state of "aircraft", as a server would."""

    def __init__(self, state_dir: Path, scratch: Path, level: IsolationLevel) -> None:
        self._state_dir, self._scratch = state_dir, scratch
        self._terms = Terms("aircraft", level)
        self.looks: list[dict[int, set[bytes]]] = []

    def find(self, *keys: str, after_look: Callable[[], None] = lambda: None) -> Found:
        """What `QueryRouting.find` answers; `after_look` happens after each of its looks."""
        self.looks = []
        query = KeysQuery(tuple(key.encode() for key in keys))
        return asyncio.run(
            self._with(
                after_look, lambda routing, store: routing.find(store, self._terms, query, range(PARTITIONS), None)
            )
        )

    async def _with(
        self, after_look: Callable[[], None], find: Callable[[QueryRouting, ServedStore], Awaitable[Found]]
    ) -> Found:
        config = load_config("flights-app", overrides=[f"state.dir={self._state_dir}"])
        serving = Serving(make_app().topology(), config, self._scratch)
        watched = Watched.__new__(Watched)
        vars(watched).update(vars(serving.routing))
        watched.looks, watched.after_look = self.looks, after_look
        try:
            return await find(watched, serving.stores.get("aircraft"))
        finally:
            await serving.close()


@pytest.fixture(params=LEVELS)
def finder(request: pytest.FixtureRequest, state_dir: Path, tmp_path: Path, worker: OwningWorker) -> Finder:
    return Finder(state_dir, tmp_path, request.param)


def key_at(home: int, name: str) -> str:
    """A key that begins with this name and is at home in this partition."""
    return next(key for i in range(1000) if home_partition((key := f"{name}{i}").encode(), PARTITIONS) == home)


def values(found: Mapping[bytes, Value]) -> dict[str, object]:
    return {
        key.decode(): json.loads(value[TIMESTAMP_BYTES:]) for key, value in found.items() if isinstance(value, bytes)
    }


def rows_of(answer: PartitionAnswer) -> dict[bytes, Value]:
    """Key → what is stored, of those that one look found."""
    return {key: value for key, value in answer.rows.entries if isinstance(key, bytes)}


def test_a_key_at_home_costs_one_look_at_one_partition(finder: Finder, worker: OwningWorker) -> None:
    key = key_at(1, "at-home")
    worker.put(key, 7)
    worker.commit()
    found, outcomes = finder.find(key)
    assert (values(found), list(outcomes)) == ({key: 7}, [1])
    assert finder.looks == [{1: {key.encode()}}]


def test_an_absent_key_costs_one_look_at_every_partition(finder: Finder) -> None:
    key = key_at(1, "absent")
    found, outcomes = finder.find(key)
    assert (found, sorted(outcomes)) == ({}, [0, 1, 2])
    assert finder.looks == [{1: {key.encode()}}, {0: {key.encode()}, 2: {key.encode()}}]


def test_the_rows_and_the_position_of_a_partition_are_of_one_look(finder: Finder, worker: OwningWorker) -> None:
    home = {p: key_at(p, "one-look-home") for p in range(PARTITIONS)}
    stray = {p: key_at((p + 1) % PARTITIONS, f"one-look-stray{p}-") for p in range(PARTITIONS)}
    written: dict[tuple[int, int], int] = {}  # partition and its offset → what all of its keys hold then
    steps = iter(range(100))

    def step() -> None:
        value = next(steps)
        for partition in range(PARTITIONS):
            for key in (home[partition], stray[partition]):
                worker.put(key, value, partition=partition)
            written[partition, worker.offset(partition)] = value
        worker.commit()

    step()
    # All strays but one: its partition has rows of the first look alone, unless it is asked for the others' strays.
    for keys in ([*home.values(), *stray.values()], [*home.values(), stray[2]], [home[0], stray[0]]):
        found, outcomes = finder.find(*keys, after_look=step)
        assert set(values(found)) == set(keys)
        for partition, answer in answers_of(outcomes).items():
            expected = written[partition, answer.position.get(TOPIC, partition) or 0]
            assert {value for _, value in values(rows_of(answer)).items()} <= {expected}
            for key in {home[partition], stray[partition]} & set(keys):
                assert values(found)[key] == expected, f"{key} is not of the position of partition {partition}"


def test_a_key_that_leaves_its_home_between_two_looks_is_found_where_it_went(
    finder: Finder, worker: OwningWorker
) -> None:
    moving, stray = key_at(0, "moving"), key_at(1, "moved-stray")
    worker.put(moving, "before")
    worker.put(stray, "stray", partition=2)
    worker.put(moving, None, partition=2)
    worker.commit()

    def move() -> None:
        worker.put(moving, None)
        worker.put(moving, "after", partition=2)
        worker.commit()

    found, _ = finder.find(moving, stray, after_look=move)
    assert values(found) == {moving: "after", stray: "stray"}


def test_of_a_key_in_several_partitions_the_row_at_home_is_the_answer(finder: Finder, worker: OwningWorker) -> None:
    for home in range(PARTITIONS):
        twice, stray = key_at(home, "twice"), key_at((home + 1) % PARTITIONS, "beside")
        for partition in range(PARTITIONS):
            worker.put(twice, partition, partition=partition)
        worker.put(stray, "stray", partition=home)
        worker.commit()
        assert values(finder.find(twice, stray)[0]) == {twice: home, stray: "stray"}


def test_a_key_that_comes_home_between_two_looks_is_answered_from_home(finder: Finder, worker: OwningWorker) -> None:
    for home in range(PARTITIONS):
        coming, other = key_at(home, "coming"), key_at((home + 1) % PARTITIONS, "absent-beside")
        for partition in range(PARTITIONS):
            worker.put(coming, None if partition == home else "stray", partition=partition)
        worker.commit()

        def come_home(key: str = coming) -> None:
            worker.put(key, "home")
            worker.commit()

        assert values(finder.find(coming, other, after_look=come_home)[0]) == {coming: "home"}
