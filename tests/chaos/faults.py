"""What the chaos run does to a worker, its brokers and its disk. Each fault ends with everything running again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from chaos.cluster import BROKERS
from chaos.scene import FIRST, PATIENCE_S, SECOND, Scene
from support.processes.forked import Forked
from support.processes.running_worker import eventually
from support.processes.small_disk import full

SESSION_S = 6.0  # a worker that is silent for longer loses its partitions
TRANSACTION_S = 6.0  # a transaction that is open for longer is aborted by the broker
STEPS = {
    "exactly_once_v2": (
        "commit:begun",
        "commit:changes-produced",
        "commit:changes-flushed",
        "commit:offsets-sent",
        "commit:log-committed",
        "commit:batch-ready",
        "commit:batch-written",
        "commit:store-committed",
        "commit:store-announced",
        "commit:task-committed",
        "commit:task-announced",
    ),
    "at_least_once": (
        "commit:begun",
        "commit:still-owner",
        "commit:changes-produced",
        "commit:changes-flushed",
        "commit:unlogged-committed",
        "commit:log-committed",
        "commit:batch-written",
        "commit:store-announced",
        "commit:task-committed",
        "commit:task-announced",
    ),
}


def kill(scene: Scene) -> None:
    """kill -9 at any moment."""
    time.sleep(scene.chance.uniform(0, 0.6))
    scene.kill()
    scene.start()


def kill_at_step(scene: Scene) -> None:
    """kill -9 at a step of a commit, which the next worker comes to."""
    scene.kill()
    step = scene.chance.choice(STEPS[scene.guarantee])
    scene.start(STATELINE_CRASH_AT=f"{step}#{scene.chance.randint(1, 3)}")
    scene.let_go().wait(PATIENCE_S)
    scene.start()


def pause_worker(scene: Scene) -> None:
    """It hangs for longer than its session and its transaction may last, and then goes on as if nothing had been."""
    _hang(scene.workers[FIRST], max(SESSION_S, TRANSACTION_S) + scene.chance.uniform(1, 3))


def second_generation(scene: Scene) -> None:
    """Another worker of the same identity starts while the first one hangs, which then wakes up."""
    older = scene.let_go()
    older.send_signal(signal.SIGSTOP)
    younger = scene.start()
    time.sleep(scene.chance.uniform(0.5, 3))
    older.send_signal(signal.SIGCONT)
    gone = "one of the two gives way"
    eventually(lambda: older.poll() is not None or younger.poll() is not None, gone, PATIENCE_S)
    if older.poll() is None:
        older.terminate()
        older.wait(PATIENCE_S)


def another_joins(scene: Scene) -> None:
    """A second worker comes to the same directory, takes tasks over and works; then it stops, dies or hangs, or the
    first one dies. A static member that is gone has its partitions until its session is over."""
    scene.start(SECOND)
    if scene.chance.random() < _SHARED:
        _share(scene)
    else:  # in the middle of its start, or of the rebalance
        time.sleep(scene.chance.uniform(0.5, 5))
    ending = scene.chance.choice(_ENDINGS)
    print(f"{ending.__name__} …", flush=True)
    ending(scene)


def _share(scene: Scene) -> None:
    """Both have tasks, and all of them get on for some seconds."""
    both = (FIRST, SECOND)
    scene.until(lambda: all(scene.running_tasks(name) for name in both), "both workers have tasks")
    scene.until_all_move()
    time.sleep(scene.chance.uniform(0, 3))
    scene.until_all_move()


def _second_stops(scene: Scene) -> None:
    second = scene.let_go(SECOND)
    second.terminate()
    code = second.wait(PATIENCE_S)
    assert code in (0, -signal.SIGTERM), f"The second worker was told to stop and has ended with {code}."


def _second_is_killed(scene: Scene) -> None:
    scene.kill(SECOND)


def _first_is_killed(scene: Scene) -> None:
    """The second one goes on alone, or not yet, when the first one comes back."""
    scene.kill()
    if scene.chance.random() < 0.5:
        scene.until(lambda: scene.running_tasks(SECOND) == scene.tasks, "the second worker has all tasks")
        scene.until_all_move()
    scene.start()
    time.sleep(scene.chance.uniform(0, 4))
    _second_stops(scene)


def _second_hangs(scene: Scene) -> None:
    """Its tasks are given to the first one, which cannot open them: the one that hangs has their directories."""
    second = scene.workers[SECOND]
    second.send_signal(signal.SIGSTOP)
    time.sleep(SESSION_S + scene.chance.uniform(1, 6))
    scene.until_progress()
    second.send_signal(signal.SIGCONT)
    scene.until_all_move()
    _second_stops(scene)


_SHARED = 0.75
_ENDINGS = (_second_stops, _second_is_killed, _first_is_killed, _second_hangs)


def kill_broker(scene: Scene) -> None:
    """One of three is killed; two go on."""
    broker = scene.chance.choice(scene.cluster.brokers)
    broker.kill()
    time.sleep(scene.chance.uniform(0, 4))
    broker.restart(wait=False)
    scene.cluster.wait_until_whole()


def kill_all_brokers(scene: Scene) -> None:
    """The whole log is away for some seconds."""
    for broker in scene.cluster.brokers:
        broker.kill()
    time.sleep(scene.chance.uniform(0, 5))
    for broker in scene.cluster.brokers:
        broker.restart(wait=False)
    scene.cluster.wait_until_whole()


def pause_broker(scene: Scene) -> None:
    """One of three hangs for longer than the others wait for it."""
    broker = scene.chance.choice(scene.cluster.brokers)
    broker.pause()
    time.sleep(scene.chance.uniform(3, 6))
    broker.go_on()
    scene.cluster.wait_until_whole()


def move_leader(scene: Scene) -> None:
    """The leader of an input partition ends in order; when it is back it leads again."""
    leader = scene.cluster.leader_of(scene.run.topic)
    broker = scene.cluster.brokers[leader if 0 <= leader < BROKERS else 0]
    broker.stop()
    time.sleep(scene.chance.uniform(0, 2))
    broker.restart(wait=False)
    scene.cluster.wait_until_whole()
    scene.cluster.give_back_leaders()


def fill_disk(scene: Scene) -> None:
    """Nothing can be written to the state directory's disk for some seconds."""
    with full(scene.disk):
        time.sleep(scene.chance.uniform(1, 4))


Fault = Callable[[Scene], None]
FAULTS: Mapping[Fault, int] = {
    kill: 12,
    kill_at_step: 12,
    pause_worker: 1,
    second_generation: 1,
    another_joins: 2,
    kill_broker: 1,
    kill_all_brokers: 1,
    pause_broker: 1,
    move_leader: 1,
    fill_disk: 1,
}
"""Fault → how often, in proportion, it is drawn."""


def possible_faults(scene: Scene) -> list[Fault]:
    """All of them in their order, `fill_disk` only on a disk of its own."""
    return [fault for fault in FAULTS if scene.disk_is_small or fault is not fill_disk]


def _hang(process: Forked, seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)
