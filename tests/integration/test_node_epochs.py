"""Whole epochs over two nodes: of a pipeline's micro-batches an answer and a snapshot have one and the same, or are
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from stateline.log import open_log
from stateline.server.snapshots import cluster
from stateline.server.state import commit_signal, epochs
from stateline_store import TopicPartition
from support.kafka.kafka_broker import KafkaBroker
from support.oracles.whole_epochs import PARTITIONS, Pipeline, whole_app
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, running
from support.processes.served_here import Here, served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

ROWS = {0: 20, 1: 1, 2: 20}
RANGE = "/v1/stores/newest/range"


class Nodes:
    """Two of them, each with a worker, and the pipeline whose results they keep."""

    def __init__(self, broker: KafkaBroker, root: Path, stack: ExitStack) -> None:
        name = f"whole-{uuid4().hex[:8]}"
        app = whole_app(name)
        write_secret(root)
        log = stack.enter_context(closing(open_log(broker.bootstrap_servers, root)))
        self.pipeline = Pipeline(log, name)
        stack.callback(self.pipeline.producer.close)
        common = {"bootstrap__servers": broker.bootstrap_servers, "node__peer__secret__file": root / "secret"}
        self.root, self.servers = root, list[Here]()
        for node in ("one", "two"):
            config = configured(app, root / node, node__name=node, commit__interval__ms=1, **common)
            soon = {"heartbeat.interval.ms": "300"}  # a member hears by these that the group rebalances
            own = stack.enter_context(closing(open_log(broker.bootstrap_servers, root, consumer=soon)))
            stack.enter_context(running(app, config, own))
            given = [f"{key.replace('__', '.')}={value}" for key, value in (common | {"node__name": node}).items()]
            self.servers.append(stack.enter_context(served_here(root / node, *given, app=app, until_ready=False)))

    def last(self) -> TopicPartition:
        return TopicPartition(self.pipeline.out, PARTITIONS - 1)

    def write_unfinished(self) -> None:
        """A micro-batch to whose end the owner of the last partition does not come before 50 more rows are there."""
        self.pipeline.ends[self.last()] += 50
        self.pipeline.write({0: 20})

    def kept(self) -> list[Path]:
        """The snapshots' directories of both, once there is no rubbish among them."""
        wait_until(lambda: all((path / "snapshot.json").exists() for path in self._directories()), HANGING_S)
        return self._directories()

    def _directories(self) -> list[Path]:
        return sorted(self.root.glob("*/*/snapshots/[0-9a-f]*"))


@pytest.fixture(scope="module")
def nodes(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ExitStack() as stack:
        made = Nodes(kafka_broker, tmp_path_factory.mktemp("nodes"), stack)
        made.pipeline.write(ROWS)
        wait_until(lambda: all(owners(here) == {"one", "two"} for here in made.servers), HANGING_S)
        yield made


def owners(here: Here) -> set[str | None]:
    """Who answers for its partitions now; None: a copy of this server, while it knows of no other node yet."""
    answer = here.client.get(RANGE, params={"require_active": "true"})
    return {each.get("node") for each in answer.json().get("partitions", {}).values()}


def snapshot(here: Here) -> httpx.Response:
    return here.client.post("/v1/snapshots", json={"stores": ["newest"], "ttl_s": 3000})


def batches(made: dict[str, Any]) -> set[int]:
    """Of which micro-batches its rows are."""
    parts = made["stores"]["newest"]
    assert set(parts) == set(map(str, range(PARTITIONS)))
    bodies = [httpx.get(part["url"], timeout=HANGING_S).content for part in parts.values()]
    return {json.loads(row["value"]) for body in bodies for row in pa.ipc.open_stream(body).read_all().to_pylist()}


def answered(ask: Callable[[], httpx.Response], *passing: int) -> Any:
    """What is answered: on a busy machine a link is silent for a second now and then, which is 421, and asked again, as
    are other statuses that are `passing`."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(ask())
        return answers[-1].status_code not in (421, *passing)

    wait_until(is_answered, HANGING_S)
    assert answers[-1].is_success, answers[-1].text
    return answers[-1].json()


def values(answer: dict[str, Any]) -> set[int]:
    """Of which micro-batches its entries are."""
    return {entry["value"] for entry in answer["entries"]}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a whole answer is not refused because the machine is busy."""
    for module in (epochs, cluster):
        monkeypatch.setattr(module, "_PATIENCE_S", HANGING_S / 2)


@pytest.mark.usefixtures("patient")
def test_all_that_is_shown_is_whole_and_of_one_micro_batch(nodes: Nodes) -> None:
    here, there = nodes.servers
    for number in range(8):
        nodes.pipeline.write(ROWS)
        here, there = there, here
        assert len(values(answered(partial(here.client.get, RANGE)))) == 1, number
        made = answered(partial(snapshot, here), 503)
        assert len(batches(made)) == 1, number
        assert there.client.delete(f"/v1/snapshots/{made['id']}").status_code == 204


def test_who_waits_is_answered_when_the_other_node_has_committed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner of the last partition has still to come to the end of the micro-batch; no clock wakes anybody."""
    last, owner = nodes.last(), answered(partial(nodes.servers[0].client.get, RANGE))["partitions"]["2"]["node"]
    monkeypatch.setattr(epochs, "_PATIENCE_S", 0.0)
    here = next(each for each in nodes.servers if each.serving.config.node != owner)
    nodes.write_unfinished()
    wait_until(lambda: here.client.get(RANGE).json().get("reason") == "NOT_READY", HANGING_S)
    monkeypatch.setattr(epochs, "_PATIENCE_S", HANGING_S / 2)
    monkeypatch.setattr(commit_signal, "SAFETY_RECHECK_S", HANGING_S)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(here.client.get, RANGE)
        wait_until(lambda: here.serving.commits.waiting > 0, HANGING_S)
        commit = here.serving.commits.next_commit()
        nodes.pipeline.write({last.partition: 60}, marker=False)
        answer = asked.result()
    assert answer.status_code == 200, answer.text
    assert commit.is_set(), "it was told"


@long_only("test_epochs.py of the server refuses copies at different micro-batches")
def test_nodes_at_different_micro_batches_are_refused_and_nothing_is_left(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(cluster, "_PATIENCE_S", 0.3)
    wait_until(lambda: all(snapshot(here).status_code == 201 for here in nodes.servers), HANGING_S)
    before = nodes.kept()
    nodes.write_unfinished()
    for here in nodes.servers:
        for ask in (partial(here.client.get, RANGE), partial(snapshot, here)):
            wait_until(lambda: ask().json().get("reason") == "NOT_READY", HANGING_S)  # noqa: B023
            told = ask().json()
            assert told["status"] in (503, 421), told
            assert told["status"] == 421 or "micro-batches" in told["detail"]
    assert nodes.kept() == before
    nodes.pipeline.write({nodes.last().partition: 60})
    wait_until(lambda: snapshot(nodes.servers[0]).status_code == 201, HANGING_S)
