"""Stores of a user's own in a running worker: committed, noted in `.checkpoint`, restored, and right after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from service.worker.faults import GUARANTEES, IN, NEVER_MS, Place, Watched, entries, fail_commit_of_stores
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.deployment.lease import Lease
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.worker import InputRecord
from stateline.worker.tasks.task import TaskState
from stateline_store import Change, LogUnavailableError, StateStore, StoreContext, TopicPartition, TopologyError
from stateline_store.files.offset_checkpoint import OFFSET_UNKNOWN, read_offset_checkpoint
from support.apps.own_stores import OwnStore
from support.processes.running_worker import read_all

CHANGELOG = TopicPartition("app-own-changelog", 0)


@dataclass(frozen=True)
class Sort:
    """What a store declares, and under which guarantee it runs."""

    transactional: bool
    manages: bool
    guarantee: str

    def __str__(self) -> str:
        transactional = "transactional" if self.transactional else "direct"
        return f"{transactional}-{'own offsets' if self.manages else 'no offsets'}-{self.guarantee}"

    @property
    def exactly_once(self) -> bool:
        return self.guarantee == "exactly_once_v2"

    @property
    def settings(self) -> dict[str, Any]:
        return {"processing__guarantee": self.guarantee}


SORTS = [Sort(t, m, g) for t in (True, False) for m in (True, False) for g in GUARANTEES]
each_sort = pytest.mark.parametrize("sort", SORTS, ids=str)
logged_or_not = pytest.mark.parametrize("logged", [True, False], ids=["logged", "unlogged"])


def counting(sort: Sort, *, logged: bool = True) -> App:
    """Counts the records of each key in a store of the user's own."""
    factory = partial(OwnStore, transactional=sort.transactional, manages_offsets=sort.manages)
    return counting_in(stores.custom("own", factory, key=serdes.string, value=serdes.string, logged=logged))


def counting_in(definition: Any) -> App:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)

    @app.process(source, stores=[app.store(definition)])
    def count(record: InputRecord, own: OwnStore) -> None:
        own.put(record.key, str(int(own.get(record.key) or 0) + 1))

    return app


def own(worker: Watched) -> OwnStore:
    (task,) = worker.tasks.all.values()
    store = task.stores.by_name["own"]
    assert isinstance(store, OwnStore)
    return store


def work(place: Place, app: App, config: Config, next_offset: int, look: Callable[[Watched], object]) -> None:
    """Run a worker until all is restored and the input committed up to here; look at it then, before it stops."""
    worker = place.worker(app, config)

    def done() -> bool:
        running = any(task.state is TaskState.RUNNING for task in worker.tasks.all.values())
        if not running or place.admin.committed("app", [IN]) != {IN: next_offset}:
            return False
        look(worker)
        return True

    worker.reach(done)


def rows(place: Place, app: App, config: Config, next_offset: int) -> dict[str, str]:
    """What the store holds when the input is committed up to here."""
    found: list[dict[str, str]] = []
    work(place, app, config, next_offset, lambda worker: found.append(own(worker).rows()))
    return found[0]


def checkpoint(place: Place) -> dict[TopicPartition, int]:
    return read_offset_checkpoint(place.task() / ".checkpoint")


@each_sort
@logged_or_not
def test_what_was_put_is_committed_and_a_successor_goes_on_from_there(
    place: Place, delivered: list[Record], sort: Sort, logged: bool
) -> None:
    app = counting(sort, logged=logged)
    config = place.config(app, **sort.settings)
    place.send(entries("ab", 10))
    assert rows(place, app, config, 20) == {"a": "10", "b": "10"}
    place.send(entries("a", 5))
    assert rows(place, app, config, 25) == {"a": "15", "b": "10"}
    assert delivered == [], "nothing had to be restored"


def test_a_store_is_asked_its_own_queries_only_while_nobody_else_can_have_it(place: Place) -> None:
    app = counting(SORTS[0])
    config = place.config(app, **SORTS[0].settings)
    place.send(entries("a", 1))

    def look(worker: Watched) -> None:
        assert worker.tasks.owned("own", 0) is own(worker)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Lease, "holds", property(lambda lease: False))
            assert worker.tasks.owned("own", 0) is None

    work(place, app, config, 1, look)


@each_sort
def test_the_checkpoint_says_what_the_store_does_not_say_itself(place: Place, sort: Sort) -> None:
    app = counting(sort)
    config = place.config(app, **sort.settings)
    place.send(entries("a", 10))
    seen: list[dict[TopicPartition, int]] = []
    work(place, app, config, 10, lambda _: seen.append(checkpoint(place)))
    last = read_all(place.log, CHANGELOG.topic, 1)[-1].offset
    if sort.exactly_once and not sort.transactional:
        assert seen == [{CHANGELOG: OFFSET_UNKNOWN}]  # it may hold more than was committed, for as long as it is open
    else:
        assert seen == [{} if sort.manages else {CHANGELOG: last}]
    assert checkpoint(place) == {CHANGELOG: last}  # closed, each store is where it stands


@each_sort
def test_an_unlogged_store_has_no_changelog_and_no_entry_in_the_checkpoint(place: Place, sort: Sort) -> None:
    app = counting(sort, logged=False)
    place.send(entries("a", 10))
    work(place, app, place.config(app, **sort.settings), 10, lambda _: None)
    assert checkpoint(place) == {}
    assert CHANGELOG.topic not in place.admin.topics()


