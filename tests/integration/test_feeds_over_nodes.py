"""Nodes that stop, are killed, and whose partitions move, while somebody reads on: change feeds and pages."""

from __future__ import annotations

import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest

from stateline.log import Record
from support.kafka.kafka_broker import KafkaBroker
from support.processes.change_scene import PATIENCE_S, reading
from support.processes.machines import KEYS, PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.processes.running_worker import read_all
from support.run.length import long_only
from support.run.patience import HANGING_S

CHANGES = "/v1/stores/counts/changes"
STORES = ("counts", "memory", "cache")  # on disk, in memory, a table in memory


class Scene:
    """Three linked nodes: of the first two each owns one partition, the third none."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.one, self.two, self.three = (machines.every[name] for name in ("one", "three", "two"))
        machines.send()
        self.three.start_worker()
        wait_until(lambda: self.three.active() == {"0", "1"}, HANGING_S)
        self.one.start_worker()
        self.two.start_worker()
        # The group gives by the order of names: the third has nothing, and these two have this, when all have joined.
        wait_until(self._has_joined, HANGING_S)
        wait_until(lambda: all(len(each.partitions()) == PARTITIONS for each in machines.every.values()), HANGING_S)

    def _has_joined(self) -> bool:
        return [each.active() for each in (self.one, self.two, self.three)] == [{"0"}, {"1"}, set()]


@pytest.fixture
def scene(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Scene]:
    write_secret(tmp_path)
    ways = dict.fromkeys(("one", "two", "three"), kafka_broker.bootstrap_servers)
    settings = f"node.peer.secret.file={tmp_path / 'secret'}", "server.changes.heartbeat.ms=100"
    with ExitStack() as stack:
        yield Scene(Machines(ways, kafka_broker.bootstrap_servers, tmp_path, stack, *settings))


@long_only("the clients of test_node_faults.py find out who says `active` too long")
def test_a_page_says_active_no_longer_than_the_lease_and_is_gone_with_its_node(scene: Scene) -> None:
    one, two, three = scene.one, scene.two, scene.three
    path = "/v1/stores/counts/range"
    kept, stopped = "0", "1"
    cursors = [each.get(path, limit=3).json()["cursor"] for each in (one, two)]

    def stand(cursor: str, partition: str) -> tuple[str, object]:
        told = three.get(path, cursor=cursor).json()["partitions"][partition]
        return told["served_by"], told.get("lag_ms", "none")

    def a_new_one_says_it() -> bool:
        page = one.get(path, limit=3) if kept in one.active() else None
        return page is not None and page.is_success and stand(page.json()["cursor"], kept) == ("active", "none")

    assert {stand(cursor, partition) for cursor in cursors for partition in (stopped, kept)} == {("active", "none")}
    assert two.worker is not None
    two.worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: stopped in one.active() | three.active(), HANGING_S)
    assert {stand(cursor, stopped) for cursor in cursors} == {("standby", None)}
    # While the group rebalances nobody says `active`, and a cursor that was asked then does not say it any more.
    wait_until(a_new_one_says_it, HANGING_S)
    two.stop_server()
    for each in (one, three):
        refused = each.get(path, cursor=cursors[1])
        assert (refused.status_code, refused.json()["reason"]) == (410, "CURSOR_EXPIRED")
    assert three.get(path, cursor=cursors[0], limit=1).status_code == 200, "this page was read before"


class Follower(threading.Thread):
    """Reads the changes of a store at one node after another, each time on from the last id."""

    def __init__(self, store: str, machines: Sequence[Machine]) -> None:
        super().__init__(name=f"follower-{store}")
        self.store = store
        self.urls = [machine.server.client.base_url for machine in machines]
        self._chance = random.Random(store)
        self.found: list[tuple[int, int, str, int]] = []
        self.done = threading.Event()
        self.error: BaseException | None = None

    def has(self, count: int) -> bool:
        """Whether so many changes were given, or something is wrong."""
        return len(self.found) >= count or self.error is not None

    def run(self) -> None:
        last = None
        try:
            for at in range(10**6):
                with httpx.Client(base_url=self.urls[-1 - at % len(self.urls)], timeout=PATIENCE_S) as client:
                    with reading(client, self.store, last=last, from_="earliest") as reader:
                        count = self._chance.randrange(20, 90)
                        for event in reader:
                            assert event.name in ("", "change"), event
                            if event.name:
                                told = event.data
                                self.found.append((told["partition"], told["offset"], told["key"], told["value"]))
                            count -= bool(event.name)
                            if count <= 0 or self.done.is_set():
                                break
                    last = reader.id
                if self.done.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error


@long_only("readers of changes in test_node_faults.py go on at other nodes when one is killed")
def test_no_change_is_lost_or_repeated_while_a_node_is_killed_and_readers_go_on_elsewhere(scene: Scene) -> None:
    machines, one, two, three = scene.machines, scene.one, scene.two, scene.three
    followers = [Follower(store, (one, three)) for store in STORES]
    for follower in followers:
        follower.start()
    try:
        for _ in range(3):
            machines.send()
        for follower in followers:
            wait_until(partial(follower.has, 2 * len(KEYS)), PATIENCE_S)
        moving = "1"
        two.stop_worker(signal.SIGKILL)
        two.stop_server()
        machines.send()
        with three.server.client.stream("GET", CHANGES, params={"partition": moving}) as latest:
            assert latest.status_code == 503 or moving in one.active() | three.active(), "nobody can tell"
        wait_until(lambda: len(one.active() | three.active()) == PARTITIONS, HANGING_S)
        for _ in range(3):
            machines.send()
        asked = {"position_bound": machines.bound(), "wait_ms": 30_000}
        wait_until(lambda: one.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
        for follower in followers:
            wait_until(partial(follower.has, len(records(machines, follower.store))), PATIENCE_S)
    finally:
        for follower in followers:
            follower.done.set()
            follower.join()
    for follower in followers:
        check(machines, follower)


def records(machines: Machines, store: str) -> list[Record]:
    """What the log's own consumer reads."""
    topic = f"in-{machines.run}" if store == "cache" else f"changes-{machines.run}-{store}-changelog"
    return [record for record in read_all(machines.log, topic, PARTITIONS) if record.key is not None]


def check(machines: Machines, follower: Follower) -> None:
    """All that the log has, each once, in the order of its partition; and what plain Python counts."""
    assert follower.error is None, follower.error
    logged = sorted(
        (record.partition, record.offset, (record.key or b"").decode(), orjson.loads(record.value or b""))
        for record in records(machines, follower.store)
    )
    for partition in range(PARTITIONS):
        assert [each for each in follower.found if each[0] == partition] == [
            each for each in logged if each[0] == partition
        ]
    values: dict[str, list[int]] = defaultdict(list)
    for _, _, key, value in follower.found:
        values[key].append(value)
    if follower.store == "cache":
        assert values == {key: [1] * count for key, count in machines.sent.items()}
    else:
        assert all(seen == sorted(set(seen)) for seen in values.values()), "counts only grow"
        assert {key: seen[-1] for key, seen in values.items()} == machines.sent
