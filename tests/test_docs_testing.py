"""docs/testing.md is true: its application is tested by its tests, and its tables name all that there is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from stateline.testing import TestDriver, TestedStore
from test_docs import ROOT, blocks, document, rows

TEXT = document("docs/testing.md")


def test_the_test_file_that_it_shows_passes(tmp_path: Path) -> None:
    for name, block in zip(("shop.py", "test_shop.py"), blocks(TEXT, "python")[:2], strict=True):
        (tmp_path / name).write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_shop.py"]
    path = os.pathsep.join([str(ROOT / "service"), str(ROOT / "store")])
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(re.findall(r'^def test_', blocks(TEXT, 'python')[1], re.MULTILINE))} passed" in ended.stdout


def named(cells: list[list[str]]) -> set[str]:
    """The first word of each call in the first column."""
    return {name for row in cells for name in re.findall(r"`([A-Za-z_]+)", row[0])}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_every_method_of_the_driver_and_of_its_stores_is_in_the_tables() -> None:
    section = TEXT.split("## What there is\n", 1)[1]
    assert named(rows(TEXT, "## What there is")) == public(TestDriver) | {"TestDriver", "autocommit"}
    of_stores = re.search(r"\| of a store \|.*\n\|.*\n((\|.*\n)+)", section)
    assert of_stores is not None
    assert named([line.split(" | ") for line in of_stores[1].splitlines()]) == public(TestedStore)
