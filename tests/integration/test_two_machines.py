"""Two machines, each with a directory, a worker and a server of its own, in one group on a real broker: a copy whose
task may be owned elsewhere does not answer, and never do two say that they are the owner's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.deployment.configured_log import configured_log
from stateline.server.state.group_watch import GroupState, GroupWatch
from stateline.worker.restore.store_restore import StoreRestore
from stateline_store import TopicPartition
from support.kafka.commit_proxy import CommitProxy
from support.kafka.kafka_broker import KafkaBroker, needed
from support.processes.machines import PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import running
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

LISTENERS = ("ONE", "TWO")
LOOKS_S = 0.03  # between looks whether two say that they are the owner's
SESSION_MS = 3_000  # what most of these wait for
SETTINGS = [f"{name}.timeout.ms={SESSION_MS}" for name in ("session", "transaction")]
SETTINGS += [f"max.poll.interval.ms={SESSION_MS}"]


@pytest.fixture(scope="module")
def proxies() -> Iterator[dict[str, CommitProxy]]:
    """What stands between each machine and the broker."""
    found = {name: CommitProxy(free_port()) for name in LISTENERS}
    yield found
    for proxy in found.values():
        proxy.close()


@pytest.fixture(scope="module")
def broker(proxies: dict[str, CommitProxy]) -> Iterator[KafkaBroker]:
    plain, control = "PLAINTEXT://127.0.0.1:{broker_port}", "CONTROLLER://127.0.0.1:{controller_port}"
    own = {name: f"{name}://127.0.0.1" for name in LISTENERS}
    maps = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT," + ",".join(f"{name}:PLAINTEXT" for name in LISTENERS)
    settings = {
        "listeners": ",".join([plain, control, *(f"{own[name]}:{proxies[name].target}" for name in LISTENERS)]),
        "advertised.listeners": ",".join([plain, *(f"{own[name]}:{proxies[name].port}" for name in LISTENERS)]),
        "listener.security.protocol.map": maps,
        "inter.broker.listener.name": "PLAINTEXT",
        "group.min.session.timeout.ms": str(SESSION_MS),
    }
    with needed(lambda: KafkaBroker(settings=settings)) as broker:
        yield broker


class Scene:
    """Both, and the proxies that stand before Kafka."""

    def __init__(self, machines: Machines, proxies: dict[str, CommitProxy], stack: ExitStack) -> None:
        self._stack = stack
        self.machines = machines
        self.one, self.two = machines.every.values()
        self.proxies = proxies
        self.send, self.bound = machines.send, machines.bound

    def group_members(self) -> int:
        """How many workers the group has, as Kafka says."""
        with closing(self.machines.log.admin()) as admin:
            return len(admin.members(self.machines.app.application_id))

    @contextmanager
    def restoring(self, machine: Machine) -> Iterator[None]:
        """A worker of this machine in the test's process, that has read and committed all of its changelogs and never
        comes to their end."""
        config = load_config(self.machines.app.application_id, environment={}, overrides=machine.settings)
        with pytest.MonkeyPatch.context() as patched, closing(configured_log(config)) as log:
            patched.setattr(StoreRestore, "finish", lambda restore, level: restore.commit())
            patched.setattr(StoreRestore, "remaining", 1)
            with running(self.machines.app, config, log):
                wait_until(lambda: states(machine.server.client) == {"restoring"}, HANGING_S)
                yield

    def served_anew(self, machine: Machine) -> httpx.Client:
        """A server of this machine's directory that knows of nothing that has happened."""
        served = served_here(
            self.machines.root / machine.name, *machine.settings, app=self.machines.app, until_ready=False
        )
        return self._stack.enter_context(served).client


@pytest.fixture
def scene(broker: KafkaBroker, proxies: dict[str, CommitProxy], tmp_path: Path) -> Iterator[Scene]:
    ways = {name: f"127.0.0.1:{proxy.port}" for name, proxy in proxies.items()}
    with ExitStack() as stack:
        yield Scene(Machines(ways, broker.bootstrap_servers, tmp_path, stack, *SETTINGS), proxies, stack)
        for proxy in proxies.values():
            proxy.mend()


def both_own_one(scene: Scene) -> bool:
    return len(scene.one.active()) == 1 and len(scene.two.active()) == 1


