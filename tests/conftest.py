"""Fixtures that every test folder shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kafka_broker import BrokerUnavailableError, KafkaBroker, missing_is_a_failure
from stateline.log import Log, open_log

# Examples are not timed: 200 ms, Hypothesis' own limit, are soon over beside other tests. In CI it has none either.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One real broker for each process of a session; skipped where it cannot run, a failure in CI."""
    try:
        broker = KafkaBroker()
    except BrokerUnavailableError as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        pytest.skip(str(error))
    with broker:
        yield broker


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the log of a test is that runs on both kinds in turn."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'log.db'}"
    return str(request.getfixturevalue("kafka_broker").bootstrap_servers)


@pytest.fixture
def log(bootstrap: str, tmp_path: Path) -> Iterator[Log]:
    with closing(open_log(bootstrap, tmp_path)) as made:
        yield made
