"""What tests may rely on of the commands that they fork."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.processes.forked import Forked, run


def test_workers_and_servers_have_hashes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hashing.py").write_text("print(hash('key'), flush=True)\n")
    monkeypatch.chdir(tmp_path)
    worker, server = (int(run([command, "hashing:app"], env=os.environ).stdout) for command in ("worker", "serve"))
    assert worker != server


def test_what_ends_with_the_process_that_it_is_forked_from_has_no_exit_code() -> None:
    process = Forked.__new__(Forked)
    process.returncode = None
    process._told, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(AssertionError, match="has ended"):
        process.poll()
    os.close(process._told)