@each_sort
@logged_or_not
def test_a_lost_disk_is_restored_from_the_changelog_and_only_from_there(place: Place, sort: Sort, logged: bool) -> None:
    app = counting(sort, logged=logged)
    config = place.config(app, **sort.settings)
    place.send(entries("ab", 10))
    work(place, app, config, 20, lambda _: None)
    place.lose_disk(config)
    assert rows(place, app, config, 20) == ({"a": "10", "b": "10"} if logged else {})
    place.send(entries("a", 5))
    assert rows(place, app, config, 25) == ({"a": "15", "b": "10"} if logged else {"a": "5"})


class CrashError(Exception):
    """The machine is gone: nothing is closed."""


def crash(place: Place, app: App, config: Config, next_offset: int) -> None:
    """Run a worker until it has read this far and committed none of it; what it leaves is its disk of that moment."""
    worker = place.worker(app, config)
    left = place.root / "left"

    def keep_the_disk() -> bool:
        if worker.read_up_to(IN) < next_offset:
            return False
        shutil.copytree(config.state_dir, left, ignore=shutil.ignore_patterns("*.sock"))
        raise CrashError

    with pytest.raises(CrashError):
        worker.reach(keep_the_disk)
    shutil.rmtree(config.state_dir)
    left.rename(config.state_dir)


@each_sort
@logged_or_not
def test_after_a_crash_amid_work_nothing_is_missing_and_exactly_once_nothing_counts_twice(
    place: Place, sort: Sort, logged: bool
) -> None:
    app = counting(sort, logged=logged)
    config = place.config(app, commit__interval__ms=NEVER_MS, **sort.settings)
    place.send(entries("a", 10))
    place.commit_once(app, config, 10)
    place.send(entries("ab", 5))
    crash(place, app, config, 20)
    assert place.admin.committed("app", [IN]) == {IN: 10}
    found = rows(place, app, place.config(app, **sort.settings), 20)
    if sort.transactional or (logged and sort.exactly_once):
        assert found == {"a": "15", "b": "5"}
    else:  # it had written what was not committed; exactly-once, only a changelog can tell that from the rest
        assert found == {"a": "20", "b": "10"}


@each_sort
def test_a_store_that_could_not_commit_after_the_log_takes_it_from_the_changelog(
    place: Place, monkeypatch: pytest.MonkeyPatch, sort: Sort
) -> None:
    app = counting(sort)
    config = place.config(app, **sort.settings)
    failed = fail_commit_of_stores(monkeypatch, 1)
    place.send(entries("ab", 10))
    assert rows(place, app, config, 20) == {"a": "10", "b": "10"}
    assert failed == ["0_0"]


@pytest.mark.parametrize("sort", [s for s in SORTS if s.exactly_once and s.transactional], ids=str)
def test_an_unlogged_store_counts_once_exactly_once_when_a_commit_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch, sort: Sort
) -> None:
    app = counting(sort, logged=False)
    send, failed = EmbeddedProducer.send_offsets_to_transaction, list[int]()

    def fail_once(producer: EmbeddedProducer, *arguments: Any) -> None:
        send(producer, *arguments)
        if not failed:
            failed.append(1)
            raise LogUnavailableError("at the offsets")

    monkeypatch.setattr(EmbeddedProducer, "send_offsets_to_transaction", fail_once)
    place.send(entries("ab", 10))
    assert rows(place, app, place.config(app, **sort.settings), 20) == {"a": "10", "b": "10"}
    assert failed


@pytest.mark.parametrize("sort", [s for s in SORTS if not s.exactly_once], ids=str)
def test_an_unlogged_store_is_committed_before_the_log_at_least_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, sort: Sort
) -> None:
    app = counting(sort, logged=False)
    config = place.config(app, **sort.settings)
    failed = fail_commit_of_stores(monkeypatch, 1)
    place.send(entries("ab", 10))
    assert rows(place, app, config, 20) == {"a": "10", "b": "10"}
    assert failed == ["0_0"]


class InMemory(StateStore):
    """Text by key in a dict, logged."""

    persistent = False
    is_open = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: dict[str, str] = {}
        self._changes: list[Change] = []

    @property
    def name(self) -> str:
        return self._name

    def init(self, context: StoreContext) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._rows, self._changes = {}, []

    def get(self, key: str) -> str | None:
        return self._rows.get(key)

    def put(self, key: str, value: str) -> None:
        self._rows[key] = value
        self._changes.append(Change(key.encode(), value.encode(), None))

    def staged_changes(self) -> Iterable[Change]:
        return list(self._changes)

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        for key, value, _ in changes:
            if value is not None:
                self._rows[key.decode()] = value.decode()

    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        self._changes = []


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_store_in_memory_is_restored_at_every_start(place: Place, guarantee: str) -> None:
    definition = stores.custom("own", InMemory, key=serdes.string, value=serdes.string, persistent=False)
    app = counting_in(definition)
    config = place.config(app, processing__guarantee=guarantee)
    for end, count in ((10, "10"), (20, "20"), (30, "30")):
        place.send(entries("a", 10))
        found: list[str | None] = []

        def look(worker: Watched, found: list[str | None] = found) -> None:
            (task,) = worker.tasks.all.values()
            store = task.stores.by_name["own"]
            assert isinstance(store, InMemory)
            found.append(store.get("a"))

        work(place, app, config, end, look)
        assert found == [count]
    assert checkpoint(place) == {}


def test_a_store_that_is_not_as_declared_ends_the_worker_with_what_to_do(place: Place) -> None:
    app = counting_in(stores.custom("own", InMemory, key=serdes.string, value=serdes.string))
    with pytest.raises(TopologyError, match=r"\('own', False\), declared is \('own', True\): let both say the same"):
        place.worker(app, place.config(app)).reach(lambda: False)
