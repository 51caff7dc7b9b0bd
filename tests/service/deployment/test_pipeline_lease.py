"""Which node may run a pipeline whose checkpoint several reach: the table, and drivers that ask a real group."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.cli.nodes.drain import drain_node
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.pipelines.checkpoint_location import location_id
from stateline.deployment.pipelines.lease import PipelineLease, Seen, State, lease_group, next_state
from stateline.deployment.workers.instance_file import pipeline_drain_path
from stateline_store import ConfigurationError, TaskLock
from support.kafka.shared_broker import SharedBroker
from support.processes.pipelines_node import refusal
from support.processes.query_server import wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S

GIVEN = Seen(alone=True, given=True, confirmed=True)


@pytest.mark.parametrize(
    ("state", "seen", "after"),
    [
        ("waiting", Seen(), "waiting"),  # somebody is in the group
        ("waiting", Seen(alone=True), "joining"),
        ("waiting", Seen(alone=True, drained=True), "waiting"),
        ("joining", Seen(alone=True), "joining"),  # the group has not decided
        ("joining", Seen(alone=True, given=True), "joining"),  # and not confirmed it
        ("joining", Seen(given=True, confirmed=True), "joining"),  # another one is about to leave
        ("joining", Seen(given=True, confirmed=True, late=True), "waiting"),  # or has the lease
        ("joining", Seen(alone=True, late=True), "joining"),
        ("joining", Seen(given=False), "waiting"),
        ("joining", Seen(alone=True, given=True, confirmed=True, drained=True), "waiting"),
        ("joining", GIVEN, "held"),
        ("held", Seen(given=False, confirmed=True), "held"),  # whoever else is there by now does not begin
        ("held", Seen(confirmed=True, drained=True), "held"),  # until its driver has stopped
        ("held", Seen(alone=True, given=True), "lost"),
        ("lost", GIVEN, "lost"),
    ],
)
def test_a_pipeline_is_had_by_who_is_given_it_alone_and_confirmed_until_it_is_not(
    state: State, seen: Seen, after: State
) -> None:
    assert next_state(state, seen) == after


def config(broker: SharedBroker, name: str, root: Path, node: str, location: str | None = "shared") -> Config:
    given = [
        f"bootstrap.servers={broker.bootstrap_servers}", f"state.dir={root / node}", f"node.name={node}",
        "session.timeout.ms=6000", *([] if location is None else [f"pipeline.checkpoint.location={root / location}"]),
    ]  # fmt: skip
    return load_config(name, environment={}, overrides=given)


@pytest.fixture
def name() -> str:
    """Of an application that no other test has."""
    return f"flights-{uuid4().hex[:8]}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path


def test_of_drivers_that_begin_at_once_one_has_the_pipeline_and_the_next_when_that_has_left(
    kafka_broker: SharedBroker, root: Path, name: str
) -> None:
    lost: list[str] = []
    with ExitStack() as stack:
        made: list[PipelineLease] = []
        for node in long_or_short(("one", "two", "three"), ("one", "two")):
            log = stack.enter_context(closing(configured_log(config(kafka_broker, name, root, node))))
            made.append(PipelineLease(log, config(kafka_broker, name, root, node), "delays", lost=lost.append))
            stack.callback(made[-1].close)

        while made:
            wait_until(lambda: any(lease.holds for lease in made), HANGING_S)
            (owner,) = [lease for lease in made if lease.holds]
            wait_until(lambda: {lease.owner for lease in made} == {made[0].owner}, HANGING_S)  # all know who it is
            owner.close()
            assert not owner.holds
            made.remove(owner)
    assert lost == []


def test_who_is_not_confirmed_any_more_is_told_so_before_its_session_ends(
    kafka_broker: SharedBroker, root: Path, name: str
) -> None:
    """Somebody deletes what the group has: nothing is confirmed from then on."""
    lost: list[str] = []
    given = config(kafka_broker, name, root, "one")
    with closing(configured_log(given)) as log, closing(log.admin()) as admin:
        with closing(PipelineLease(log, given, "delays", lost=lost.append)) as lease:
            wait_until(lambda: lease.holds, HANGING_S)
            admin.delete_topics([f"{name}-nodes"])
            wait_until(lambda: bool(lost), HANGING_S)
            assert not lease.holds
        assert admin.members(lease_group(name, "delays")) == []


def test_a_node_that_is_drained_gives_a_pipeline_up_and_takes_none(
    kafka_broker: SharedBroker, root: Path, name: str
) -> None:
    given = config(kafka_broker, name, root, "one")
    directory = root / "one" / name / "pipelines" / "delays"
    directory.mkdir(parents=True)
    asked, told = pipeline_drain_path(directory), list[str]()
    with closing(configured_log(given)) as log, ThreadPoolExecutor() as beside:
        stopped = threading.Event()
        lock = TaskLock(directory / ".lock")
        lease = PipelineLease(log, given, "delays", lost=told.append, is_drained=asked.exists, give_up=stopped.set)
        with closing(lease):
            wait_until(lambda: lease.holds, HANGING_S)
            draining = beside.submit(drain_node, given, told.append, HANGING_S)
            assert stopped.wait(HANGING_S)
            assert lease.holds  # its driver has not stopped yet
            lock.release()
            draining.result()
        assert told == ["pipeline delays"]
        with closing(log.admin()) as admin:
            waiting = PipelineLease(log, given, "delays", lost=told.append, is_drained=asked.exists)
            another = PipelineLease(log, config(kafka_broker, name, root, "two"), "delays", lost=told.append)
            with closing(waiting), closing(another):
                wait_until(lambda: another.holds, HANGING_S)
                (member,) = admin.members(lease_group(name, "delays"))
                assert member.client_id == "two"


def test_every_node_may_run_pipelines_that_has_the_same_directory_and_no_other(
    kafka_broker: SharedBroker, root: Path, name: str
) -> None:
    one, two = (config(kafka_broker, name, root, node) for node in ("one", "two"))
    assert (refusal(one), refusal(two), refusal(one)) == ("", "", "")
    assert "set it on this node, 'two', too" in refusal(config(kafka_broker, name, root, "two", None))
    (root / "not-mounted").mkdir()
    refused = refusal(config(kafka_broker, name, root, "two", "not-mounted"))
    assert f"not in {root / 'not-mounted'} as it is on this node" in refused
    (root / "shared").rename(root / "moved")
    assert not refusal(config(kafka_broker, name, root, "two", "moved"))


def test_pipelines_go_to_a_location_from_the_node_that_had_them(
    kafka_broker: SharedBroker, root: Path, name: str
) -> None:
    assert not refusal(config(kafka_broker, name, root, "one", None))
    two = config(kafka_broker, name, root, "two")
    assert "start node 'one' first" in refusal(two)
    assert not refusal(config(kafka_broker, name, root, "one"))
    assert not refusal(two)


def test_a_location_that_cannot_be_one_is_refused_before_anything_else(root: Path) -> None:
    def of(location: str, *more: str) -> Config:
        given = [f"state.dir={root / 'state'}", f"pipeline.checkpoint.location={location}", *more]
        return load_config("flights", environment={}, overrides=given)

    for unusable in ("shared", "file:///shared", "hdfs://", "a b://c"):
        with pytest.raises(ConfigurationError, match="an absolute path that all nodes have mounted"):
            of(unusable)
    assert location_id(of("hdfs://namenode/shared/")) == "hdfs://namenode/shared"
    assert "the embedded log is one machine's" in refusal(of(str(root / "shared")))
    with pytest.raises(ConfigurationError, match="no such directory: mount it"):
        location_id(of(str(root / "nowhere")))
    (root / "file").mkdir()
    (root / "file" / "flights").touch()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        location_id(of(str(root / "file")))
    found = location_id(of(str(root / "shared")))
    assert location_id(of(str(root / "shared"))) == found
    assert os.listdir(root / "shared" / "flights" / "pipelines") == [".location"]
