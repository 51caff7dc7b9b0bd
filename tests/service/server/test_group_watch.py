"""What a server is told of its workers' group and of changelogs, by a real broker, and what follows of lag."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.config.loading import load_config
from stateline.deployment.workers.instance_file import Instance, instance_path
from stateline.log.interface import GroupMember
from stateline.log.kafka import KafkaLog
from stateline.query.values import CopyStatus
from stateline.server.state import group_watch, ownership
from stateline.server.state.group_watch import Ends, GroupRequest, GroupState, GroupWatch
from stateline.server.state.ownership import Ownership
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import TopicPartition
from stateline_store.clock import boot_ms
from support.apps import changes_app
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import create
from support.run.patience import HANGING_S

NOW_MS = 1_800_000_000_000


@pytest.fixture
def lags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lags:
    return Lags(tmp_path, monkeypatch)


def watch_of(servers: str, wanted: GroupRequest, kind: type[GroupWatch] = GroupWatch) -> GroupWatch:
    """Of a group that has no members."""
    config = load_config("app", environment={}, overrides=[f"bootstrap.servers={servers}"])
    group = f"nobody-{uuid4().hex[:8]}"
    return kind(config, group, lambda member: False, lambda client: False, lambda: wanted, lambda: None)


async def kept(watch: GroupWatch, *, known: Collection[TopicPartition] = ()) -> None:
    """Keep it until it says that nobody is elsewhere, and how long these changelogs are."""
    keeping = asyncio.create_task(watch.keep())
    async with asyncio.timeout(HANGING_S):
        while watch.may_be_elsewhere() or any(watch.end(each) is None for each in known):
            await asyncio.sleep(0.01)
    keeping.cancel()


def test_a_changelog_that_is_missing_leaves_the_ends_of_the_others_known(kafka_broker: SharedBroker) -> None:
    topic = f"log-{uuid4().hex[:8]}"
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        create(log, {topic: 1})
    there, beyond, missing = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(f"{topic}-no", 0)
    watch = watch_of(kafka_broker.bootstrap_servers, GroupRequest({there, beyond, missing}, (), is_urgent=False))
    asyncio.run(kept(watch, known=[there]))
    assert watch.end(there) is not None
    assert watch.end(beyond) is watch.end(missing) is None


def test_who_has_the_tasks_is_told_before_it_is_known_how_long_changelogs_are(kafka_broker: SharedBroker) -> None:
    goes_on = threading.Event()

    class Slow(GroupWatch):
        def _ask_ends(self, changelogs: Collection[TopicPartition]) -> Ends:
            goes_on.wait(HANGING_S)
            return super()._ask_ends(changelogs)

    watch = watch_of(kafka_broker.bootstrap_servers, GroupRequest((), (), is_urgent=True), Slow)
    try:
        asyncio.run(kept(watch))
    finally:
        goes_on.set()


@pytest.mark.parametrize("has_others", [True, False])
def test_a_query_waits_for_one_answer_of_a_slow_kafka_and_not_a_fixed_time(
    kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, *, has_others: bool
) -> None:
    """Kafka answers slowly: when the ends of changelogs arrive, the look at the group is older than 250 ms."""
    monkeypatch.setattr(group_watch, "_UNANSWERED_MS", 2 * HANGING_S * 1000)
    other = GroupMember("other", "another-directory", None, frozenset())

    class Slow(GroupWatch):
        def _ask(self, sources: Collection[TopicPartition]) -> GroupState | None:
            look = super()._ask(sources)
            time.sleep(0.4 * group_watch.ALONE_MS / 1000)
            members = (other,) if has_others else ()
            return look and look._replace(members=members, committed_by={TopicPartition("in", 0): "another-directory"})

        def _ask_ends(self, changelogs: Collection[TopicPartition]) -> Ends:
            ends = super()._ask_ends(changelogs)
            time.sleep(1.2 * group_watch.ALONE_MS / 1000)
            return ends

    async def settled(watch: GroupWatch) -> None:
        keeping = asyncio.create_task(watch.keep())
        async with asyncio.timeout(HANGING_S):
            assert await watch.settle()
        keeping.cancel()

    asyncio.run(settled(watch_of(kafka_broker.bootstrap_servers, GroupRequest((), (), is_urgent=False), Slow)))


def test_in_an_outage_nobody_waits_to_be_told_how_long_changelogs_are() -> None:
    watch = watch_of("localhost:1", GroupRequest((), (), is_urgent=False))
    long_ago_ms = boot_ms() - 10_000
    watch.look = GroupState(long_ago_ms, (), {})
    watch.elsewhere = {TopicPartition("in", 0)}
    watch.unanswered_since_ms = long_ago_ms + 5_000
    assert not asyncio.run(watch.settle())


def test_what_kafka_said_before_a_worker_here_was_given_its_tasks_counts_no_more(tmp_path: Path) -> None:
    watch = watch_of("localhost:1", GroupRequest((), (), is_urgent=False))
    workers = Workers(tmp_path, lambda: None, TimeLimits())
    ownership = Ownership(changes_app.build("t").topology(), workers, watch, exactly_once=False)
    path = instance_path(tmp_path, "w")
    path.parent.mkdir()

    def may_be_elsewhere(generation: int) -> tuple[bool, bool]:
        told = Instance(instance="w", generation=generation, pid=1, socket=tmp_path / "none", tasks={})
        path.write_bytes(told.encode())
        asyncio.run(workers.refresh())
        return ownership.may_be_elsewhere("0_0"), ownership._has_been_elsewhere("0_0")

    watch.unanswered_since_ms = boot_ms() - 10_000
    watch.look = GroupState(boot_ms() - 5_000, (), {})
    assert may_be_elsewhere(-1) == (False, False)
    assert may_be_elsewhere(3) == (True, True)
    assert watch.asked.is_set()
    watch.look = GroupState(boot_ms(), (), {})
    assert may_be_elsewhere(3) == may_be_elsewhere(-1) == (False, False)


def test_what_a_copy_had_tells_nothing_of_one_that_was_made_anew(lags: Lags) -> None:
    lags.changelog_ends(10)
    assert lags.of(1, 9) == (0, 0)
    lags.ownership.left(lags.store, 0, 1, NOW_MS - 7_000)
    assert lags.of(1, 3) == (6, 7_000)
    assert lags.of(2, 3) == (6, None)
    lags.ownership.left(lags.store, 0, 2, NOW_MS + 5_000)
    assert lags.of(2, 3) == (6, None), "the clock was set back since"


def test_a_copy_that_had_everything_has_a_lag_in_time_also_while_kafka_does_not_say_where_its_changelog_ends(
    lags: Lags,
) -> None:
    assert lags.of(1, 9) == (None, None)
    lags.changelog_ends(10, age_ms=2_000)
    assert lags.of(1, 3) == (6, None), "it never had everything"
    assert lags.of(1, 9) == (0, 2_000)
    lags.changelog_ends(10, age_ms=60_000)
    assert lags.of(1, 9) == (None, 2_000), "since Kafka has said so last"
    assert lags.of(2, 9) == (None, None)


def test_what_its_owner_says_that_a_copy_had_counts_if_nothing_later_is_known(lags: Lags) -> None:
    lags.ownership.was_complete(lags.store, 0, 1, 5_000)
    assert lags.of(1, 3) == (None, 5_000)
    lags.ownership.was_complete(lags.store, 0, 1, 9_000)
    assert lags.of(1, 3) == (None, 5_000), "it had everything later, too"
    assert lags.of(2, 3)[1] is None, "of another one it says nothing"
    lags.ownership.was_complete(lags.store, 0, 1, 0)
    assert lags.of(1, 3) == (None, 1)


class Lags:
    """What is said of copies of one partition, of which Kafka has said where the changelog ends. Time stands still."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, clock in ((ownership, "boot_ms"), (ownership, "now_ms"), (group_watch, "boot_ms")):
            monkeypatch.setattr(module, clock, lambda: NOW_MS)
        self._watch = watch_of("localhost:1", GroupRequest((), (), is_urgent=False))
        topology, workers = changes_app.build("t").topology(), Workers(root, lambda: None, TimeLimits())
        self.ownership = Ownership(topology, workers, self._watch, exactly_once=False)
        self.store = topology.stores["counts"]
        changelog = self.ownership.changelog(self.store, 0)
        assert changelog is not None
        self._changelog = changelog

    def changelog_ends(self, offset: int, *, age_ms: int = 0) -> None:
        """As Kafka has said so long ago."""
        self._watch.ends = Ends(NOW_MS - age_ms, {self._changelog: offset})

    def of(self, generation: int, offset: int) -> tuple[int | None, int | None]:
        """(lag_records, lag_ms) of a copy that has applied this offset last."""
        applied, copy = {self._changelog: offset}, CopyStatus("standby", 0, 0, 0)
        told = self.ownership.with_lag(copy, self.store, 0, generation, applied)
        return told.lag_records, told.lag_ms
