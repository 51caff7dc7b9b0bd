"""What the chaos run does to a worker, its brokers and its disk. Each fault ends with everything running again."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from chaos.cluster import BROKERS, KafkaCluster
from crash_watch import WatchedRun
from running_worker import eventually

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
_BALLAST = "ballast"
_MIB = 1 << 20


class Scene:
    """A watched run on a cluster, and its worker."""

    def __init__(
        self, cluster: KafkaCluster, run: WatchedRun, guarantee: str, disk: Path, chance: random.Random
    ) -> None:
        self.cluster, self.run, self.guarantee, self.disk, self.chance = cluster, run, guarantee, disk, chance
        self.starts = 0
        self.worker = self._start()

    def _start(self, **environment: str) -> subprocess.Popen[bytes]:
        self.starts += 1
        return self.run.start_worker(**environment)

    def start_again(self, **environment: str) -> None:
        """The next worker, on the same disk."""
        self.worker = self._start(**environment)

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()

    def keep_running(self) -> None:
        """A worker that has ended by itself, as it should when the log stays away or the disk is full, is started
        again, as its supervisor would."""
        if self.worker.poll() is not None:
            self.start_again()

    def until_progress(self, timeout_s: float = 120.0) -> float:
        """Seconds until two more commits were seen and found right."""
        began_s, moves = time.monotonic(), self.run.watcher.moves

        def moved() -> bool:
            self.keep_running()
            return self.run.watcher.moves > moves + 2 or self.run.watcher.error is not None

        try:
            eventually(moved, "the worker commits again", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.run.output.read_text()[-6_000:]}") from error
        if self.run.watcher.error is not None:
            raise self.run.watcher.error
        return time.monotonic() - began_s


def kill(scene: Scene) -> None:
    """kill -9 at any moment."""
    time.sleep(scene.chance.uniform(0, 0.6))
    scene.kill_worker()
    scene.start_again()


def kill_at_step(scene: Scene) -> None:
    """kill -9 at a step of a commit, which the next worker comes to."""
    scene.kill_worker()
    step = scene.chance.choice(STEPS[scene.guarantee])
    scene.start_again(STATELINE_CRASH_AT=f"{step}#{scene.chance.randint(1, 3)}")
    scene.worker.wait(120)
    scene.start_again()


def pause_worker(scene: Scene) -> None:
    """It hangs for longer than its session and its transaction may last, and then goes on as if nothing had been."""
    _hang(scene.worker, max(SESSION_S, TRANSACTION_S) + scene.chance.uniform(1, 3))


def second_generation(scene: Scene) -> None:
    """Another worker of the same identity starts while the first one hangs, which then wakes up."""
    older = scene.worker
    older.send_signal(signal.SIGSTOP)
    scene.start_again()
    time.sleep(scene.chance.uniform(0.5, 3))
    older.send_signal(signal.SIGCONT)
    eventually(lambda: older.poll() is not None or scene.worker.poll() is not None, "one of the two gives way", 90)
    if older.poll() is None:
        older.terminate()
        older.wait(90)


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
    ballast = scene.disk / _BALLAST
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(_MIB)):
                pass
        except OSError:
            pass  # full
        time.sleep(scene.chance.uniform(1, 4))
    ballast.unlink()


FAULTS: Mapping[Callable[[Scene], None], int] = {
    kill: 12,
    kill_at_step: 12,
    pause_worker: 1,
    second_generation: 1,
    kill_broker: 1,
    kill_all_brokers: 1,
    pause_broker: 1,
    move_leader: 1,
    fill_disk: 1,
}
"""Fault → how often, in proportion, it is drawn."""


def _hang(process: subprocess.Popen[bytes], seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)
