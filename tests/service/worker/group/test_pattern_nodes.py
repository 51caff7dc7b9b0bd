"""Several nodes that read all topics of a pattern. Nodes that have found other topics are never in a group together."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.faults import entries
from stateline import App, serdes
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.worker.loop.worker import Worker
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

PARTITIONS = 2
RECORDS = entries([f"k{n}" for n in range(20)])


class Nodes:
    """Nodes of one application, whose topics are `first` and `second`."""

    def __init__(self, broker: SharedBroker, root: Path) -> None:
        self._root, self._servers, self.name = root, broker.bootstrap_servers, f"patterns-{uuid4().hex[:8]}"
        self.first, self.second = f"{self.name}-in-1", f"{self.name}-in-2"

    def app(self) -> App:
        app = App(self.name)
        pattern = re.compile(f"{self.name}-in-.*")
        app.stream(pattern, key=serdes.string, value=serdes.bytes).group_by_key().count("counts")
        return app

    def config(self, node: str, *topics: str) -> Config:
        pinned = {"topology__pattern__topics": ",".join(topics)} if topics else {}
        return configured(
            self.app(), self._root / node, bootstrap__servers=self._servers, group__instance__id=node,
            session__timeout__ms=3_000, processing__guarantee="exactly_once_v2", **pinned,
        )  # fmt: skip

    def started(self, node: str, stack: ExitStack, *topics: str) -> Worker:
        config = self.config(node, *topics)
        log = stack.enter_context(closing(configured_log(config)))
        return stack.enter_context(running(self.app(), config, log, node))

    def counted(self, node: str, times: int) -> None:
        """The node's stores come to say of each key that it was written so often."""
        app, config = self.app(), self.config(node, self.first, self.second)
        app.configure(config)
        with closing(Stores(app, config, self._root / f"{node}-{times}")) as found:
            wanted = {key: times for key, _, _ in RECORDS}

            def shown() -> dict[bytes, int]:
                return {key: serdes.int64.deserialize(row) for key, row in found.rows("counts", PARTITIONS).items()}

            eventually(lambda: shown() == wanted, f"{node} has counted {times} times")


def test_a_node_that_finds_another_topic_waits_until_the_others_have_left_unless_all_have_its_name(
    kafka_broker: SharedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(kafka_broker, tmp_path)
    with ExitStack() as stack:
        log = stack.enter_context(closing(configured_log(nodes.config("log", nodes.first))))
        create(log, {nodes.first: PARTITIONS})
        with ExitStack() as first:
            one = nodes.started("one", first)
            produce(log, nodes.first, RECORDS)
            eventually(lambda: len(one.tasks.running) == PARTITIONS, "one has all tasks")
            create(log, {nodes.second: PARTITIONS})
            produce(log, nodes.second, RECORDS)
            with caplog.at_level(logging.WARNING):
                two = nodes.started("two", stack)
                eventually(lambda: "one in this group run another application" in caplog.text, "it says so")
            assert (len(one.tasks.running), bool(two.tasks.all)) == (PARTITIONS, False)
        eventually(lambda: len(two.tasks.running) == PARTITIONS, "two goes on with both topics")
        nodes.counted("two", 2)
        again = nodes.started("one", stack, nodes.first, nodes.second)
        eventually(lambda: len(again.tasks.running) == 1 == len(two.tasks.running), "each has a task")