def test_what_has_moved_to_the_other_machine_is_not_answered_from_the_files_that_it_left(scene: Scene) -> None:
    scene.send()
    scene.one.start_worker()
    wait_until(lambda: scene.one.active() == {"0", "1"}, HANGING_S)
    scene.two.start_worker()
    wait_until(lambda: both_own_one(scene), HANGING_S)
    (moved,) = scene.two.active()
    assert not_answered(scene.one, moved), "from the moment on in which somebody else may have it"
    scene.send()
    for machine, other in ((scene.one, scene.two), (scene.two, scene.one)):
        foreign = other.active()
        (owned,) = machine.active()
        for _ in range(20):
            told = machine.get("/v1/stores/counts/range", wait_ms=0)
            assert told.status_code in (421, 503), told.text
            assert set(machine.partitions()) == {owned}, "a range holds no rows of a copy that others go on with"
        assert foreign != {owned}
        why = machine.get("/v1/nodes").json()["nodes"]
        assert {name: each["reached"] for name, each in why.items()} == {machine.name: True, other.name: False}
        assert all("by certificates (node.peer.tls.…)" in each["fault"] for each in why.values())
    loose: dict[str, Any] = {"lag_records": 0}

    def knows_how_far_it_is_behind() -> bool:
        loose.update(scene.one.partitions(max_staleness_ms=10**9).get(moved, {}))
        return (loose["lag_records"] or 0) > 0

    wait_until(knows_how_far_it_is_behind, HANGING_S)
    assert loose["served_by"] == "standby"
    assert 0 < loose["lag_ms"] < 60_000
    assert moved not in scene.one.partitions(max_staleness_ms=0), "it is behind by a record of each key"


def not_answered(machine: Machine, partition: str) -> bool:
    return partition not in machine.partitions()


@long_only("the worker that is cut off from Kafka stops before its successor begins")
def test_of_a_stopped_worker_and_its_successor_one_says_active_at_any_time(scene: Scene) -> None:
    scene.send()
    scene.one.start_worker()
    scene.two.start_worker()
    wait_until(lambda: both_own_one(scene), HANGING_S)
    assert scene.one.worker is not None
    (stopped,) = scene.one.active()
    scene.one.worker.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    both: list[float] = []

    def successor_is_active() -> bool:
        mine, theirs = scene.one.active(), scene.two.active()  # the former owner first: it must have let go before
        if mine & theirs:
            both.append(time.monotonic() - began_s)
        return stopped in theirs

    wait_until(successor_is_active, HANGING_S, LOOKS_S)
    for _ in range(50):
        assert not scene.one.active()
        time.sleep(0.02)
    assert not both
    asked = {"require_active": "true", "isolation_level": "read_committed"}
    assert scene.one.get("/v1/stores/counts/range", **asked).status_code in (421, 503)
    scene.one.worker.send_signal(signal.SIGCONT)
    for _ in range(200):
        assert not scene.one.active() & scene.two.active()
        time.sleep(0.01)


def test_a_machine_that_is_cut_off_from_kafka_lets_go_before_its_successor_begins(scene: Scene) -> None:
    scene.send()
    scene.one.start_worker()
    scene.two.start_worker()
    wait_until(lambda: both_own_one(scene), HANGING_S)
    (cut,) = scene.one.active()
    scene.proxies[scene.one.name].cut()
    both: list[str] = []

    def successor_is_active() -> bool:
        mine, theirs = scene.one.active(), scene.two.active()
        both.extend(mine & theirs)
        return cut in theirs

    wait_until(successor_is_active, HANGING_S, LOOKS_S)
    assert not both
    assert not_answered(scene.one, cut), "nobody there can say who has it"
    scene.send()
    answer = scene.one.get("/v1/stores/counts/range", position_bound=scene.bound())
    assert answer.status_code in (412, 503)
    given = scene.two.get("/v1/stores/counts/range", limit=1).json()
    knows_nobody = scene.served_anew(scene.one)
    for client, reason in ((scene.one.server.client, "CURSOR_EXPIRED"), (knows_nobody, "NOT_READY")):
        refused = client.get("/v1/stores/counts/range", params={"cursor": given["cursor"]})
        assert refused.json()["reason"] == reason, refused.text
    scene.proxies[scene.one.name].mend()


