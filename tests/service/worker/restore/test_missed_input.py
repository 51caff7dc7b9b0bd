"""Stores that were not part of the application while its group went on: they get what they missed, or are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import GUARANTEES, NEVER_MS, Place, Watched, entries, fail_commit_of_stores
from stateline import InputRecord, StoreView, serdes, stores
from stateline.cli.check.run import check
from stateline.cli.main import explained
from stateline.cli.reset.execution import reset
from stateline.cli.reset.scope import Asked
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.stores.topology_file import read_topology
from stateline.dsl.app import App
from stateline.log import Log
from stateline.worker.loop import worker as worker_module
from stateline.worker.loop.task_executor import TaskExecutor
from stateline.worker.tasks.task import Task
from stateline_store import TopicPartition
from support.apps.own_stores import OwnStore
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, produce
from support.run.length import long_only, long_or_short

AGAIN = "The topic is read from offset"
under_both = pytest.mark.parametrize("guarantee", GUARANTEES, indirect=True)


def counting(*names: str, name: str = "app", table: bool = False, only: str = "", out: str = "", **kept: Any) -> App:
    """Counts the records of each key in each of these stores, one processor for all.

    `only`: the records of this key alone. `table`: beside it, the newest values. `out`: a topic that records go to.
    """
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.string)
    if table:
        app.table(source, store="newest")
    forwards = [app.topic(out, key=serdes.string, value=serdes.string)] if out else []
    made = [app.store(stores.key_value(n, key=serdes.string, value=serdes.json, **kept)) for n in names]

    def count(record: InputRecord, *given: Any) -> None:
        for view in given[: len(made)]:
            if only in ("", record.key):
                view.put(record.key, (view.get(record.key) or 0) + 1)
        for output in given[len(made) :]:
            output.forward(record.key, record.value)

    app.process(source, stores=made, forwards=forwards)(count)
    return app


def grouped(store: str, through: str = "") -> App:
    """Counts the records of each key through a repartition topic of this name, or of the store's."""
    app = App("app")
    source = app.stream("app-in", key=serdes.string, value=serdes.string)
    source.group_by(lambda key, value: key, key=serdes.string, name=through or store).count(store)
    return app


def direct(store: str) -> App:
    """Counts the records of each key without a repartition topic."""
    app = App("app")
    app.stream("app-in", key=serdes.string, value=serdes.string).group_by_key().count(store)
    return app


