"""`stateline demo --once`, as a newcomer runs it: it ends by itself, and every answer it checked was right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port

_PARTS = (
    "The same key at both isolation levels, while departures stream in",
    "A write, and a read that waits for it",
    "isolation_level=read_uncommitted",
    "position_bound=",
)


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer, and there is no java here.")
def test_the_demo_checks_every_store_against_the_csv_files_and_finds_every_answer_right(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stateline", "demo", "--once", "--port", str(free_port())]
    command += ["--state-dir", str(tmp_path / "demo")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    verdict = re.search(r"checked ([\d,]+) answers, all right", said)
    assert verdict, said
    # 4,000 aircraft and their timestamps, 110,000 hours and 31,000 rows of tables, most of them asked for twice.
    assert int(verdict[1].replace(",", "")) > 200_000
    for part in _PARTS:
        assert part in said
    assert "Traceback" not in said