@long_only("the one that is cut off from Kafka has lost its lease before its successor begins, too")
def test_who_has_the_name_of_another_machines_worker_waits_until_that_has_lost_its_lease(scene: Scene) -> None:
    scene.send()
    scene.one.start_worker()
    wait_until(lambda: scene.one.active() == {"0", "1"}, HANGING_S)
    scene.two.settings.append(f"node.name={scene.one.name}")
    assert scene.one.worker is not None
    scene.one.worker.send_signal(signal.SIGSTOP)
    scene.two.start_worker()
    both: list[str] = []

    def successor_has_all() -> bool:
        mine, theirs = scene.one.active(), scene.two.active()
        both.extend(mine & theirs)
        return theirs == {"0", "1"}

    wait_until(successor_has_all, HANGING_S, LOOKS_S)
    assert not both
    assert not scene.one.partitions()


def test_what_another_machine_has_gone_on_with_is_not_answered_here_when_all_workers_have_ended(scene: Scene) -> None:
    """Nothing in the directory tells when the worker there was killed, and the server was started anew behind all of
    it. The group's offsets do, which have the name of who has committed them."""
    goes_on_alone(scene, scene.one)
    what_two_has_is_not_answered_at_one(scene)


@long_only("the test above has what was left, and test_told_of_nodes.py what is being restored")
def test_nor_is_what_is_being_restored(scene: Scene) -> None:
    goes_on_alone(scene, scene.one)
    covered = scene.bound()
    scene.two.start_worker(STATELINE_TEST_STOP_AT="restore:begun")
    assert scene.two.worker is not None
    wait_until(partial(is_stopped, scene.two.worker.pid), HANGING_S)
    answers_nothing(scene.two)
    scene.two.stop_worker(signal.SIGKILL)
    answers_nothing(scene.two)
    what_two_has_is_not_answered_at_one(scene)
    with scene.restoring(scene.one):
        for _ in range(20):
            assert_restoring(scene.one.get("/v1/stores/counts/range"))
        assert_restoring(scene.one.get("/v1/stores/counts/range", position_bound=covered))
        with kafka_is_slow() as answers:
            anew = scene.served_anew(scene.one)
            wait_until(lambda: states(anew) == {"restoring"}, HANGING_S)
            assert_restoring(anew.get("/v1/stores/counts/range"))
            answers.set()
            for _ in range(20):
                assert_restoring(anew.get("/v1/stores/counts/range"))
    for client in (scene.one.server.client, anew):  # its rows are newer than the Position that they would be told with
        for allowed in ({"position_bound": covered}, {"max_staleness_ms": "60000"}):
            told = client.get("/v1/stores/counts/range", params=allowed)
            assert (told.status_code, told.json().get("reason")) == (503, "NOT_ACTIVE"), told.text
            assert "was not wholly restored" in told.json()["detail"]


def what_two_has_is_not_answered_at_one(scene: Scene) -> None:
    """The second machine takes all, and both are asked when no worker is left."""
    before = goes_on_alone(scene, scene.two)
    wait_until(lambda: not scene.group_members(), HANGING_S)
    old, new = scene.served_anew(scene.one), scene.served_anew(scene.two)
    wait_until(lambda: new.get("/v1/stores/counts/range").status_code == 200, HANGING_S)
    assert {e["key"]: e["value"] for e in new.get("/v1/stores/counts/range").json()["entries"]} == before
    for _ in range(50):
        told = old.get("/v1/stores/counts/range")
        assert told.status_code == 503, told.text
        assert told.json()["reason"] == "NOT_ACTIVE"
        time.sleep(0.05)


def states(client: httpx.Client) -> set[str]:
    return {each["state"] for each in client.get("/v1/stores/counts").json()["partitions"].values()}


def assert_restoring(told: httpx.Response) -> None:
    assert (told.status_code, told.json().get("reason")) == (503, "NOT_ACTIVE"), told.text
    assert "is being restored" in told.json()["detail"]