class Scene:
    """Deployments of versions of one application, one after the other, of one input partition."""

    def __init__(self, log: Log, root: Path, guarantee: str, servers: str) -> None:
        self.log, self.root, self.guarantee, self.servers = log, root, guarantee, servers
        self.sent = self._readers = 0

    def config(self, app: App, machine: str = "one", **more: Any) -> Config:
        settings = {"processing__guarantee": self.guarantee, "bootstrap__servers": self.servers, **more}
        return configured(app, self.root / machine, **settings)

    def send(self, keys: str, name: str = "app") -> None:
        produce(self.log, f"{name}-in", entries(keys))
        self.sent += len(keys)

    def worker(self, app: App, machine: str = "one", **more: Any) -> Watched:
        return Watched(app, self.config(app, machine, **more), self.log, instance="watched")

    def run(self, app: App, machine: str = "one", to: int | None = None) -> None:
        """Until everything is committed, or so many records of the input."""
        worker, source = self.worker(app, machine), TopicPartition(f"{app.application_id}-in", 0)
        count = len(app.topology().subtopologies)

        def is_through() -> bool:
            tasks = worker.tasks.running
            read = max((t.processing.committed_next_offsets.get(source, 0) for t in tasks), default=0)
            is_idle = not worker._has_work and not worker.tasks.dirty() and all(map(self._has_all, tasks))
            return len(tasks) == count and (read >= to if to is not None else is_idle and read == self.sent)

        worker.reach(is_through)

    def _has_all(self, task: Task) -> bool:
        """Whether the task has committed all that its repartition topics have. A transaction's marker is their last
        offset."""
        committed, markers = task.processing.committed_next_offsets, self.guarantee == "exactly_once_v2"
        places = [source for source in task.topology.sources if source.topic.endswith("-repartition")]
        with closing(self.log.admin()) as admin:
            return all(committed.get(place, 0) >= admin.log_end(place) - markers for place in places)

    def crash_at_commit(self, app: App, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the log's commit and the store's."""
        with monkeypatch.context() as patched:
            fail_commit_of_stores(patched, number, RuntimeError)
            with pytest.raises(RuntimeError, match="between the log's commit"):
                self.run(app)

    def _stores(self, app: App, machine: str) -> Stores:
        self._readers += 1
        return Stores(app, self.config(app, machine), self.root / f"readers-{self._readers}")

    def counts(self, app: App, store: str, machine: str = "one") -> dict[str, int]:
        with closing(self._stores(app, machine)) as found:
            rows = found.rows(store, 1).items()  # JSON, or an operator's int64
            return {key.decode(): value[-1] if value[0] == 0 else int(value) for key, value in rows}

    def position(self, app: App, store: str, machine: str = "one") -> int:
        with closing(self._stores(app, machine)) as found:
            return found.offset(store, f"{app.application_id}-in", 0)

    def refused(self, app: App) -> str:
        """What its worker ends with, as `check` has said."""
        found = self.told(app, "refused")
        with pytest.raises(StoresRefusedError) as caught:
            self.run(app)
        said, code = explained(caught.value)
        assert code == 3
        assert all(each in said for each in found)
        assert found
        return said

    def told(self, app: App, level: str) -> list[str]:
        """What `check` says of missed input."""
        said = [f.message for f in check(app, self.config(app)).findings if f.level == level]
        return [each for each in said if " has " in each and "the group" in each]

    def reset(self, app: App, *subtopologies: int) -> None:
        asked = Asked(subtopologies=subtopologies)
        config, nothing = self.config(app), lambda _: None
        reset(app, config, asked, dry_run=False, agreed=lambda: True, say=nothing, warn=nothing)


@pytest.fixture(params=["exactly_once_v2"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(guarantee: str, tmp_path: Path) -> Iterator[Scene]:
    servers = f"embedded:{tmp_path / 'log.db'}"
    with closing(configured_log(configured(App("app"), tmp_path, bootstrap__servers=servers))) as log:
        create(log, {"app-in": 1})
        yield Scene(log, tmp_path, guarantee, servers)


@under_both
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_store_that_was_renamed_for_one_deployment_gets_what_it_missed(
    scene: Scene, disk: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = counting("totals"), counting("sums")
    scene.send("aab")
    scene.run(first)
    scene.send("abb")
    scene.run(second)
    assert scene.counts(second, "sums") == {"a": 1, "b": 2}
    if disk == "lost":
        shutil.rmtree(scene.root / "one")
    scene.send("c")
    (told,) = scene.told(first, "warning")
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 3, "b": 3, "c": 1}
    assert scene.position(first, "totals") == 6
    assert "offsets 3 to 5 are missing" in told
    assert told in caplog.text
    scene.run(second)
    assert scene.counts(second, "sums") == {"a": 1, "b": 2, "c": 1}


def test_a_refused_store_stays_refused_while_a_worker_finds_out_whether_it_still_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = counting("totals", "more"), counting("sums", "more")
    scene.send("aab")
    scene.run(first)
    scene.send("abb")
    scene.run(second)
    scene.refused(first)
    seen = list[tuple[str | None, str]]()
    resolved = worker_module.Worker._join

    def noting(worker: worker_module.Worker) -> None:
        said = read_topology(scene.root / "one/app")
        seen.append((said.stores["totals"].refused, said.stopped))
        resolved(worker)

    monkeypatch.setattr(worker_module.Worker, "_join", noting)
    said = scene.refused(first)
    ((refused, stopped),) = seen
    assert refused
    assert refused in said
    assert stopped == said
    scene.reset(first, 0)
    scene.run(first)
    assert seen[1:] == [(None, "")]


def test_of_a_store_that_got_a_part_of_what_it_missed_nothing_is_counted_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = counting("totals"), counting("sums")
    scene.send("ab")
    scene.run(first)
    scene.send("a" * 6)
    scene.run(second)
    worker = scene.worker(first, commit__interval__ms=NEVER_MS)
    monkeypatch.setattr(TaskExecutor, "poll_records", 1)
    worker.reach(lambda: worker.read_up_to(TopicPartition("app-in", 0)) >= 4)
    assert scene.position(first, "totals") < 7
    scene.send("b")
    scene.run(second)
    assert scene.counts(second, "sums") == {"a": 6, "b": 1}
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 7, "b": 2}


@under_both
def test_beside_a_store_that_has_everything_it_is_refused_with_the_command_that_rebuilds_it(scene: Scene) -> None:
    first, second = counting("totals", "kept"), counting("kept")
    scene.send("aab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    said = scene.refused(first)
    assert "Store 'totals' has the input of app-in-0 up to offset 2" in said
    assert "offsets 3 to 4 are missing" in said
    assert "stateline reset MODULE:APP --subtopology 0" in said
    assert scene.refused(first) == said
    refused = {name: each.refused for name, each in read_topology(scene.root / "one" / "app").placements().items()}
    assert refused["kept"] is None
    assert refused["totals"] == said
    assert scene.position(first, "totals") == 2
    scene.send("c")
    scene.run(second)
    assert scene.counts(second, "kept") == {"a": 3, "b": 2, "c": 1}
    scene.reset(first, 0)
    scene.run(first)
    assert scene.counts(first, "totals") == scene.counts(first, "kept") == {"a": 3, "b": 2, "c": 1}


def test_beside_a_table_it_gets_what_it_missed_and_the_table_takes_nothing_twice(scene: Scene) -> None:
    first, second = counting("totals", table=True), counting("sums", table=True)
    scene.send("aab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 3, "b": 2}
    assert scene.position(first, "newest") == 4


def test_a_table_that_was_away_reads_its_topic_and_nothing_is_refused(scene: Scene) -> None:
    first, second = counting("kept", table=True), counting("kept")
    scene.send("aab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    assert scene.told(first, "refused") == scene.told(first, "warning") == []
    scene.run(first)
    assert (scene.position(first, "newest"), scene.position(first, "kept")) == (4, 4)
    assert scene.counts(first, "kept") == {"a": 3, "b": 2}


def test_where_its_records_go_to_a_topic_of_the_users_it_is_refused(scene: Scene) -> None:
    create(scene.log, {"out": 1})
    scene.send("a")
    scene.run(counting("totals", out="out"))
    scene.send("a")
    scene.run(counting("sums", out="out"))
    assert "would write to other topics" in scene.refused(counting("totals", out="out"))


def test_what_its_topic_has_deleted_cannot_be_read_again(scene: Scene) -> None:
    scene.send("aab")
    scene.run(counting("totals"))
    scene.send("ab")
    scene.run(counting("sums"))
    with closing(scene.log.admin()) as admin:
        admin.delete_records({TopicPartition("app-in", 0): 4})
    assert "app-in-0 begins at offset 4" in scene.refused(counting("totals"))


def test_a_repartition_topic_that_was_renamed_gets_what_it_missed(scene: Scene) -> None:
    first, second = grouped("totals"), grouped("sums")
    scene.send("aab")
    scene.run(first)
    scene.send("abb")
    scene.run(second)
    assert scene.counts(second, "sums") == {"a": 1, "b": 2}
    (told,) = scene.told(first, "warning")
    assert "Repartition topic 'app-totals-repartition' has the input of app-in-0 up to offset 2" in told
    scene.send("c")
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 3, "b": 3, "c": 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (partial(grouped, through="by-city"), partial(grouped, through="by-town")),
        (direct, partial(grouped, through="by-town")),
        (partial(grouped, through="by-town"), direct),
    ],
    ids=["renamed", "direct and back", "through a topic and back"],
)
def test_input_that_reached_a_store_in_another_way_is_not_counted_twice(
    scene: Scene, first: Callable[[str], App], second: Callable[[str], App]
) -> None:
    scene.send("aab")
    scene.run(first("totals"))
    scene.send("aac")
    scene.run(second("totals"))
    scene.send("a")
    assert "these records have reached the store in another way since" in scene.refused(first("totals"))
    scene.reset(first("totals"), *range(len(first("totals").topology().subtopologies)))
    scene.run(first("totals"))
    assert scene.counts(first("totals"), "totals") == {"a": 5, "b": 1, "c": 1}


def test_two_stores_that_left_at_different_times_are_refused(scene: Scene) -> None:
    both = counting("x", "y")
    scene.send("aab")
    scene.run(both)
    scene.send("a")
    scene.run(counting("y"))
    scene.send("a")
    scene.run(counting("z"))
    assert "has other offsets" in scene.refused(both)


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_store_whose_changelog_was_deleted_meanwhile_is_refused(scene: Scene, disk: str) -> None:
    first, second = counting("totals"), counting("sums")
    scene.send("aab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    with closing(scene.log.admin()) as admin:
        admin.delete_topics(["app-totals-changelog"])
    if disk == "lost":
        shutil.rmtree(scene.root / "one")
    told = [f.message for f in check(first, scene.config(first)).findings if f.level == "refused"]
    for _ in range(2):
        with pytest.raises(StoresRefusedError, match="app-totals-changelog is missing: the topic") as caught:
            scene.run(first)
        assert str(caught.value) in told
    scene.reset(first, 0)
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 3, "b": 2}


def test_dead_letters_are_not_written_a_second_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    create(scene.log, {"dead": 1})
    policy = {"processing__exception__handler": "dead-letter", "errors__dead__letter__queue__topic__name": "dead"}
    configure = scene.config
    monkeypatch.setattr(scene, "config", lambda app, machine="one", **more: configure(app, machine, **policy, **more))
    scene.send("a")
    scene.run(counting("totals"))
    scene.send("a")
    scene.run(counting("sums"))
    assert "would write dead letters a second time" in scene.refused(counting("totals"))


def test_a_function_beside_the_store_does_not_get_records_a_second_time(scene: Scene) -> None:
    called: list[str] = []

    def beside(store: str) -> App:
        app = counting(store)

        @app.process("app-in", name="notify")
        def notify(record: InputRecord) -> None:
            called.append(record.key)

        return app

    scene.send("a")
    scene.run(beside("totals"))
    scene.send("b")
    scene.run(beside("sums"))
    assert "would write to other topics, call other functions" in scene.refused(beside("totals"))
    assert called == ["a", "b"]


@pytest.mark.parametrize("disk", ["lost", "older copy"])
def test_a_store_without_a_changelog_gets_its_input_again_after_a_lost_disk(scene: Scene, disk: str) -> None:
    app = counting("totals", logged=False)
    scene.send("aa")
    scene.run(app)
    shutil.copytree(scene.root / "one", scene.root / "copy")
    scene.send("b")
    scene.run(app)
    shutil.rmtree(scene.root / "one")
    if disk == "older copy":
        (scene.root / "copy").rename(scene.root / "one")
    scene.send("a")
    (told,) = scene.told(app, "warning")
    assert AGAIN in told
    scene.run(app)
    assert scene.counts(app, "totals") == {"a": 3, "b": 1}


def test_what_is_not_in_a_repartition_topic_any_more_is_refused_with_all_that_has_to_start_over(scene: Scene) -> None:
    """The topic stayed; the store behind it was away."""

    def behind(store: str) -> App:
        app = App("app")
        source = app.stream("app-in", key=serdes.string, value=serdes.string)
        source.group_by(lambda key, value: key, key=serdes.string, name="same").count(store)
        return app

    scene.send("aab")
    scene.run(behind("totals"))
    scene.send("ab")
    scene.run(behind("sums"))
    with closing(scene.log.admin()) as admin:
        place = TopicPartition("app-same-repartition", 0)
        admin.delete_records({place: admin.log_end(place)})
    said = scene.refused(behind("totals"))
    assert "app-same-repartition-0 begins at offset" in said
    assert "--subtopology 0 --subtopology 1" in said
    scene.reset(behind("totals"), 0, 1)
    scene.run(behind("totals"))
    assert scene.counts(behind("totals"), "totals") == {"a": 3, "b": 2}


def test_a_partition_without_records_of_that_time_gets_what_it_missed(guarantee: str, tmp_path: Path) -> None:
    with closing(Place(tmp_path, partitions=2)) as place:
        first, second = counting("totals", name="two"), counting("sums", name="two")
        create(place.log, {"two-in": 2})

        def send(key: str, partition: int) -> None:
            with closing(place.log.producer()) as producer:
                producer.produce("two-in", key.encode(), b"v", timestamp_ms=1, partition=partition)
                producer.flush()

        def run(app: App, store: str, *offsets: int) -> Stores:
            found = place.stores(app, place.config(app, processing__guarantee=guarantee))
            worker = place.worker(app, place.config(app, processing__guarantee=guarantee))
            worker.reach(lambda: [found.offset(store, "two-in", n) for n in range(2)] == [*offsets])
            return found

        send("a", 0)
        run(first, "totals", 0, -1)
        send("b", 1)
        run(second, "sums", -1, 0)
        send("b", 1)
        assert run(first, "totals", 0, 1).rows("totals", 2) == {b"a": b"1", b"b": b"2"}


@under_both
@pytest.mark.parametrize("machines", ["one one", "one lost one", "one two one two"])
def test_a_store_that_is_seldom_written_is_part_of_each_commit(
    scene: Scene, machines: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash that left its Position behind, on a new disk, and where tasks move."""
    app = counting("totals", "kept", only="x")
    scene.send("xa")
    scene.run(app)
    for machine in machines.split():
        if machine == "lost":
            shutil.rmtree(scene.root / "one")
            continue
        scene.send("aa")
        scene.crash_at_commit(app, 1, monkeypatch)
        scene.run(app, machine)
        assert scene.counts(app, "totals", machine) == {"x": 1}
        assert scene.position(app, "totals", machine) == scene.sent - 1
        scene.send("a")
        scene.run(app, machine)
        assert scene.position(app, "totals", machine) == scene.sent - 1
    assert "missing" not in caplog.text
    assert scene.told(app, "refused") == scene.told(app, "warning") == []


def test_a_new_store_beside_others_gets_what_comes_from_now_on_and_is_refused_when_it_was_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = counting("totals"), counting("totals", "more")
    scene.send("aa")
    scene.run(before)
    assert scene.told(after, "refused") == []
    scene.send("a")
    scene.crash_at_commit(after, 1, monkeypatch)
    scene.run(after)
    scene.run(after)
    assert scene.counts(after, "more")["a"] >= 1
    assert "more of subtopology 0 is new" in caplog.text
    assert "missing" not in caplog.text
    scene.run(before)
    scene.run(after)
    scene.send("a")
    scene.run(before)
    assert "Store 'more' has the input of app-in-0 up to offset 2" in scene.refused(after)


def test_an_offset_without_a_note_says_nothing_and_is_trusted(scene: Scene) -> None:
    """Kafka Streams, and tools that set a group's offsets, write no note."""
    first, second = counting("totals"), counting("sums")
    scene.send("ab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    with closing(scene.log.admin()) as admin:
        admin.alter_offsets("app", {TopicPartition("app-in", 0): 4})
    scene.send("a")
    scene.run(first)
    assert scene.counts(first, "totals") == {"a": 2, "b": 1}
    scene.run(second)
    assert scene.counts(second, "sums") == {"a": 2, "b": 1}, "who came after it is known again"


def test_a_changed_guarantee_an_empty_group_and_a_version_without_input_miss_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = counting("totals", "kept"), counting("kept")
    scene.run(first)
    scene.run(second)
    scene.send("ab")
    scene.run(first)
    scene.run(second)
    scene.run(first)
    scene.guarantee = next(each for each in GUARANTEES if each != scene.guarantee)
    scene.send("ab")
    scene.run(first)
    assert scene.counts(first, "totals") == scene.counts(first, "kept") == {"a": 2, "b": 2}
    assert "missing" not in caplog.text


def test_a_store_in_memory_gets_what_it_missed(scene: Scene) -> None:
    first, second = counting("totals", persistent=False), counting("sums", persistent=False)
    scene.send("aab")
    scene.run(first)
    scene.send("ab")
    scene.run(second)
    worker = scene.worker(first)
    worker.reach(lambda: worker.read_up_to(TopicPartition("app-in", 0)) == 5 and worker.staged("totals", b"a") == b"")
    scene.send("c")
    scene.run(first)
    with closing(scene.log.admin()) as admin:
        assert admin.committed("app", [TopicPartition("app-in", 0)]) == {TopicPartition("app-in", 0): 6}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_a_store_of_ones_own_gets_what_it_missed_or_is_refused(scene: Scene, beside: bool) -> None:
    """It has no Position: the group alone knows when it left."""

    def own(*names: str) -> App:
        app = counting("kept") if beside else App("app")
        if not beside:
            app.topic("app-in", key=serdes.string, value=serdes.string)
        factory = partial(OwnStore, transactional=True, manages_offsets=True)
        made = [app.store(stores.custom(n, factory, key=serdes.string, value=serdes.string)) for n in names]

        @app.process("app-in", stores=made)
        def note(record: InputRecord, *views: StoreView) -> None:
            for view in views:
                view.put(record.key, str(int(view.get(record.key) or 0) + 1))

        return app

    scene.send("aab")
    scene.run(own("totals"))
    scene.send("ab")
    scene.run(own("sums"))
    if beside:
        assert "Store 'totals' has the input of app-in-0 up to offset 2" in scene.refused(own("totals"))
        return
    scene.run(own("totals"))
    rows = (scene.root / "one" / "app" / "0_0" / "totals" / "rows.json").read_text()
    assert '"rows": {"a": "3", "b": "2"}' in rows


@under_both
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_a_copy_without_a_changelog_that_another_machine_has_gone_on_with_gets_what_it_missed_or_it_is_said(
    scene: Scene, beside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = counting("totals", logged=False)
    if beside:
        kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.json))

        @app.process("app-in", stores=[kept], name="keep")
        def keep(record: InputRecord, kept: StoreView) -> None:
            kept.put(record.key, 1)

    scene.send("aab")
    scene.run(app)
    scene.send("ab")
    scene.run(app, "two")
    scene.send("c")
    scene.run(app)
    lacks = "Store 'totals' has the input of app-in-0 up to offset 2, but the group has processed it up to offset 4"
    nothing = "The store has no changelog, so nothing brings this input."
    assert f"{lacks}: offsets 3 to 4 are missing. {nothing if beside else AGAIN}" in caplog.text
    assert scene.counts(app, "totals") == ({"a": 2, "b": 1, "c": 1} if beside else {"a": 3, "b": 2, "c": 1})


def test_a_store_that_a_topic_feeds_for_the_first_time_gets_what_comes_from_now_on_and_it_is_said(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def adding(**feeds: str) -> App:
        app = App("app")
        made = {name: app.store(stores.key_value(name, key=serdes.string, value=serdes.json)) for name in feeds}
        for store, topics in feeds.items():
            for topic in topics.split():

                @app.process(topic, key=serdes.string, value=serdes.string, name=topic, stores=[made[store]])
                def add(record: InputRecord, kept: StoreView) -> None:
                    kept.put(record.key, (kept.get(record.key) or 0) + 1)

        return app

    create(scene.log, {"other": 1})
    scene.send("aab")
    produce(scene.log, "other", entries("aa"))
    scene.run(adding(all="app-in", own="other"))
    produce(scene.log, "other", entries("a"))
    both = adding(all="app-in other")
    scene.run(both)
    assert "Store 'all' gets input of other for the first time, and other-0 was read before" in caplog.text
    assert scene.counts(both, "all") == {"a": 3, "b": 1}
    produce(scene.log, "other", entries("b"))
    scene.run(adding(all="app-in", more="other"))
    scene.send("b")
    scene.run(both)
    assert scene.counts(both, "all") == {"a": 3, "b": 3}, "what feeds it again brings what it missed"


@pytest.mark.parametrize("guarantee", long_or_short(GUARANTEES, ["exactly_once_v2"]), indirect=True)
@pytest.mark.parametrize(
    "beside",
    [False, pytest.param(True, marks=long_only("it is refused on the embedded log, too"))],
    ids=["alone", "beside"],
)
def test_so_it_is_on_kafka(kafka_broker: SharedBroker, guarantee: str, tmp_path: Path, beside: bool) -> None:
    """There the group's offsets are noted in their metadata."""
    name, kept = f"missed-{uuid4().hex[:8]}", ["kept"] if beside else []
    first, second = counting("totals", *kept, name=name), counting("sums", *kept, name=name)
    servers = kafka_broker.bootstrap_servers
    with closing(configured_log(configured(first, tmp_path, bootstrap__servers=servers))) as log:
        scene = Scene(log, tmp_path, guarantee, servers)
        create(log, {f"{name}-in": 1})
        scene.send("aab", name)
        scene.run(first)
        scene.send("ab", name)
        scene.run(second)
        if beside:
            assert f"Store 'totals' has the input of {name}-in-0 up to offset 2" in scene.refused(first)
            return
        scene.send("c", name)
        scene.run(first)
        assert scene.counts(first, "totals") == {"a": 3, "b": 2, "c": 1}
        assert scene.position(first, "totals") == 5
