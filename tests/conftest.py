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

_TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, so that what a module's fixtures start is started once; those that share a
    Spark session in two, since each one wants both processors and takes a minute to get fast. What takes long goes
    first: nobody shall wait for it alone at the end.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _ORDER.index(_folder(item)))  # stable


_ORDER = ("service/spark/operators", "service/spark", "integration", "conformance", "service", "")


def _folder(item: pytest.Item) -> str:
    place = item.path.relative_to(_TESTS).as_posix()
    return next(folder for folder in _ORDER if place.startswith(folder))


def _group(item: pytest.Item) -> str:
    if isinstance(item, pytest.Function) and "session" in item.fixturenames:  # Spark's
        return _folder(item)
    return item.path.relative_to(_TESTS).as_posix()


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
