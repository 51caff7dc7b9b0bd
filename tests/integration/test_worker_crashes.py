"""The worker is killed with `kill -9` at random moments while it works; nothing may be lost, invented or misreported.

What is held against it, all the time, is in `crash_watch`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

import crash_app
from crash_watch import PARTITIONS, Feeder, Oracle, Watcher, start_worker
from running_worker import Stores, create, eventually, read_all
from stateline.config import load_config
from stateline.log import Log

KILLS = 50


def kill_at_random(worker: subprocess.Popen[bytes], watcher: Watcher, chance: random.Random, output: Path) -> None:
    """A third of the kills hit the start and the restore; the others hit work that is under way."""
    if chance.random() < 1 / 3:
        time.sleep(chance.uniform(0, 0.8))
    else:
        moves = watcher.moves
        eventually(
            lambda: watcher.moves > moves or worker.poll() is not None or watcher.error is not None,
            "the worker commits something",
            60,
        )
        time.sleep(chance.uniform(0, 0.25))
    assert worker.poll() is None, f"The worker ended by itself: {output.read_text()[-2_000:]}"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_worker_killed_fifty_times_over_one_load_keeps_every_promise(
    bootstrap: str, log: Log, guarantee: str, tmp_path: Path
) -> None:
    run = uuid4().hex[:8]
    app = crash_app.build(run)
    create(log, {f"numbers-{run}": PARTITIONS, f"tenths-{run}": PARTITIONS})
    settings = [
        f"bootstrap.servers={bootstrap}",
        f"processing.guarantee={guarantee}",
        f"state.dir={tmp_path / 'state'}",
        "commit.interval.ms=20",
        "group.instance.id=the-worker",
    ]
    config = load_config(app.application_id, environment={}, overrides=settings)
    exact = guarantee == "exactly_once_v2"
    oracle, output = Oracle(), tmp_path / "worker.log"
    stores = Stores(app, config, tmp_path / "scratch")
    feeder = Feeder(log, f"numbers-{run}", oracle)
    watcher = Watcher(stores, f"numbers-{run}", oracle, exact)
    chance = random.Random(f"{guarantee} {bootstrap[:8]}")
    feeder.start()
    watcher.start()
    try:
        for _ in range(KILLS):
            worker = start_worker(run, settings, output)
            kill_at_random(worker, watcher, chance, output)
        feeder.done.set()
        feeder.join()
        worker = start_worker(run, settings, output)
        ends = [len(records) - 1 for records in oracle.inputs]
        for partition, end in enumerate(ends):
            eventually(partial(watcher.finished, partition, end), "the last worker reaches the end", 60)
        worker.terminate()
        assert worker.wait(30) == 0, output.read_text()[-2_000:]
    finally:
        feeder.done.set()
        watcher.done.set()
        feeder.join()
        watcher.join()
        stores.close()
    if feeder.error or watcher.error:
        raise feeder.error or watcher.error or AssertionError
    assert watcher.moves > KILLS, "the watcher saw too little to mean anything"
    for partition, end in enumerate(ends):
        oracle.go_to(partition, end)
    forwarded = len(read_all(log, f"tenths-{run}", PARTITIONS))
    wanted = sum(n // 10 for counts in oracle.counts for n, _ in counts.values())
    assert forwarded == wanted if exact else forwarded >= wanted
