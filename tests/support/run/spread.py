"""How a run's tests are spread over xdist's processes: the heaviest first, and those of one file in one process."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from support import TESTS

_FIRST = (  # of what takes longest; `.cache/slowest-tests.txt` has the figures of the last run
    # Of six processes three begin without Spark: in a fresh clone its class archive is recorded first.
    "integration/test_pipeline_crashes.py", "service/spark/operators/", "service/spark/source/",
    "integration/test_worker_crashes.py", "integration/test_chaos.py", "integration/test_demo.py", "service/spark/",
    "integration/test_spark_submit.py", "integration/test_worker_takeovers.py", "service/cli/test_reset.py",
    "integration/test_pipeline_failover.py", "integration/test_two_machines.py", "integration/", "conformance/",
    "service/server/test_fuzzing.py", "service/server/console/", "service/server/test_query_matrix.py",
    "service/worker/", "service/",
)  # fmt: skip
_SPARK, _OPERATORS = "service/spark/", "service/spark/operators/"
_TOGETHER = ("flights/", "service/server/console/")
_OWN_SESSIONS = ("test_driver_kill.py", "test_session.py")  # these start sessions in processes of their own
_BY_TEST = (
    "integration/test_worker_crashes.py",
    "integration/test_worker_takeovers.py",
    "integration/test_crash_steps.py",
    "service/worker/standbys/test_standbys.py",
)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # as above
    """A file's tests run in one process, so that what a module's fixtures start is started once; those that share a
    Spark session in two, since each session wants both processors and takes a minute to get fast; those of the demo in
    one, which reads a year of flights, and those of the console in one, which starts a browser. Files without such
    fixtures, whose tests take long, go test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0].removeprefix("tests/")
        if file in _BY_TEST:
            return nodeid
        if file.startswith(_SPARK) and not file.endswith(_OWN_SESSIONS):
            return _OPERATORS if file.startswith(_OPERATORS) else _SPARK
        return next((folder for folder in _TOGETHER if file.startswith(folder)), file)


class Spread:
    """A plugin of pytest."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByFile:
        return ByFile(config, log)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What takes long goes first: nobody shall wait for it alone at the end."""
        items.sort(key=lambda item: _place(item.path.relative_to(TESTS).as_posix()))  # stable


def _place(file: str) -> int:
    """Where this file stands in the order."""
    return next((at for at, start in enumerate(_FIRST) if file.startswith(start)), len(_FIRST))
