"""Positions of topics and of a pipeline, as the demo reads them from the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flights.catching_up import await_pipeline, last_position, last_records, pipeline_read_so_far
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log.embedded import EmbeddedLog
from stateline_store import DoesNotExistError, NotUpToBoundError, Position, TopicPartition
from support.processes.running_worker import create, produce


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log.db")
    yield log
    log.close()


def test_the_last_position_of_a_topic_leaves_out_the_gaps_that_transactions_leave(log: EmbeddedLog) -> None:
    create(log, {"totals": 3})
    with closing(log.producer("writer")) as producer:
        producer.init_transactions()
        for number in range(40):
            producer.begin_transaction()
            producer.produce("totals", b"k", b"%d" % number, timestamp_ms=0, partition=1)
            last = producer.flush()
            producer.commit_transaction()
    assert last_position(log, "totals") == Position.of(last)
    assert last_records(log, "totals")[TopicPartition("totals", 1)][1] == b"39"


def test_a_topic_that_does_not_exist_has_no_last_position(log: EmbeddedLog) -> None:
    with pytest.raises(DoesNotExistError, match="nowhere"):
        last_position(log, "nowhere")


def test_a_pipeline_has_read_what_its_newest_marker_says(log: EmbeddedLog) -> None:
    assert pipeline_read_so_far(log, "epochs") == Position()
    create(log, {"epochs": 1})
    assert pipeline_read_so_far(log, "epochs") == Position()
    for batch, offsets in enumerate(('{"departures":{"0":5}}', '{"departures":{"0":7,"3":1,"id":"x"}}')):
        produce(log, "epochs", [(b"delays", EpochMarker("query", batch, (offsets,), 0, {}).encode(), 0)])
    reached = Position({"departures": {0: 6, 3: 0}})
    assert pipeline_read_so_far(log, "epochs") == reached

    await_pipeline(log, "epochs", reached, lambda: None, timeout_s=5)
    with pytest.raises(NotUpToBoundError, match="pipeline did not catch up"):
        await_pipeline(log, "epochs", Position({"departures": {3: 1}}), lambda: None, timeout_s=0)
