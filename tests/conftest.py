"""Fixtures that every test folder shares."""

from __future__ import annotations

import gc
import os
import ssl
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import certifi
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

from stateline.log import Log, open_log
from support import CACHE, TESTS
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker, shared_broker
from support.run.left_running import LeftRunning
from support.run.length import is_for_the_long_run, make_long
from support.run.patience import HANGING_S
from support.run.skipped import Skipped, allowed_reasons
from support.run.slowest import Slowest
from support.run.spread import Spread
from support.run.unfinished import Unfinished
from support.spark.forked_python import forked_python

# A scan process more for each server that a test starts would cost the gate minutes. Tests of it ask for one.
os.environ.setdefault("STATELINE_SERVER_SCAN_PROCESSES", "0")

# Examples are not timed: 200 ms, Hypothesis' own limit, are soon over beside other tests. In CI it has none either.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Nor are requests: httpx waits 5 s for an answer unless it is told otherwise, and a slow machine may need longer.
DEFAULT_TIMEOUT_CONFIG.read = HANGING_S


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="every count in full, for releases: `make test-all`")


@pytest.hookimpl(tryfirst=True)  # the plugin of timeouts reads its option when it is configured
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        make_long()
        config.option.timeout = config.option.timeout or 0  # none
    gc.disable()  # until what is collected is there, which takes it an eighth longer
    config.pluginmanager.register(LeftRunning())
    if not hasattr(config, "workerinput"):  # xdist's processes hand their reports on to the one that started them
        config.pluginmanager.register(Slowest(CACHE / "slowest-tests.txt"))
        config.pluginmanager.register(Skipped(allowed_reasons(TESTS / "allowed_skips.txt")))
        config.pluginmanager.register(Unfinished())
    config.pluginmanager.register(Spread())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left_out if is_for_the_long_run(item) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """The tests are there for as long as the process: a tenth of its time went into looking for any to be freed."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """Or else each client of httpx reads the certificates of all well-known authorities when it is made, which takes it
    longer than fifty requests. Whoever names a file of its own reads that."""
    given, well_known = ssl.create_default_context, os.environ.get("SSL_CERT_FILE") or certifi.where()
    once = cache(partial(given, cafile=well_known))

    def create(*arguments: Any, **named: Any) -> ssl.SSLContext:
        return once() if not arguments and named == {"cafile": well_known} else given(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create)
        yield


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> SharedBroker:
    """The real broker that a run's processes share; skipped where it cannot run, a failure in CI."""
    own = tmp_path_factory.getbasetemp()
    return needed(lambda: shared_broker(own if worker_id == "master" else own.parent))


@pytest.fixture(scope="session")
def python_of_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark's own Python processes, of this process and of those that it starts, are forked from one that is there."""
    with forked_python(tmp_path_factory.mktemp("python")):
        yield


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
