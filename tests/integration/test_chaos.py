"""Faults of the long run, each once: a worker, three brokers and a disk, one thing after the other going wrong.

`make test` has none of it. Others show the same with one broker: a full disk (`test_sick_nodes.py`), kills
(`test_worker_crashes.py`, `test_crash_steps.py`), workers that come and go (`test_worker_takeovers.py`), former owners
(`test_former_owners.py`) and brokers that are away (`test_broker_away.py`).
`tests/chaos` has the faults and `make chaos` draws them for as long as one likes; what is held against the worker, all
the time, is in `crash_watch`.
"""

from __future__ import annotations

import random

from chaos.cluster import KafkaCluster
from chaos.faults import possible_faults
from chaos.run import chaos, suffer
from support.kafka.kafka_broker import needed
from support.run.length import long_only


@long_only("it starts three brokers, and test_broker_away.py has one that is away")
def test_after_each_fault_a_worker_commits_again_and_every_record_counts_once() -> None:
    with needed(KafkaCluster) as cluster, chaos(cluster, "exactly_once_v2", random.Random(5), 0.02) as scene:
        for fault in possible_faults(scene):
            suffer(scene, fault)
