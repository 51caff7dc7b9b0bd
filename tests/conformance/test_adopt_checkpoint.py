"""`stateline adopt` with what a Kafka Streams application before 4.3 left when it was killed under at-least-once."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from conformance.java_left import RECORDS, SETTINGS, Left, restored, rows
from conformance.java_state import INPUTS, KEPT, PARTITIONS, feed
from stateline.cli.adopt.adoption import adopt
from stateline.log.kafka import KafkaLog
from support.kafka.java_streams import JavaStreams, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import create, eventually
from support.run.length import long_only


@long_only("test_adopt.py adopts what 4.4 leaves, and test_adopted_stores.py reads the offsets from before 4.3")
@pytest.mark.parametrize("version", ["3.6.2", "3.9.1", "4.0.0"])
def test_before_4_3_a_killed_at_least_once_application_is_adopted_at_its_last_checkpoint(
    version: str, kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    """Java writes `.checkpoint` while it runs, after a flush, as soon as a task has 10,000 new changelog records. It
    would replay from there too. Under exactly-once, it has no such file while it runs (`test_adopt.py`)."""
    needed(lambda: class_path(version))
    run = f"adopt-once-{version.replace('.', '-')}"
    inputs = {topic: f"{run}-{topic}" for topic in INPUTS}
    settings = {**SETTINGS, "processing.guarantee": "at_least_once", "statestore.cache.max.bytes": 0}
    (tmp_path / "java").mkdir()
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        create(log, dict.fromkeys(inputs.values(), PARTITIONS))
        with JavaStreams(
            log.bootstrap_servers, f"{run}-java", KEPT, tmp_path / "java",
            prefix=f"{run}-", partitions=PARTITIONS, settings=settings, version=version,
        ) as java:  # fmt: skip
            left = Left(log, java, inputs, tmp_path / "java", tmp_path / "java", "", headers=False)
            java.start()
            left.feed(0, 4_000)
            noted = [left.stopped / java.application_id / f"1_{n}/.checkpoint" for n in range(PARTITIONS)]
            eventually(lambda: all(java.changelog("count") in file.read_text() for file in noted), "Java has noted it")
            left.feed(4_000)
            feed(log, inputs, 4_000 + RECORDS, RECORDS)
            java.kill()
            adopted, plain = left.app(f"{run}-adopting"), left.app(f"{run}-restoring")
            to, beside = left.config(adopted, tmp_path / "adopted"), left.config(plain, tmp_path / "restored")
            report = adopt(adopted, to, [left.killed], dry_run=False)
            outcomes = {(each.store, each.outcome) for each in report.outcomes}
            assert {("count", "adopted"), ("tumbling", "adopted"), ("session", "adopted")} <= outcomes
            assert all("There is no offset of" in each.why for each in report.outcomes if each.outcome != "adopted")
            restored(left, adopted, to, tmp_path / "readers")
            restored(left, plain, beside, tmp_path / "readers2")
            for each, partition in product(left.declarations(), range(PARTITIONS)):
                ours, theirs = rows(adopted, to, each.name, partition), rows(plain, beside, each.name, partition)
                assert ours == theirs, (each.name, partition)
