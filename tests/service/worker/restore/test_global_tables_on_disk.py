"""Global tables on disk: a worker that starts again reads what it has not read, and no more than that."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import Place
from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.config.settings import Config
from stateline.deployment.stores.discarding import discard, stored
from stateline.deployment.stores.resets import Stale
from stateline.log import open_log
from stateline.worker.restore.global_table_store import GlobalTableStore
from stateline_store import IsolationLevel, StateDirectory, StoreContext, TimestampedKeyValueStore, TopicPartition
from stateline_store.errors import SchemaRegistryUnavailableError, TopologyError
from stateline_store.files.directory import global_task, store_path
from stateline_store.inspection.inspection import inspect_directory
from support.apps import global_app
from support.processes.running_worker import configured, create, eventually, produce, read_all, running
from support.run.length import on_one_log

COUNTS = {"codes": 3, "rows": 1, "out": 1}
PLACE = global_task("worker-0")
GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def scene_of(root: Path, *, persistent: bool = True, guarantee: str = "at_least_once") -> Scene:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    return Scene(global_app.build(persistent=persistent), root, partitions=COUNTS, settings=settings)


@pytest.fixture
def reads(caplog: pytest.LogCaptureFixture) -> Iterator[list[int]]:
    """How many records of global tables each worker has read before it took others."""
    counts: list[int] = []

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if found := re.match(r"Global tables are whole: (\d+) records read", record.getMessage()):
                counts.append(int(found[1]))

    handler, logger = Counting(), logging.getLogger("stateline.worker.restore.global_tables")
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(handler)
    yield counts
    logger.removeHandler(handler)


def codes(first: int, last: int, value: str) -> list[Given]:
    return [(f"c{n}", f"{value}-{n}", n) for n in range(first, last)]


def ask(scene: Scene, number: int, *keys: str) -> list[str]:
    """What a worker joins with rows of these keys, which the log has got as its rows number … on."""
    scene.send("rows", [("k", key, number) for key in keys])
    scene.work_off()
    return [(record.value or b"").decode() for record in scene.written("out")][number:]


@contextmanager
def on_disk(config: Config) -> Iterator[TimestampedKeyValueStore]:
    """The table's store, of no worker."""
    directory = StateDirectory(config.state_dir, "codes-app")
    store = TimestampedKeyValueStore("codes")
    with directory.lock_task(PLACE):
        store.init(StoreContext(PLACE, directory.task(PLACE)))
        try:
            yield store
        finally:
            store.close()


def rows(config: Config) -> Mapping[bytes, tuple[bytes | None, int]]:
    with on_disk(config) as store, store.all_with_timestamp() as found:
        return {key: (value.value, value.timestamp) for key, value in found}


@GUARANTEES
def test_a_worker_that_starts_again_reads_only_what_is_new(tmp_path: Path, guarantee: str, reads: list[int]) -> None:
    scene = scene_of(tmp_path, guarantee=guarantee)
    scene.send("codes", codes(0, 500, "one"))
    assert ask(scene, 0, "c7", "c499", "c500") == ["c7|one-7", "c499|one-499", "c500|None"]
    scene.send("codes", [("c7", None, 1), ("c500", "two-500", 2)])
    assert ask(scene, 3, "c7", "c499", "c500") == ["c7|None", "c499|one-499", "c500|two-500"]
    assert ask(scene, 6, "c500") == ["c500|two-500"]
    assert reads == [500, 2]  # and the third one nothing at all
    wanted = {f"c{n}".encode(): (f"one-{n}".encode(), n) for n in range(500) if n != 7}
    assert rows(scene.config) == wanted | {b"c500": (b"two-500", 2)}


