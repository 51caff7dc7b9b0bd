"""While CI is set, a run fails for a skip that is not listed: shown by runs of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS
from support.run.length import long_only
from support.run.skipped import allowed_reasons

CONFTEST = """
from support.run.skipped import Skipped

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped(["GB of free memory"]))
"""
LISTED = """
import pytest

def test_needs_memory():
    pytest.skip("a cluster needs 8 GB of free memory")

@pytest.mark.xfail(reason="not built yet")
def test_that_is_to_fail():
    raise AssertionError

def test_passes():
    pass
"""
UNLISTED = """
def test_needs_more():
    pytest.skip("the disk is too small")
"""
ALONE = ["-p", "no:xdist"]
WHOLE_MODULE = """
import pytest

pytest.skip("there is no compiler", allow_module_level=True)
"""


@pytest.mark.parametrize(
    ("module", "environment", "refused", "workers"),
    [
        (LISTED, {"CI": "true"}, None, ALONE),
        pytest.param(
            LISTED + UNLISTED,
            {"CI": "true"},
            "the disk is too small: test_module.py::test_needs_more",
            ALONE,
            marks=long_only("a process of xdist tells the same in the gate"),
        ),
        (LISTED + UNLISTED, {"CI": "true"}, "the disk is too small: test_module.py::test_needs_more", ["-n", "1"]),
        (LISTED + UNLISTED, {}, None, ALONE),
        (WHOLE_MODULE, {"CI": "true"}, "there is no compiler: test_module.py", ALONE),
    ],
)
def test_with_ci_set_a_skip_that_is_not_listed_fails_the_run(
    tmp_path: Path, module: str, environment: dict[str, str], refused: str | None, workers: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_module.py").write_text(module)
    (tmp_path / "test_other.py").write_text("def test_passes():\n    pass\n")
    given = {name: value for name, value in os.environ.items() if name != "CI"} | environment
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**given, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if refused is None else 1), done.stdout
    assert (refused or "passed") in done.stdout


def test_the_list_has_a_reason_on_each_line_and_no_blank_one() -> None:
    reasons = allowed_reasons(TESTS / "allowed_skips.txt")
    assert "files open here (ulimit -Hn)" in reasons
    assert "" not in reasons
    assert not [reason for reason in reasons if reason.startswith("#")]
