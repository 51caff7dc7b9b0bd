"""While CI is set, a test is skipped for a listed reason or the run fails."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest


def allowed_reasons(file: Path) -> list[str]:
    """The lines of this file, without blank ones and comments."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Skipped:
    """A plugin of pytest, in the process that has every report."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed
        self._refused: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not any(allowed in reason for allowed in self._allowed):
                self._refused[reason].append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._refused:
            terminalreporter.section("skipped for reasons that tests/allowed_skips.txt does not list", red=True)
        for reason, tests in self._refused.items():
            terminalreporter.line(f"{reason}: {', '.join(tests)}")