@on_one_log("embedded", "test_recreated_global_topics.py reads Kafka's topics onto the disk")
def test_so_it_is_on_either_log(bootstrap: str, tmp_path: Path, reads: list[int]) -> None:
    name = f"codes-{uuid4().hex[:8]}"
    app = App(name)
    codes = app.global_table(f"{name}-in", key=serdes.string, value=serdes.string)
    rows = app.stream(f"{name}-rows", key=serdes.string, value=serdes.string)
    rows.left_join(codes, global_app.pair, on=global_app.code).to(f"{name}-out")
    config = configured(app, tmp_path / "state", **{"processing.guarantee": "exactly_once_v2"})
    with closing(open_log(bootstrap, tmp_path)) as log:
        create(log, {f"{name}-in": 2, f"{name}-rows": 1, f"{name}-out": 1})
        for start in (0, 20, 40):
            produce(log, f"{name}-in", [(f"c{n}".encode(), b"v", n) for n in range(start, start + 20 - start // 4)])
            produce(log, f"{name}-rows", [(b"k", f"c{start}".encode(), start)])
            with running(app, config, log):
                joined = start // 20 + 1
                eventually(lambda n=joined: len(read_all(log, f"{name}-out", 1)) == n, "it is joined")  # type: ignore[misc]
        assert [record.value for record in read_all(log, f"{name}-out", 1)] == [b"c0|v", b"c20|v", b"c40|v"]
    assert reads == [20, 15, 10]


def test_in_memory_every_worker_reads_all_of_it(tmp_path: Path, reads: list[int]) -> None:
    scene = scene_of(tmp_path, persistent=False)
    scene.send("codes", codes(0, 50, "one"))
    assert ask(scene, 0, "c7") == ask(scene, 1, "c7") == ["c7|one-7"]
    assert reads == [50, 50]
    assert not StateDirectory(scene.config.state_dir, "codes-app").global_tasks()


@GUARANTEES
def test_a_killed_worker_has_lost_nothing_that_was_committed_and_reads_the_rest(
    tmp_path: Path, guarantee: str, reads: list[int]
) -> None:
    scene = scene_of(tmp_path, guarantee=guarantee)
    scene.send("codes", codes(0, 400, "one"))
    scene.run_until_killed(global_app, "global-tables:table-committed")
    with on_disk(scene.config) as store:
        committed = sum((store.committed_offset(TopicPartition("codes", n)) or -1) + 1 for n in range(3))
        assert 0 < committed == store.approximate_num_entries() <= 400
    scene.send("codes", codes(390, 420, "two"))
    assert ask(scene, 0, "c5", "c395", "c419") == ["c5|one-5", "c395|two-395", "c419|two-419"]
    assert reads == [430 - committed]
    wanted = {f"c{n}".encode(): (f"{'one' if n < 390 else 'two'}-{n}".encode(), n) for n in range(420)}
    assert rows(scene.config) == wanted


def test_its_position_is_that_of_all_partitions_and_goes_with_its_rows(tmp_path: Path) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", codes(0, 60, "one"))
    ask(scene, 0, "c1")
    with closing(scene.log.admin()) as admin:
        ends = {str(n): admin.log_end(TopicPartition("codes", n)) - 1 for n in range(3)}
    with on_disk(scene.config) as store:
        assert store.position(IsolationLevel.READ_COMMITTED).to_json() == {"codes": ends}


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_also_when_it_is_longer(
    tmp_path: Path, reads: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", codes(0, 30, "one"))
    ask(scene, 0, "c1")
    with closing(scene.log.admin()) as admin:
        admin.delete_topics(["codes"])
    scene.create("codes")
    scene.send("codes", codes(10, 90, "two"))
    assert ask(scene, 1, "c1", "c11") == ["c1|None", "c11|two-11"]
    assert reads == [30, 80]
    assert "codes is emptied and read again from codes: the topic was created again" in caplog.text
    assert len(rows(scene.config)) == 80


def test_a_table_that_is_ahead_of_its_topic_is_read_from_the_beginning(
    tmp_path: Path, reads: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", codes(0, 30, "one"))
    ask(scene, 0, "c1")
    with on_disk(scene.config) as store:
        store.put(b"lost", b"value")
        store.commit({TopicPartition("codes", 1): 1_000})
    assert ask(scene, 1, "c1", "lost") == ["c1|one-1", "lost|None"]
    assert reads == [30, 30]
    assert "it has offset 1000 of partition 1, which ends before" in caplog.text


def test_what_its_topic_deleted_before_it_was_read_is_said_and_its_rows_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", [("a", "one", 1)])
    ask(scene, 0, "a")
    scene.send("codes", [("a", "two", 2), ("a", "three", 3), ("b", "one", 4)])
    with closing(scene.log.admin()) as admin:
        places = [TopicPartition("codes", n) for n in range(3)]
        admin.delete_records({place: admin.log_end(place) for place in places})
    assert ask(scene, 1, "a", "b") == ["a|one", "b|None"]
    assert "'codes' has lost records, which its topic deleted before they were read" in caplog.text


def test_damaged_files_are_read_anew_and_other_types_are_refused(tmp_path: Path, reads: list[int]) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", codes(0, 30, "one"))
    ask(scene, 0, "c1")
    directory = StateDirectory(scene.config.state_dir, "codes-app")
    (store_path(directory.task(PLACE), "codes", timestamped=True) / "CURRENT").write_text("nothing\n")
    assert ask(scene, 1, "c1") == ["c1|one-1"]
    assert reads == [30, 30]
    scene.app = global_app.build(value=serdes.json)
    with pytest.raises(TopologyError, match="json"):
        scene.work_off()


def test_a_reset_deletes_it_and_inspect_shows_it(tmp_path: Path, reads: list[int]) -> None:
    scene = scene_of(tmp_path)
    scene.send("codes", codes(0, 30, "one"))
    ask(scene, 0, "c1")
    directory, nothing = StateDirectory(scene.config.state_dir, "codes-app"), tmp_path / "pipelines"
    (application,) = inspect_directory(directory.application).applications
    assert {task.task_id: [store.name for store in task.stores] for task in application.tasks}[PLACE] == ["codes"]
    assert not [other.path.name for other in application.others if other.path.name == "global"]
    (task,) = inspect_directory(directory.task(PLACE)).applications[0].tasks
    assert (task.task_id, task.problems) == (PLACE, ())
    some = Stale(everything=False, stores=frozenset({"codes"}), pipelines=frozenset())
    assert stored(directory, some) == [f"codes of {PLACE}"]
    assert discard(directory, nothing, some) == [f"codes of task {PLACE}"]
    assert ask(scene, 1, "c1") == ["c1|one-1"]
    everything = Stale(everything=True, stores=frozenset(), pipelines=frozenset())
    assert PLACE in stored(directory, everything)
    assert f"task {PLACE}" in discard(directory, nothing, everything)
    assert ask(scene, 2, "c1") == ["c1|one-1"]
    assert reads == [30, 30, 30]


def test_a_worker_that_is_stopped_as_reading_fails_reads_those_records_at_its_next_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = GlobalTableStore.stage

    def stop_and_fail(table: GlobalTableStore, *records: Any) -> None:
        worker.stop()
        raise SchemaRegistryUnavailableError("the Schema Registry does not answer")

    create(place.log, {"codes": 1})
    app = App("app")
    app.global_table("codes", key=serdes.string, value=serdes.string, store="codes")
    place.send([(b"c", b"1", 1)], "codes")
    monkeypatch.setattr(GlobalTableStore, "stage", stop_and_fail)
    worker = place.worker(app, place.config(app))
    worker.reach(lambda: False)
    monkeypatch.setattr(GlobalTableStore, "stage", stage)
    found: list[bytes | None] = []

    def is_whole() -> bool:
        found.append(worker.global_stores["codes"].reader(IsolationLevel.READ_COMMITTED).get(b"c"))
        return True

    worker = place.worker(app, place.config(app))
    worker.reach(is_whole)
    assert [value and value[8:] for value in found] == [b"1"]
