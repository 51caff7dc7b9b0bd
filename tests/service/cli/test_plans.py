"""What SIGHUP has loaded first, `run --plan` and `serve --plan`, refuses what a start would be refused for."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from stateline.config.loading import load_config
from stateline.processes.application import only_run
from support.processes.forked import run

APPLICATION = "from stateline import App\n\napp = App('plain')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plain.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_server_without_tokens_that_others_would_reach_is_refused_before_anything_stops(
    command: str, here: Path
) -> None:
    done = run([command, "plain:app", "--set", "server.host=0.0.0.0", "--plan", "plan"], env=os.environ)
    assert done.returncode == 2
    assert "server.host = '0.0.0.0' (from --set) is reached by other machines" in done.stderr
    assert not (here / "plan").exists()


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_port_of_what_runs_is_nothing_to_refuse(command: str, here: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as runs, only_run(load_config("plain")):
        port = f"server.port={runs.getsockname()[1]}"
        done = run([command, "plain:app", "--set", port, "--plan", "plan"], env=os.environ)
    assert done.returncode == 0, done.stderr
    assert (here / "plan").exists()
