"""What a run was doing when it was stopped: CI shows the end of the output only."""

from __future__ import annotations

import sys
import time

import pytest


class Unfinished:
    """A plugin of pytest, in the process that has every report."""

    def __init__(self) -> None:
        self._begun_s: dict[str, float] = {}
        self._ended = 0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun_s[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun_s.pop(nodeid, None)
        self._ended += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # with its process, maybe: then nothing else is said of its end
            self._begun_s.pop(report.nodeid, None)

    def pytest_unconfigure(self) -> None:
        """Not in the summary: what pytest lists there for each skipped test comes behind it."""
        if self._begun_s:
            lines = [f"{time.monotonic() - begun_s:6.0f} s  {test}" for test, begun_s in self._begun_s.items()]
            sys.stdout.write("\n".join([f"Stopped after {self._ended} tests, while these ran:", *lines, ""]))
