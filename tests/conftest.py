"""Fixtures that every test folder shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_broker import BrokerUnavailableError, KafkaBroker, missing_is_a_failure


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One real broker for the whole session; skipped where it cannot run, a failure in CI."""
    try:
        broker = KafkaBroker()
    except BrokerUnavailableError as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        pytest.skip(str(error))
    with broker:
        yield broker
