"""The output of the demo's processes goes to a file, and what led to an unexpected end is shown."""

from __future__ import annotations

import sys
from pathlib import Path

from flights.application import app
from flights.services import OutputFile, Services, demo_settings
from stateline.config.loading import read_config
from stateline.processes.child import Child
from stateline.processes.supervisor import SAYS, Supervisor


def test_lines_go_to_the_file_and_the_last_ones_are_shown_when_a_process_ends(tmp_path: Path) -> None:
    shown: list[str] = []
    output = OutputFile(tmp_path / "output.log", shown.append)
    for number in range(100):
        output("worker-0", f"line {number}")
    output("server", "all is well")
    assert shown == []
    output(SAYS, "worker-0 ended (exit code 1); it starts again in 0.5 s.")
    output.close()
    assert shown[0].startswith("worker-0 ended (exit code 1)")
    assert shown[-1] == "  line 99"
    assert not any("all is well" in line for line in shown)
    assert len((tmp_path / "output.log").read_text(encoding="utf-8").splitlines()) == 102


def test_a_process_that_was_told_to_stop_is_not_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    output = OutputFile(tmp_path / "output.log", shown.append)
    output(SAYS, "worker-0 stopped (exit code 0).")
    output.close()
    assert shown == []


def test_the_demos_settings_win_over_those_of_its_surroundings(tmp_path: Path) -> None:
    file = tmp_path / "stateline.toml"
    file.write_text('"state.dir" = "elsewhere"\n"commit.interval.ms" = 5\n', encoding="utf-8")
    settings = demo_settings(tmp_path / "demo", "127.0.0.1", 8123)
    overrides = [f"{name}={value}" for name, value in settings.items()]
    config = read_config(app.application_id, path=file, overrides=overrides, defaults=app.config)
    assert (config.state_dir, config.server_port, config.commit_interval_ms) == (tmp_path / "demo", 8123, 1000)
    assert (config.bootstrap_servers, config.exactly_once) == ("embedded", True)


def test_the_pipelines_alone_can_be_stopped_for_a_while() -> None:
    waiting = (sys.executable, "-c", "import time; time.sleep(3600)")
    with (
        Supervisor([Child("server", waiting)], emit=lambda name, line: None) as others,
        Supervisor([Child("pipelines", waiting)], emit=lambda name, line: None) as pipelines,
    ):
        services = Services(pipelines, others)
        before = {**others.processes, **pipelines.processes}
        with services.without_pipelines():
            assert (others.processes, pipelines.processes) == ({"server": before["server"]}, {})
        services.poll()
        assert others.processes == {"server": before["server"]}
        assert pipelines.processes["pipelines"] != before["pipelines"]
