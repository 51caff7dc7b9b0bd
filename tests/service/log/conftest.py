"""The two logs that every contract test runs against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from support.kafka.shared_broker import SharedBroker
from support.log.log_bench import Bench


@pytest.fixture(params=["embedded", "kafka"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "embedded":
        log: Log = EmbeddedLog(tmp_path / "log.db", session_timeout_ms=2000)
    else:
        broker: SharedBroker = request.getfixturevalue("kafka_broker")
        log = KafkaLog(broker.bootstrap_servers, session_timeout_ms=2000, transaction_timeout_ms=10_000)
    bench = Bench(log)
    yield bench
    bench.close()
