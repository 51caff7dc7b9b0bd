"""What there is to run comes from the process that has loaded the code to the one that supervises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stateline.cli.main import main
from stateline.config.loading import load_config
from stateline.processes.application import listening_child
from stateline.processes.child import HAND_OVER, LEAVE, Child
from stateline.processes.run_plan import RunPlan, fixed_settings
from stateline_store.errors import ConfigurationError

CHILDREN = [Child("worker-0", ("run", "it"), stop_order=1, says_ready=True), Child("server", ("serve", "it"))]


def settings(*overrides: str) -> dict[str, str]:
    return fixed_settings(load_config("flights", environment={}, overrides=list(overrides)))


def test_children_come_as_they_are_but_for_the_server_which_gets_the_sockets(tmp_path: Path) -> None:
    children = [replace(CHILDREN[0], quits_by=LEAVE, stop_timeout_s=60), CHILDREN[1]]
    RunPlan(children, [tmp_path / "flights.py"], settings()).write(tmp_path / "plan")
    found = RunPlan.read(tmp_path / "plan", settings(), lambda child: listening_child(child, 5, 6))
    worker, server = found.children
    assert worker == replace(children[0], command=["run", "it"])
    assert list(server.command) == ["serve", "it", "--listener", "5", "--for-nodes", "6"]
    assert server.takes_over
    assert (server.pass_fds, server.leaves_by) == ((5, 6), HAND_OVER)
    assert list(found.files) == [tmp_path / "flights.py"]


def test_a_setting_that_the_supervisor_itself_has_is_not_taken_over_and_said(tmp_path: Path) -> None:
    RunPlan(CHILDREN, [], settings("server.port=9000")).write(tmp_path / "plan")
    with pytest.raises(ConfigurationError, match=r"server\.port = 9000 instead of 8000: that needs a restart"):
        RunPlan.read(tmp_path / "plan", settings(), lambda child: child)


@pytest.mark.parametrize(
    "setting",
    ["state.dir=/elsewhere", "server.host=::1", "node.name=x", "node.peer.listen=127.0.0.1:9", "log.format=json"],
)
def test_none_of_the_settings_that_the_supervisor_has_is_taken_over(setting: str, tmp_path: Path) -> None:
    on_kafka = "bootstrap.servers=localhost:9092"
    RunPlan(CHILDREN, [], settings(on_kafka, setting)).write(tmp_path / "plan")
    with pytest.raises(ConfigurationError, match="that needs a restart"):
        RunPlan.read(tmp_path / "plan", settings(on_kafka), lambda child: child)


def test_another_state_directory_is_said_before_its_log_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moved_state.py").write_text("from stateline import App\n\napp = App('moved')\napp.table('rows')\n")
    was = fixed_settings(load_config("moved", environment={}))
    given = ["--set", "state.dir=elsewhere", "--fixed", json.dumps(was), "--plan", "plan"]
    assert main(["run", "moved_state:app", *given]) == 2
    assert f"state.dir = elsewhere instead of {was['state.dir']}: that needs a restart" in capsys.readouterr().err


def test_another_application_is_not_taken_over(tmp_path: Path) -> None:
    RunPlan(CHILDREN, [], fixed_settings(load_config("trains", environment={}))).write(tmp_path / "plan")
    with pytest.raises(ConfigurationError, match=r"application\.id = trains instead of flights"):
        RunPlan.read(tmp_path / "plan", settings(), lambda child: child)
