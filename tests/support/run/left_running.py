"""A test that fails leaves no process running, and no run does, not even one that is killed.

Whatever is started inherits two variables: whose run it is, and which test, or fixture of several tests, started it.
What a test that failed has started is killed when it is over; everything of a run when pytest has ended, by a guard.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any
from uuid import uuid4

import pytest

from support.processes import forked
from support.run import ending
from support.run.ending import OWNER

RUN = "PYTEST_STATELINE_RUN"


class LeftRunning:
    """A plugin of pytest, in each of its processes."""

    def __init__(self) -> None:
        self._process = uuid4().hex
        self._tests = 0
        self._failed = False
        if RUN not in os.environ:  # not a process that xdist started
            mark = f"{RUN}={uuid4().hex}"
            command = [sys.executable, "-I", "-S", ending.__file__, str(os.getpid()), mark]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # Ctrl-C is not for it
            os.environ[RUN] = mark.removeprefix(f"{RUN}=")
        os.environ[OWNER] = self._shared

    @property
    def _shared(self) -> str:
        return f"{self._process} shared"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._tests, self._failed = self._tests + 1, False
        owner = os.environ[OWNER] = f"{self._process} {self._tests}"
        try:
            return (yield)
        finally:
            os.environ[OWNER] = self._shared
            if self._failed:
                ending.end_marked(f"{OWNER}={owner}")
                forked.end_those_of(owner)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """What a fixture of several tests starts is not the test's that happens to be the first."""
        if fixturedef.scope == "function":
            return (yield)
        owner, os.environ[OWNER] = os.environ.get(OWNER, self._shared), self._shared
        try:
            return (yield)
        finally:
            os.environ[OWNER] = owner

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed
