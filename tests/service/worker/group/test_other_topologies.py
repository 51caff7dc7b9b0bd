"""Workers of two applications of one name: their tasks mean other stores, so these workers are never in the group
together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import counting, entries
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import ensure_nodes_topic, nodes_partition, nodes_topic_id
from stateline.worker.group import joining
from stateline.worker.group.joining import Joining
from stateline.worker.loop.worker import Worker
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

PARTITIONS = 2
RECORDS = entries([f"k{n}" for n in range(20)])


class Scene:
    """One application, and another one of its name that keeps a second store."""

    def __init__(self, broker: SharedBroker, root: Path, stack: ExitStack) -> None:
        self._root, self._stack = root, stack
        self.name = f"topologies-{uuid4().hex[:8]}"
        self.topic, self._servers = f"{self.name}-in", broker.bootstrap_servers
        self.log = stack.enter_context(closing(configured_log(self.config("one", more=False))))
        create(self.log, {self.topic: PARTITIONS})

    def config(self, node: str, *, more: bool) -> Config:
        return configured(
            counting(name=self.name, topic=self.topic, also=more), self._root / node,
            bootstrap__servers=self._servers, group__instance__id=node, session__timeout__ms=3_000,
            processing__guarantee="exactly_once_v2",
        )  # fmt: skip

    def started(self, node: str, stack: ExitStack, *, more: bool, name: str | None = None) -> Worker:
        config = self.config(node, more=more).model_copy(update={"group_instance_id": name or node})
        log = stack.enter_context(closing(configured_log(config)))
        app = counting(name=self.name, topic=self.topic, also=more)
        return stack.enter_context(running(app, config, log, node))

    def counted(self, node: str, times: int, *, more: bool) -> None:
        """The node's stores come to say of each key that it was written so often."""
        config = self.config(node, more=more)
        app = counting(name=self.name, topic=self.topic, also=more)
        with closing(Stores(app, config, self._root / f"{node}-{times}")) as found:
            wanted = {key: b"%d" % times for key, _, _ in RECORDS}
            eventually(lambda: found.rows("counts", PARTITIONS) == wanted, f"{node} has counted {times} times")


def has_tasks(worker: Worker) -> bool:
    return bool(worker.tasks.all)


@pytest.fixture
def scene(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(kafka_broker, tmp_path, stack)


def test_a_worker_of_another_topology_waits_until_all_of_the_first_one_have_left(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        with ExitStack() as first:
            one = scene.started("one", first, more=False)
            produce(scene.log, scene.topic, RECORDS)
            scene.counted("one", 1, more=False)
            with caplog.at_level(logging.WARNING):
                two = scene.started("two", stack, more=True)
                eventually(lambda: "one in this group run another application" in caplog.text, "it says so")
            produce(scene.log, scene.topic, RECORDS)
            scene.counted("one", 2, more=False)
            assert (has_tasks(one), has_tasks(two)) == (True, False)
        eventually(lambda: len(two.tasks.running) == PARTITIONS, "it goes on with everything")
        produce(scene.log, scene.topic, RECORDS)
        scene.counted("two", 3, more=True)


def test_so_it_is_when_the_topic_was_deleted_in_which_they_say_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "_TOPIC_INTERVAL_S", 0.2)
    with ExitStack() as stack:
        one = scene.started("one", stack, more=False)
        eventually(lambda: len(one.tasks.running) == PARTITIONS, "one has all tasks")
        with closing(scene.log.admin()) as admin:
            admin.delete_topics([nodes_partition(scene.name).topic])
            eventually(lambda: nodes_topic_id(scene.name, admin) is None, "it is deleted")
            ensure_nodes_topic(scene.name, admin)
        with caplog.at_level(logging.WARNING):
            two = scene.started("two", stack, more=True)
            eventually(lambda: "one in this group run another application" in caplog.text, "it says so")
        assert (has_tasks(one), has_tasks(two)) == (True, False)


def test_a_worker_whose_disk_was_lost_waits_for_the_session_before(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        with ExitStack() as before:
            one = scene.started("one", before, more=False)
            eventually(lambda: len(one.tasks.running) == PARTITIONS, "one has all tasks")
            with caplog.at_level(logging.WARNING):
                again = scene.started("elsewhere", stack, more=False, name="one")
                eventually(lambda: "with another state.dir: waiting" in caplog.text, "it says so")
        eventually(lambda: len(again.tasks.running) == PARTITIONS, "it goes on with everything")
    (told,) = [each for each in caplog.messages if "state.dir" in each]
    assert "If the old disk was lost, nothing is to be done." in told


def test_of_two_that_begin_at_once_one_alone_gets_to_work(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, let_in = Joining.is_free, set[str]()

    def first_look_finds_nobody(found: Joining, leave: Callable[[], None]) -> bool:
        is_free = looks(found, leave)
        is_first = found._name not in let_in
        let_in.add(found._name)
        return is_free or is_first

    monkeypatch.setattr(Joining, "is_free", first_look_finds_nobody)
    with ExitStack() as stack:
        workers = [scene.started("one", stack, more=False), scene.started("two", stack, more=True)]
        eventually(lambda: let_in == {"one", "two"}, "both were in the group")
        eventually(lambda: sorted(len(worker.tasks.running) for worker in workers) == [0, PARTITIONS], "one has all")
