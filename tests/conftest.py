"""Fixtures that every test folder shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from stateline.log import Log, open_log
from support import TESTS
from support.kafka.kafka_broker import KafkaBroker, needed

# Examples are not timed: 200 ms, Hypothesis' own limit, are soon over beside other tests. In CI it has none either.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # as above
    """A file's tests run in one process, so that what a module's fixtures start is started once; those that share a
    Spark session in two, since each session wants both processors and takes a minute to get fast.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0].removeprefix("tests/")
        return _folder(file) if file.startswith("service/spark/") and not file.endswith(_DRIVERS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long goes first: nobody shall wait for it alone at the end."""
    items.sort(key=lambda item: _ORDER.index(_folder(item.path.relative_to(TESTS).as_posix())))  # stable


_ORDER = ("service/spark/operators", "service/spark", "integration", "conformance", "service", "")
_DRIVERS = ("test_driver_kill.py", "test_session.py")  # these start sessions in processes of their own


def _folder(file: str) -> str:
    return next(folder for folder in _ORDER if file.startswith(folder))


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One real broker for each process of a session; skipped where it cannot run, a failure in CI."""
    with needed(KafkaBroker) as broker:
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
