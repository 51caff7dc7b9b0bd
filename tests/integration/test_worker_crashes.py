"""The worker is killed with `kill -9` at random moments while it works; nothing may be lost, invented or misreported.

What is held against it, all the time, is in `crash_watch`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from stateline.log import Log
from stateline.log.kafka import KafkaLog
from support.kafka.kafka_broker import KafkaBroker, needed
from support.oracles.crash_watch import WatchedRun, Watcher
from support.processes.forked import Forked
from support.processes.running_worker import eventually
from support.run.length import long_or_short

KILLS = long_or_short(50, 4)


def kill_at_random(worker: Forked, watcher: Watcher, chance: random.Random, output: Path) -> None:
    """A third of the kills hit the start and the restore; the others hit work that is under way."""
    if chance.random() < 1 / 3:
        time.sleep(chance.uniform(0, 0.4))
    else:
        moves = watcher.moves
        eventually(
            lambda: watcher.moves > moves or worker.poll() is not None or watcher.error is not None,
            "the worker commits something",
        )
        time.sleep(chance.uniform(0, 0.25))
    assert worker.poll() is None, f"The worker ended by itself: {output.read_text()[-2_000:]}"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_worker_killed_again_and_again_over_one_load_keeps_every_promise(
    bootstrap: str, log: Log, guarantee: str, tmp_path: Path
) -> None:
    chance = random.Random(f"{guarantee} {bootstrap[:8]}")
    with WatchedRun(bootstrap, log, guarantee, tmp_path) as run:
        for _ in range(KILLS):
            kill_at_random(run.start_worker(), run.watcher, chance, run.output)
        moves = run.watcher.moves  # of workers that were killed
        run.work_off()
    assert moves >= KILLS // 2, "the watcher saw too little to mean anything"
    run.check_forwarded()


def test_a_worker_on_a_broker_of_kafka_4_3_commits_is_killed_and_goes_on(tmp_path: Path) -> None:
    with (
        needed(lambda: KafkaBroker(version="4.3.1")) as broker,
        closing(KafkaLog(broker.bootstrap_servers)) as log,
        WatchedRun(broker.bootstrap_servers, log, "exactly_once_v2", tmp_path) as run,
    ):
        worker = run.start_worker()
        eventually(lambda: run.watcher.moves > 20 or run.watcher.error is not None, "the worker commits")
        worker.kill()
        worker.wait()
        assert run.watcher.error is None
        run.work_off()
        run.check_forwarded()
