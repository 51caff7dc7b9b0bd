"""Faults of the long run, each once: a worker, three brokers and a disk, one thing after the other going wrong.

`make test` has one of three brokers. Others show the rest with one broker: a full disk (`test_sick_nodes.py`), kills
(`test_worker_crashes.py`, `test_crash_steps.py`), workers that come and go (`test_worker_takeovers.py`), former owners
(`test_former_owners.py`) and brokers that are away (`test_broker_away.py`).
`tests/chaos` has the faults and `make chaos` draws them for as long as one likes; what is held against the worker, all
the time, is in `crash_watch`.
"""

from __future__ import annotations

import random

import pytest

from chaos.cluster import KafkaCluster
from chaos.faults import FAULTS, kill_broker, possible_faults
from chaos.run import chaos, suffer
from support.kafka.kafka_broker import needed
from support.run.length import long_or_short

SHOWN = long_or_short(tuple(FAULTS), (kill_broker,))


@pytest.mark.timeout(7200)
def test_after_each_fault_a_worker_commits_again_and_every_record_counts_once() -> None:
    pace_s = long_or_short(0.02, 0.2)  # whatever is written is work for three brokers
    with needed(KafkaCluster) as cluster, chaos(cluster, "exactly_once_v2", random.Random(5), pace_s) as scene:
        for fault in possible_faults(scene):
            if fault in SHOWN:
                suffer(scene, fault)