@contextmanager
def kafka_is_slow() -> Iterator[threading.Event]:
    """It tells servers that are begun now nothing of the group before the event is set."""
    answers, ask = threading.Event(), GroupWatch._ask

    def slowly(watch: GroupWatch, sources: Collection[TopicPartition]) -> GroupState | None:
        answers.wait(HANGING_S)
        return ask(watch, sources)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GroupWatch, "_ask", slowly)
        yield answers
        answers.set()


# Kafka's word that nobody else is there counts for 250 ms. A busy machine may take longer to hear it.
PATIENT_MS = 10_000
ALONE_S = 2.0  # for how long a machine that is cut off is asked


@long_only("test_claims.py has who counts as the owner while Kafka is silent, and when it answers again")
def test_a_machine_alone_answers_through_an_outage_of_kafka_until_a_neighbour_comes(
    broker: KafkaBroker, proxies: dict[str, CommitProxy], tmp_path: Path
) -> None:
    write_secret(tmp_path)
    settings = [*SETTINGS, f"node.peer.secret.file={tmp_path / 'secret'}"]
    proxy = proxies["ONE"]
    with ExitStack() as stack:
        stack.callback(proxy.mend)
        way = {"one": f"127.0.0.1:{proxy.port}"}
        machines = Machines(way, broker.bootstrap_servers, tmp_path, stack, *settings)
        one, sent = machines.every["one"], machines.send()
        one.start_worker()
        asked = {"position_bound": machines.bound(), "wait_ms": 5_000}
        wait_until(lambda: one.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
        watch, workers = one.server.serving.group, one.server.serving.workers
        assert watch is not None
        wait_until(lambda: workers.assigned_at_ms > 0 and watch.has_said(workers.assigned_at_ms), HANGING_S)
        proxy.cut()
        wait_until(lambda: not one.active(), HANGING_S)
        until_s = time.monotonic() + SESSION_MS / 1000 + ALONE_S
        while time.monotonic() < until_s:
            told = one.get("/v1/stores/counts/range", wait_ms=PATIENT_MS)
            assert told.status_code == 200, told.text
            assert {entry["key"]: entry["value"] for entry in told.json()["entries"]} == sent
            time.sleep(0.1)
        assert {each["served_by"] for each in told.json()["partitions"].values()} == {"standby"}
        two = machines.add("two", broker.bootstrap_servers)
        two.start_worker()
        wait_until(lambda: two.active() == {"0", "1"}, HANGING_S)
        refused = one.get("/v1/stores/counts/range")
        assert (refused.status_code, refused.json()["reason"]) == (503, "NOT_ACTIVE"), refused.text


def goes_on_alone(scene: Scene, machine: Machine) -> dict[str, int]:
    """It takes all that is written then, and is killed; what that was."""
    sent = scene.send()
    machine.start_worker()
    wait_until(lambda: machine.active() == {"0", "1"}, HANGING_S)
    asked = {"position_bound": scene.bound(), "wait_ms": 5_000}
    wait_until(lambda: machine.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
    machine.stop_worker(signal.SIGKILL)
    return sent


def answers_nothing(machine: Machine) -> None:
    for _ in range(50):
        told = machine.get("/v1/stores/counts/range")
        assert (told.status_code, told.json().get("reason")) == (503, "NOT_ACTIVE"), told.text
        time.sleep(0.02)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@long_only("test_stopped_run.py has one node that answers when its worker has ended")
def test_one_machine_alone_answers_when_its_worker_has_ended(scene: Scene) -> None:
    sent = scene.send()
    scene.one.start_worker()
    asked = {"position_bound": scene.bound(), "wait_ms": 5_000}
    wait_until(lambda: scene.one.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if scene.one.worker is None:
            scene.one.start_worker()
            wait_until(lambda: scene.one.active() == {"0", "1"}, HANGING_S)
        scene.one.stop_worker(number)
        began_s = time.monotonic()
        while time.monotonic() < began_s + SESSION_MS / 1000 + 2:
            told = scene.one.get("/v1/stores/counts/range", wait_ms=PATIENT_MS)
            assert told.status_code == 200, told.text
            assert {entry["key"]: entry["value"] for entry in told.json()["entries"]} == sent
            time.sleep(0.1)
        copies = scene.one.partitions().values()
        assert [(c["served_by"], c["lag_records"], c["lag_ms"]) for c in copies] == [("standby", 0, 0)] * PARTITIONS
