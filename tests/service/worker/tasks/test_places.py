"""Where a worker's stores lie: moved when subtopologies get other numbers (KIP-816), deleted when long unused."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from service.worker.faults import EXACTLY_ONCE, Place, counting, entries
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Record
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline_store import LockedError, StateDirectory, TopologyError
from support.processes.running_worker import Stores, create, running

TOPICS = ("red", "green", "blue")
LONG_AGO_S = 365 * 24 * 3600


def counting_each(topics: Sequence[str], *, without: str = "") -> App:
    """A subtopology per topic, in this order, each with a count of its records by key; `without` has no store."""
    app = App("app")
    for name in topics:
        source = app.topic(name, key=serdes.string, value=serdes.string)
        if name == without:
            app.table(source, store="another")
            continue
        counts = app.store(stores.key_value(f"{name}-counts", key=serdes.string, value=serdes.json))

        @app.process(source, stores=[counts], name=f"count-{name}")
        def count(record: InputRecord, counts: StoreView) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def work_off_all(place: Place, app: App, config: Config, topics: Sequence[str], offset: int) -> Stores:
    found = place.stores(app, config)
    place.worker(app, config).reach(
        lambda: all(found.offset(f"{topic}-counts", topic, 0) == offset for topic in topics)
    )
    return found


def send_all(place: Place, topics: Sequence[str], count: int) -> None:
    for topic in topics:
        place.send(entries([topic], count), topic)


def placed(place: Place) -> dict[str, list[str]]:
    """Task → its databases, of the machine `m`."""
    directory = StateDirectory(place.root / "m", "app")
    found = {task: sorted(path.name for path in (directory.task(task) / "rocksdb").glob("*"))
             for task in directory.tasks()}  # fmt: skip
    return {task: names for task, names in found.items() if names}


@pytest.fixture
def worked(place: Place) -> Config:
    """Three subtopologies have worked off ten records each, and were stopped."""
    create(place.log, dict.fromkeys((*TOPICS, "first"), 1))
    app = counting_each(TOPICS)
    config = place.config(app, **EXACTLY_ONCE)
    send_all(place, TOPICS, 10)
    work_off_all(place, app, config, TOPICS, 9)
    assert placed(place) == {f"{n}_0": [f"{topic}-counts"] for n, topic in enumerate(TOPICS)}
    return config


@pytest.mark.parametrize(
    "order", [("first", *TOPICS), ("green", "red", "blue"), ("blue", "red", "green")], ids=["behind", "swap", "cycle"]
)
def test_stores_follow_their_subtopologies_and_are_not_restored(
    place: Place, worked: Config, delivered: list[Record], order: Sequence[str]
) -> None:
    app = counting_each(order, without="first")
    send_all(place, TOPICS, 5)
    found = work_off_all(place, app, worked, TOPICS, 14)
    assert delivered == []
    for n, topic in enumerate(order):
        if topic in TOPICS:
            assert placed(place)[f"{n}_0"] == [f"{topic}-counts"]
            assert found.rows(f"{topic}-counts", 1) == {topic.encode(): b"15"}


def test_switched_off_the_worker_refuses_and_says_what_is_elsewhere(place: Place, worked: Config) -> None:
    app, was = counting_each(("green", "red", "blue")), placed(place)
    config = place.config(app, automatic__state__relocation="false")
    directory = StateDirectory(worked.state_dir, "app")
    with pytest.raises(TopologyError) as refusal:
        place.worker(app, config).reach(lambda: False)
    for store, at, to in (("green-counts", "1_0", "0_0"), ("red-counts", "0_0", "1_0")):
        assert f"'{store}' is in {directory.task(at)} and should be in {directory.task(to)}" in str(refusal.value)
    assert "blue-counts" not in str(refusal.value)
    assert placed(place) == was
    work_off_all(place, counting_each(TOPICS), worked, TOPICS, 9)


def test_a_store_in_two_places_is_refused_and_both_are_kept(place: Place, worked: Config) -> None:
    second = place.root / "m" / "app" / "2_0" / "rocksdb" / "red-counts"
    second.mkdir()
    (second / "CURRENT").write_text("something")
    was = placed(place)
    with pytest.raises(TopologyError, match=r"'red-counts' is in two tasks of one partition: .*0_0.* and .*2_0"):
        place.worker(counting_each(TOPICS), worked).reach(lambda: False)
    assert placed(place) == was


def test_a_task_that_another_worker_has_is_not_taken_apart(place: Place, worked: Config) -> None:
    was, held = placed(place), StateDirectory(worked.state_dir, "app").lock_task("1_0")
    with pytest.raises(LockedError, match="1_0"):
        place.worker(counting_each(("green", "red", "blue")), worked).reach(lambda: False)
    assert placed(place) == was
    held.release()


def age(task: Path) -> None:
    """Let everything of this task look untouched for long."""
    then = time.time() - LONG_AGO_S
    for place, _, files in os.walk(task):
        for path in (place, *(os.path.join(place, name) for name in files)):
            os.utime(path, (then, then))


def holds_rows(task: Path) -> bool:
    return (task / "rocksdb" / "counts").exists()


def test_a_stale_task_of_nobody_is_deleted_after_the_delay_and_the_worker_s_own_is_not(tmp_path: Path) -> None:
    with closing(Place(tmp_path, partitions=2)) as place:
        app = counting()
        config = place.config(app, state__cleanup__delay__ms="50")
        place.send_each_partition(2, 10)
        found = place.stores(app, config)
        place.worker(app, config).reach(lambda: [found.offset("counts", "in", p) for p in (0, 1)] == [9, 9])
        with running(app, place.config(app, "another machine"), place.log, "other"):
            worker = place.worker(app, config)
            age(place.task(0))
            age(place.task(1))

            def cleaned() -> bool:
                own = {task.id.partition for task in worker.tasks.all.values()}
                assert all(holds_rows(place.task(partition)) for partition in own)
                return len(own) == 1 and not holds_rows(place.task(1 - min(own)))

            worker.reach(cleaned)


def test_a_stale_looking_task_that_another_worker_holds_is_not_touched(place: Place) -> None:
    app = counting()
    config = place.config(app, state__cleanup__delay__ms="50")
    directory = StateDirectory(config.state_dir, "app")
    for task in ("0_6", "0_7"):
        (directory.task(task) / "rocksdb" / "counts").mkdir(parents=True)
    with directory.lock_task("0_7"):
        for task in ("0_6", "0_7"):
            age(directory.task(task))
        worker, passes = place.worker(app, config), set[float]()

        def cleaned_often() -> bool:
            if worker._housekeeping.last_clean not in passes:
                passes.add(worker._housekeeping.last_clean)
                age(directory.task("0_7"))
            return len(passes) > 4

        worker.reach(cleaned_often)
        assert holds_rows(directory.task("0_7"))
        assert not holds_rows(directory.task("0_6"))


@pytest.mark.parametrize("what", ["not logged", "not in the topology", "of an unknown subtopology"])
def test_a_stale_task_with_a_store_that_nothing_can_rebuild_stays(place: Place, what: str) -> None:
    app = counting()
    config = place.config(app, state__cleanup__delay__ms="50")
    stale = {"of an unknown subtopology": "7_0"}.get(what, "0_5")
    folder, gone = StateDirectory(config.state_dir, "app").task(stale), place.task(6)
    for task in (folder, gone):
        (task / "rocksdb" / "counts").mkdir(parents=True)
        (task / "rocksdb" / "counts" / "CURRENT").write_text("rows")
    if what == "not in the topology":
        (folder / "rocksdb" / "dropped-v2").mkdir()
        (folder / "rocksdb" / "dropped-v2" / "CURRENT").write_text("rows")
    if what == "of an unknown subtopology":
        (folder / "rocksdb" / "counts").rename(folder / "rocksdb" / "other")
        (folder / "rocksdb" / "other" / "CURRENT").write_text("rows")
    if what == "not logged":
        app = counting(logged=False)
    age(folder)
    age(gone)
    passes, worker = list[float](), place.worker(app, config)

    def looked_often() -> bool:
        if (last := worker._housekeeping.last_clean) not in passes:
            passes.append(last)
        return len(passes) > 4

    worker.reach(looked_often)
    assert any(folder.glob("rocksdb/*"))
    assert holds_rows(gone) is (what == "not logged")
