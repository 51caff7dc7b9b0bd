"""Two workers on two disks; one after the other is killed with `kill -9`, and the other takes its tasks over.

Some of the dead lose their disk, some come back before anybody has noticed that they were gone. What is held against
both disks, all the time, is in `crash_watch`.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.config.loading import load_config
from stateline.log import Log
from support.apps import crash_app
from support.oracles.crash_watch import COMMIT_MS, PARTITIONS, Feeder, Oracle, Watcher, check_forwarded, start_worker
from support.processes.forked import Forked
from support.processes.running_worker import Stores, create, eventually
from support.run.length import long_or_short
from support.run.patience import HANGING_S

KILLS = long_or_short(8, 4)
RESTORE_SLICE = 100  # records: what a new disk has to restore takes many
SESSION_MS = {"embedded": 1_500, "kafka": 3_000}
# Who is killed in the middle of a transaction holds up who takes over for so long (a minute by default).
TRANSACTION_MS = 4_000


class Machine:
    """A worker with a disk of its own, and the watcher of that disk."""

    def __init__(self, name: str, root: Path, run: str, inputs: Oracle, settings: Sequence[str], exact: bool) -> None:
        self.root, self.state_dir, self.output = root, root / name, root / f"{name}.log"
        self.run, self.inputs, self.exact = run, inputs, exact
        self.settings = [*settings, f"state.dir={self.state_dir}", f"group.instance.id={name}"]
        self.moves = 0
        self._watch()

    def start(self) -> None:
        self.worker: Forked = start_worker(self.run, self.settings, self.output, RESTORE_SLICE)

    def kill(self) -> None:
        assert self.worker.poll() is None, f"The worker ended by itself: {self.output.read_text()[-2_000:]}"
        os.kill(self.worker.pid, signal.SIGKILL)
        self.worker.wait()

    def lose_disk(self) -> None:
        self.stop_watching()
        shutil.rmtree(self.state_dir)
        self._watch()

    def caught_up(self, ends: Sequence[int]) -> bool:
        """Whether this disk has seen that much of every partition, or something is wrong."""
        self.check()
        return all(self.watcher.finished(partition, end) for partition, end in enumerate(ends))

    def check(self) -> None:
        if self.watcher.error is not None:
            raise self.watcher.error

    def stop_watching(self) -> None:
        self.watcher.done.set()
        self.watcher.join()
        self._stores.close()
        self.moves += self.watcher.moves
        self.check()

    def _watch(self) -> None:
        app = crash_app.build(self.run)
        config = load_config(app.application_id, environment={}, overrides=self.settings)
        self._stores = Stores(app, config, self.root / "scratch" / uuid4().hex)
        self.watcher = Watcher(self._stores, f"numbers-{self.run}", self.inputs, self.exact)
        self.watcher.start()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_tasks_of_killed_workers_go_on_where_they_were_on_the_other_disk(
    bootstrap: str, log: Log, guarantee: str, tmp_path: Path
) -> None:
    run = uuid4().hex[:8]
    create(log, {f"numbers-{run}": PARTITIONS, f"tenths-{run}": PARTITIONS})
    settings = [
        f"bootstrap.servers={bootstrap}",
        f"processing.guarantee={guarantee}",
        f"session.timeout.ms={SESSION_MS['embedded' if bootstrap.startswith('embedded') else 'kafka']}",
        f"commit.interval.ms={COMMIT_MS}",
        f"transaction.timeout.ms={TRANSACTION_MS}",
    ]
    exact = guarantee == "exactly_once_v2"
    oracle = Oracle()
    machines = [Machine(name, tmp_path, run, oracle, settings, exact) for name in ("one", "two")]
    feeder = Feeder(log, f"numbers-{run}", oracle)
    feeder.start()
    try:
        for machine in machines:
            machine.start()
        for number in range(KILLS):
            _kill_and_take_over(machines[number % 2], machines[1 - number % 2], number, oracle)
        feeder.done.set()
        feeder.join()
        machines[1].kill()
        ends = [len(records) - 1 for records in oracle.inputs]
        eventually(partial(machines[0].caught_up, ends), "the last worker reaches the end")
        machines[0].worker.terminate()
        assert machines[0].worker.wait(HANGING_S) == 0, machines[0].output.read_text()[-2_000:]
    finally:
        feeder.done.set()
        feeder.join()
        for machine in machines:
            machine.worker.kill()
            machine.stop_watching()
    if feeder.error:
        raise feeder.error
    assert all(machine.moves > KILLS for machine in machines), "a watcher saw too little to mean anything"
    check_forwarded(log, run, oracle, exact=exact)


def _kill_and_take_over(victim: Machine, heir: Machine, number: int, oracle: Oracle) -> None:
    """Kill one; of four times, three the other one takes over, two the disk is lost."""
    case = number // (KILLS // 4) % 4
    moves = victim.watcher.moves
    eventually(lambda: _moved(victim, moves), "the worker commits something")
    victim.kill()
    at_the_kill = [len(records) - 1 for records in oracle.inputs]
    if case != 3:
        eventually(partial(heir.caught_up, at_the_kill), "the other worker takes over")
    if case % 2:
        victim.lose_disk()
    victim.start()


def _moved(machine: Machine, moves: int) -> bool:
    machine.check()
    return machine.watcher.moves > moves or machine.worker.poll() is not None
